"""Unpacks a checked pack: its entries appear in a mount or a store one by one, each as a whole.

Entries that exist already are left alone, so that an interrupted unpacking can simply be run again. An entry is
written under the temporary name of an adoption and then renamed: a process that dies in between leaves nothing that
anybody takes for an entry, and no miss is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from kcachefs.fleet import moving
from kcachefs.fleet.manifest import PackedEntry, PackedFile
from kcachefs.fleet.packfile import Pack
from kcachefs.fleet.room_left import RoomLeft
from kcachefs.fleet.targets import Target
from kcachefs.frameworks.copying import staging_name

_BLOCK = 4096
"""The room that a file takes is rounded up to a multiple of this."""

Progress = Callable[[PackedEntry], None]


@dataclass(slots=True)
class Unpacked:
    """What has been done so far."""

    unpacked: int = 0
    present: int = 0
    """Entries that were there already."""
    files: int = 0
    bytes: int = 0
    left_out: int = 0
    """Entries for which there was no room."""
    short_of: set[str] = field(default_factory=set)
    """The options that would raise the limits in their way, as `RoomLeft` names them."""
    listed: dict[tuple[str, ...], frozenset[str]] = field(default_factory=dict)
    """The names that the folders of the entries held before."""

    def note(self, brought: list[PackedFile]) -> None:
        """One more entry is done, of which these files were brought in."""
        self.unpacked += bool(brought)
        self.present += not brought
        self.files += len(brought)
        self.bytes += sum(file.size for file in brought)


def unpack(
    pack: Pack,
    target: Target[Any],
    done: Unpacked,
    progress: Progress = lambda entry: None,
    *,
    evicts: bool = True,
) -> None:
    """Bring in every entry of a pack that does not exist yet. `progress` may raise to stop between two entries.

    Before the first one appears, every byte of the pack is checked, and the path to every entry. With `evicts=False`,
    entries that fit only if others are evicted are left out.
    """
    pack.check_frames()
    for parent in sorted({_parent(entry) for entry in pack.manifest.entries}):
        # A listing, because looking for every name would count as using what is found.
        done.listed[parent] = target.names(parent)
    pool = ThreadPoolExecutor(target.writers)
    try:
        for frame, plain in pack.decoded():
            bring = partial(_bring, plain=plain, target=target, listed=done.listed)
            left = frame.entries
            while entries := left if evicts else _fitting(left, target, done):
                for entry, brought in zip(entries, pool.map(bring, entries), strict=True):
                    done.note(brought)
                    progress(entry)
                target.settle()
                brought_in = set(map(id, entries))
                left = [entry for entry in left if id(entry) not in brought_in]
            done.left_out += len(left)
    finally:
        pool.shutdown(cancel_futures=True)  # entries that were begun are finished


def gone(pack: Pack, target: Target[Any]) -> int:
    """How many entries of a pack that was unpacked are no longer there: a quota too small for all evicts some."""
    listed = {parent: target.names(parent) for parent in {_parent(entry) for entry in pack.manifest.entries}}
    return sum(
        listed[_parent(entry)].isdisjoint([file.name for file in entry.files] if entry.group else entry.path[-1:])
        for entry in pack.manifest.entries
    )


def may_fit(plain: int, entries: int, room: RoomLeft) -> bool:
    """Whether an entry of average size would fit."""
    return room.may_fit(_needed(plain // max(1, entries)))


def _needed(size: int) -> int:
    """How much room a file takes while it is brought in: during sealing, its bytes exist twice."""
    return 2 * (size + _BLOCK)


def _fitting(entries: list[PackedEntry], target: Target[Any], done: Unpacked) -> list[PackedEntry]:
    """The entries for which there is room; once they are sealed, there may be room for more."""
    if not entries:
        return []
    fitting, short_of, room = [], set(), target.room()
    for entry in entries:
        missing = _missing(entry, done.listed)
        needed = sum(_needed(file.size) for file in missing)
        if missing and (option := room.take(entry.namespace, needed, len(missing))):
            short_of.add(option)
        else:
            fitting.append(entry)
    if not fitting:
        done.short_of |= short_of
    return fitting


def _missing(entry: PackedEntry, listed: Mapping[tuple[str, ...], frozenset[str]]) -> list[PackedFile]:
    """The files to bring in: those that a group lacks; of a folder all, or none if it exists already."""
    present = listed[_parent(entry)]
    if not entry.group:
        return [] if entry.path[-1] in present else entry.files
    return [file for file in entry.files if file.name not in present]


def _parent(entry: PackedEntry) -> tuple[str, ...]:
    return (entry.namespace, *(entry.path if entry.group else entry.path[:-1]))


def _bring(
    entry: PackedEntry, plain: memoryview, target: Target[Any], listed: Mapping[tuple[str, ...], frozenset[str]]
) -> list[PackedFile]:
    """Bring an entry in; returns the files that were brought in."""
    missing = _missing(entry, listed)
    if not missing:
        return []
    return _bring_group(entry, missing, plain, target) if entry.group else _bring_tree(entry, plain, target)


def _bring_tree(entry: PackedEntry, plain: memoryview, target: Target[Any]) -> list[PackedFile]:
    staging = staging_name()
    folders: dict[str, list[PackedFile]] = {}
    for file in entry.files:
        folders.setdefault(file.name.rpartition("/")[0], []).append(file)
    with target.folder(_parent(entry)) as parent:
        try:
            with target.below(parent, (staging,)) as top:
                for name, files in folders.items():
                    with target.below(top, tuple(name.split("/")) if name else ()) as folder:
                        for file in files:
                            _add(entry, file, file.name.rpartition("/")[2], plain, target, folder)
            if target.rename(parent, staging, entry.path[-1]):
                staging = ""
                return entry.files
            return []  # somebody else made it in the meantime
        finally:
            if staging:
                target.remove(parent, staging)


def _bring_group(
    entry: PackedEntry, files: list[PackedFile], plain: memoryview, target: Target[Any]
) -> list[PackedFile]:
    """All files are written before the first gets its name, so that they appear almost at the same time."""
    left = [(f"{staging_name()}{number}", file) for number, file in enumerate(files)]
    brought = []
    with target.folder(_parent(entry)) as folder:
        try:
            for name, file in left:
                _add(entry, file, name, plain, target, folder)
            for name, file in tuple(left):
                if target.rename(folder, name, file.name):
                    left.remove((name, file))
                    brought.append(file)
        finally:
            for name, _ in left:
                target.remove(folder, name)
    return brought


def _add(entry: PackedEntry, file: PackedFile, name: str, plain: memoryview, target: Target[Any], folder: Any) -> None:
    content: memoryview | bytes = plain[file.offset : file.offset + file.size]
    if file.moves:
        path = PurePosixPath(entry.namespace, *entry.path, file.name)
        content = moving.to_target(bytes(content), target.home, path)
    target.add(folder, name, file.mode, file.mtime, content)
