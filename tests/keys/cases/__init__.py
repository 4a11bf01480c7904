"""The table of changes that must change a key and of those that must not, as data; `runner` evaluates it."""

from __future__ import annotations

from tests.keys.cases import (
    cached_functions,
    classes,
    functions,
    generators,
    libraries,
    library_values,
    mutations,
    overlooked,
    programs,
    projects,
    raising,
    tensors,
    torch_modules,
    unseen,
    values,
    wrapped,
)
from tests.keys.cases.case import Case

CASES: list[Case] = [
    *values.CASES,
    *library_values.CASES,
    *functions.CASES,
    *classes.CASES,
    *mutations.CASES,
    *projects.CASES,
    *programs.CASES,
    *cached_functions.CASES,
    *generators.CASES,
    *tensors.CASES,
    *torch_modules.CASES,
    *libraries.CASES,
    *overlooked.CASES,
    *raising.CASES,
    *unseen.CASES,
    *wrapped.CASES,
]
