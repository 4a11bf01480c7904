"""Finds the entries that a person means, by path, by namespace, or by readable name."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import PurePosixPath
from typing import Protocol, TypeVar

from kcachefs.core.layouts import NAMESPACES
from kcachefs.errors import UsageError


class Named(Protocol):
    """The attributes by which an entry is found."""

    @property
    def path(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def entry(self) -> int: ...


PATTERN_MAX = 4096
"""The most characters of a pattern: no path and no name has more."""
_Entry = TypeVar("_Entry", bound=Named)


def meant_by(patterns: Sequence[str], entries: Sequence[_Entry], *, parts: bool = False) -> list[_Entry]:
    """The entries that any pattern means; raises UsageError for a pattern that means none.

    A pattern is a path or a name, in which `*` stands for anything, or the first word of a name, such as a kernel's
    name. With `parts`, which is for listing and not for evicting, a namespace means all its entries, and a part of a
    name or path is enough.
    """
    found: dict[int, _Entry] = {}
    for pattern in patterns:
        if len(pattern) > PATTERN_MAX:
            raise UsageError(f"{pattern[:40]}…: is longer than any name ({len(pattern)} characters)")
        wanted = pattern.strip("/")
        hits = [one for one in entries if _means(wanted, one, parts)]
        if not hits and not (parts and wanted in NAMESPACES):
            raise UsageError(f"{pattern}: {_complaint(wanted, entries, parts)}")
        found |= {one.entry: one for one in hits}
    return list(found.values())


def are_paths(patterns: Sequence[str], entries: Sequence[Named]) -> bool:
    """Whether every pattern is a namespace or matches the path of an existing entry, so that none means a name."""
    paths = {one.path for one in entries}
    return all(_is_path(pattern.strip("/"), paths) for pattern in patterns)


def _is_path(wanted: str, paths: AbstractSet[str]) -> bool:
    if wanted in NAMESPACES or wanted in paths:
        return True
    if "/" not in wanted or len(wanted) > PATTERN_MAX:
        return False
    above = {str(one) for one in PurePosixPath(wanted).parents}
    if not above.isdisjoint(paths):
        return True
    return any(fnmatch.fnmatchcase(path, wanted) for path in paths)


def _means(wanted: str, one: Named, parts: bool) -> bool:
    if fnmatch.fnmatchcase(one.path, wanted) or wanted.startswith(one.path + "/"):
        return True
    if one.name != one.path and (fnmatch.fnmatchcase(one.name, wanted) or one.name.partition(" ")[0] == wanted):
        return True
    return parts and (one.namespace == wanted or wanted.lower() in one.name.lower() or wanted in one.path)


def _complaint(wanted: str, entries: Sequence[Named], parts: bool) -> str:
    namespaces = {*NAMESPACES, *(one.namespace for one in entries)}
    namespace = wanted.removesuffix("/*")
    if namespace in namespaces and all(one.namespace != namespace for one in entries):
        return "there is no entry in this namespace; see: kcachefs ls"
    if wanted in namespaces:
        return f"is a namespace; write '{wanted}/*' for all of its entries, or one of those in: kcachefs ls {wanted}"
    known = {*namespaces, *(one.name.partition(" ")[0] for one in entries)}
    near = difflib.get_close_matches(re.sub(r"[*?]", "", wanted), sorted(filter(None, known)), 1)
    if not near:
        return "no entry is called that; see: kcachefs ls"
    meant = f"'{near[0]}/*'" if near[0] in namespaces and not parts else near[0]
    return f"no entry is called that; did you mean {meant}?"
