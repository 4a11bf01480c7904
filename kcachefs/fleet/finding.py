"""Finds the entries of a tree that can be packed, by the layouts, and chooses those that the user asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import msgspec

from kcachefs.core.entry_patterns import meant_by
from kcachefs.core.layouts import Kind, place
from kcachefs.core.readable_names import readable
from kcachefs.errors import KcachefsError
from kcachefs.fleet.rules import CARRIED, DEPTH_MAX, NOT_CARRIED, THING_MAX, is_left_out, is_safe_name, is_unfinished
from kcachefs.fleet.views import View
from kcachefs.frameworks.copying import Skipped
from kcachefs.printable import printable

_NAMED_MAX = 1 << 20
Say = Callable[[Skipped], None]
"""Called for everything that is not packed, with the reason."""


class FoundEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An entry of a tree, with the paths of its files relative to its folder."""

    namespace: str
    path_in: tuple[str, ...]
    group: str = ""
    files: list[str]
    bytes: int
    entry: int = 0
    name: str = ""
    """The name that people know it by; only set where patterns need it."""

    @property
    def path(self) -> str:
        """The path as `kcachefs ls` shows it."""
        return "/".join((self.namespace, *self.path_in, *filter(None, (self.group,))))


def find(view: View, patterns: Sequence[str], say: Say, only: Collection[str] | None = None) -> list[FoundEntry]:
    """The entries that can be packed, in the order of their names; with `only`, those of these paths."""
    found: list[FoundEntry] = []
    for namespace in sorted(child.name for child in view.children(()) if child.is_folder):
        if namespace in CARRIED:
            found += _below(view, namespace, (), say)
        elif namespace in NOT_CARRIED and view.children((namespace,)):
            say(Skipped(f"{namespace}: is not packed: it is {NOT_CARRIED[namespace]}"))
    if only is not None:
        found = [one for one in found if one.path in only]
    if patterns:
        named = [
            msgspec.structs.replace(one, entry=number, name=_name_of(view, one)) for number, one in enumerate(found)
        ]
        found = meant_by(patterns, named, parts=True)
    return sorted(found, key=lambda one: (one.namespace, one.path_in, one.group))


def find_at(view: View, namespace: str, path: tuple[str, ...], group: str, say: Say) -> list[FoundEntry]:
    """The entry at a path, if it can be packed; or all entries in that folder, if layouts once had it as one entry."""
    inside, encoded = tuple(map(os.fsencode, path)), namespace.encode()
    above = inside if group else inside[:-1]
    kinds = [place(encoded, above[:end], True).kind for end in range(1, len(above) + 1)]
    if namespace not in CARRIED or not (group or path) or any(kind is not Kind.STRUCTURE for kind in kinds):
        return []
    kind = Kind.GROUP if group else place(encoded, inside, True).kind
    if kind is Kind.STRUCTURE:
        return list(_below(view, namespace, path, say))
    if kind not in (Kind.GROUP, Kind.TREE):
        return []
    names: list[str] | None = None
    try:
        if group:
            names = [
                child.name
                for child in view.children((namespace, *path))
                if child.is_file
                and (spot := place(encoded, (*inside, os.fsencode(child.name)), False)).kind is Kind.GROUP
                and os.fsdecode(spot.group) == group
            ]
    except Skipped:
        return []
    return list(_entry(view, namespace, path, group, names, say))


def _below(view: View, namespace: str, path: tuple[str, ...], say: Say) -> Iterator[FoundEntry]:
    groups: dict[str, list[str]] = {}
    encoded = tuple(map(os.fsencode, path))
    try:
        children = view.children((namespace, *path))
    except Skipped as skipped:
        say(skipped)
        return
    for child in children:
        spot = place(namespace.encode(), (*encoded, os.fsencode(child.name)), child.is_folder)
        if spot.kind is Kind.STRUCTURE and is_safe_name(child.name) and len(path) < DEPTH_MAX:
            yield from _below(view, namespace, (*path, child.name), say)
        elif spot.kind is Kind.TREE:
            yield from _entry(view, namespace, (*path, child.name), "", None, say)
        elif spot.kind is Kind.GROUP:
            groups.setdefault(os.fsdecode(spot.group), []).append(child.name if child.is_file else f"{child.name}/")
    for group, names in groups.items():
        yield from _entry(view, namespace, path, group, names, say)


def _entry(
    view: View, namespace: str, path: tuple[str, ...], group: str, names: list[str] | None, say: Say
) -> Iterator[FoundEntry]:
    label = printable("/".join((namespace, *path, *filter(None, (group,)))))
    try:
        if names is None:
            names = list(_files(view, (namespace, *path), ""))
        if not names:
            return
        if not all(is_safe_name(part) for name in (*path, *names) for part in name.split("/")):
            raise Skipped(f"{label}: is not packed: it holds a link, or a name that packs do not carry")
        sizes = {name: view.size((namespace, *path, *name.split("/"))) for name in names}
        if is_unfinished(namespace, [name for name in names if sizes[name]]):
            raise Skipped(f"{label}: is not packed: its library is not there yet, or could not be built")
        size = sum(sizes.values())
        if size > THING_MAX:
            raise Skipped(f"{label}: is not packed: it has more than {THING_MAX >> 20} MiB")
    except Skipped as skipped:
        say(skipped)
        return
    yield FoundEntry(namespace=namespace, path_in=path, group=group, files=sorted(names), bytes=size)


def _files(view: View, folder: tuple[str, ...], above: str, depth: int = 1) -> Iterator[str]:
    """The files below an entry's folder. Anything else than a file or folder is yielded under a name that is refused
    later."""
    if depth > DEPTH_MAX:
        raise Skipped(f"{printable('/'.join(folder))}: is not packed: it has too many folders inside each other")
    for child in view.children(folder):
        if is_left_out(child.name):
            continue
        if child.is_folder:
            yield from _files(view, (*folder, child.name), f"{above}{child.name}/", depth + 1)
        else:
            yield above + child.name + ("" if child.is_file else "/")


def _name_of(view: View, found: FoundEntry) -> str:
    names = [os.fsencode(name) for name in found.files if "/" not in name]
    path = (*found.path_in, *filter(None, (found.group,)))
    return readable(found.namespace.encode(), tuple(map(os.fsencode, path)), partial(_read, view, found), names)


def _read(view: View, found: FoundEntry, relative: tuple[bytes, ...]) -> bytes | None:
    try:
        path = (found.namespace, *found.path_in, *map(os.fsdecode, relative))
        return view.read(path).content if view.size(path) <= _NAMED_MAX else None
    except (Skipped, KcachefsError):
        return None
