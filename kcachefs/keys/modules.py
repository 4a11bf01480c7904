"""Modules as values: a library counts by version, a module of the project by its file and by those that it imports."""

from __future__ import annotations

import types
from typing import Any

from kcachefs.keys.asking import is_a
from kcachefs.keys.dependencies import MISSING
from kcachefs.keys.encoding import encode, tagged
from kcachefs.keys.imports import imported_module
from kcachefs.keys.libraries import is_library, version_of
from kcachefs.keys.references import Path
from kcachefs.keys.walk import Walk


def write_module(walk: Walk, module: types.ModuleType, out: list[bytes]) -> None:
    """A module that is passed around as a value, so that anything in it may be used."""
    name = module.__name__
    if is_library(name, walk.rules.home):
        walk.fields("library", (name, version_of(name)), out)
        return
    walk.fields("module", (name, imported_module(module, walk.rules.home, walk.rules.ignore)), out)
    _write_class(walk, module, out)


def write_attribute(walk: Walk, module: types.ModuleType, attributes: Path, out: list[bytes]) -> None:
    """`module.a.b`: by its value in the project; by name and version in a library."""
    inner, rest = module, attributes
    while rest and is_a(found := vars(inner).get(rest[0]), types.ModuleType):
        walk.dependencies.add_place(vars(inner), rest[0], found)
        inner, rest = found, rest[1:]
    if is_library(inner.__name__, walk.rules.home):
        out.append(encode(("library", inner.__name__, version_of(inner.__name__))))
    elif not rest:
        walk.named("module", inner.__name__, inner, out)
        walk.dependencies.add_value(inner)
    else:
        out.append(tagged(b"Q", inner.__name__.encode()))
        held: dict[str, Any] = vars(inner)
        walk.slot("attribute", held, rest[0], out)
        if held.get(rest[0], MISSING) is MISSING:
            walk.slot("attribute", held, "__getattr__", out)
        _write_class(walk, inner, out)


def _write_class(walk: Walk, module: types.ModuleType, out: list[bytes]) -> None:
    """A module may have a class of its own, whose methods decide what its attributes are."""
    if type(module) is not types.ModuleType:
        walk.dependencies.is_complete = False
        walk.named("class", module.__name__, type(module), out)
