"""What a pack may hold. A pack comes from elsewhere and becomes code: everything it says is checked before it is used.

The same limits apply when a pack is made, so that nobody makes one that nobody can unpack.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import PurePosixPath

import msgspec

from kcachefs.core.layouts import NAMESPACES, Kind, is_temporary, place
from kcachefs.errors import PackError
from kcachefs.fleet.manifest import Frame, Manifest, PackedEntry, PackedFile
from kcachefs.frameworks.copying import is_group_file
from kcachefs.frameworks.graph_paths import cache_directory
from kcachefs.printable import printable

WINDOW_LOG_MAX = 27
"""The largest window of a zstd frame, as a power of two: what a decoder needs in memory."""
THING_MAX = 256 << 20
"""The largest entry, and the most bytes of a decoded frame."""
TOTAL_MAX = 64 << 30
"""The most bytes of all files together."""
FILES_MAX = 1_000_000
MANIFEST_MAX = 256 << 20
"""The most bytes of a decoded manifest."""
UNTRUSTED_MANIFEST_MAX = 32 << 20
"""The same for a manifest that no trusted key signed: anybody may have made it, and in memory it takes up to twenty
times as much."""
FACTS_MAX = 1000
"""The most facts about the content of a pack, counting their names."""
FACT_LENGTH_MAX = 64
DEPTH_MAX = 64
"""How deep folders may be nested."""
_NAME_MAX = 255

NOT_CARRIED = {
    "cuda": "the driver's own cache, which it changes in place",
    "python": "bytecode, which is made anew in seconds and is of use to one installation only",
    "cutile": "one SQLite file, which is changed in place",
}
"""Namespaces that no pack holds, and why."""

CARRIED = frozenset(NAMESPACES) - NOT_CARRIED.keys()

_SQLITE_SUFFIXES = ("-journal", "-wal", "-shm")
_LOCK_SUFFIXES = (".lock", ".lockfile", ".ninja_lock")


def is_unfinished(namespace: str, names: Collection[str]) -> bool:
    """Whether an entry has an Inductor source, or one of ninja's files, without the library that is built from it.

    Its compiler is still at work, or has failed, and nobody else can use the entry as it is. Inductor links `.main`
    sources into a library; an object may be all that others are compiled to.

    >>> is_unfinished("inductor", ["c.main.cpp", "c.main.o"]), is_unfinished("inductor", ["c.main.cpp", "c.main.so"])
    (True, False)
    """
    if any(PurePosixPath(name).name == "build.ninja" for name in names):
        return not any(name.endswith(".so") for name in names)
    sources = [name.removesuffix(".cpp") for name in names if namespace == "inductor" and name.endswith(".cpp")]
    return any(
        f"{source}.so" not in names and (source.endswith(".main") or f"{source}.o" not in names) for source in sources
    )


def checked(manifest: Manifest) -> Manifest:
    """The manifest, with its entries divided as the layouts do it today.

    Raises PackError if it describes anything but files in entries, of a reasonable number and size.
    """
    if manifest.files > FILES_MAX:
        raise PackError(f"it has {manifest.files:,} files; at most {FILES_MAX:,} are unpacked")
    if manifest.bytes > TOTAL_MAX:
        raise PackError(f"its files have {manifest.bytes:,} bytes; at most {TOTAL_MAX:,} are unpacked")
    facts = [text for name, values in manifest.facts.items() for text in (name, *values)]
    if len(facts) > FACTS_MAX or any(len(text) > FACT_LENGTH_MAX for text in facts):
        raise PackError(f"it has more than {FACTS_MAX:,} facts, or one longer than {FACT_LENGTH_MAX} characters")
    seen: set[tuple[str, str, str]] = set()
    frames: list[Frame] = []
    for frame in manifest.frames:
        if frame.plain > THING_MAX:
            raise PackError(f"a frame decodes to {frame.plain:,} bytes; at most {THING_MAX:,} are decoded")
        entries: list[PackedEntry] = []
        for packed in frame.entries:
            _check_entry(packed, frame.plain)
            entries += _placed(packed)
        for entry in entries:
            known = (entry.namespace, "/".join(entry.path), entry.group)
            if known in seen:
                raise PackError(f"{_shown(entry)}: is in it twice")
            seen.add(known)
        frames.append(msgspec.structs.replace(frame, entries=entries))
    return msgspec.structs.replace(manifest, frames=frames)


def _check_entry(entry: PackedEntry, plain: int) -> None:
    if entry.namespace not in CARRIED:
        raise PackError(f"{_shown(entry)}: packs hold no such namespace")
    if not entry.files:
        raise PackError(f"{_shown(entry)}: has no files")
    if len(entry.path) > DEPTH_MAX or not all(map(is_safe_name, entry.path)):
        raise PackError(f"{_shown(entry)}: is not a path that a cache has")
    for file in entry.files:
        parts = file.name.split("/")
        if len(parts) > DEPTH_MAX or not all(map(is_safe_name, parts)) or any(map(is_left_out, parts)):
            raise PackError(f"{_shown(entry)}: {printable(file.name)!r} is not a name that a cache has")
        if file.size > THING_MAX or file.offset + file.size > plain:
            raise PackError(f"{_shown(entry)}: {printable(file.name)} lies outside its frame")
        folder = PurePosixPath(entry.namespace, *entry.path, *parts[:-1])
        if file.moves and not is_group_file(parts[-1]) and cache_directory(folder) is None:
            raise PackError(f"{_shown(entry)}: {printable(file.name)} is not a file whose paths are rewritten")
    # Files may share bytes of the frame, so that together they can have more than it.
    if sum(file.size for file in entry.files) > THING_MAX:
        raise PackError(f"{_shown(entry)}: has more than {THING_MAX >> 20} MiB")
    names = [file.name for file in entry.files]
    folders = {name[:at] for name in names for at, one in enumerate(name) if one == "/"}
    if len(set(names)) < len(names) or folders & set(names):
        raise PackError(f"{_shown(entry)}: has two files of one name")


def _placed(entry: PackedEntry) -> list[PackedEntry]:
    """The entry, or those it consists of today: a folder that was one entry when it was packed may hold many now."""
    parts = [entry] if entry.group or not _is_structure(entry) else _divided(entry)
    if not all(len(part.path) <= DEPTH_MAX and _is_placed(part) for part in parts):
        raise PackError(f"{_shown(entry)}: is not where {entry.namespace} keeps entries")
    return parts


def _is_structure(entry: PackedEntry) -> bool:
    path = tuple(map(os.fsencode, entry.path))
    return bool(path) and place(entry.namespace.encode(), path, True).kind is Kind.STRUCTURE


def _divided(entry: PackedEntry) -> list[PackedEntry]:
    """The entries in a folder, without the files that belong to none; the folder itself if it holds no entry."""
    found: dict[tuple[tuple[str, ...], str], list[PackedFile]] = {}
    for file in entry.files:
        names = (*entry.path, *file.name.split("/"))
        encoded = tuple(map(os.fsencode, names))
        for depth in range(len(entry.path) + 1, len(names) + 1):
            spot = place(entry.namespace.encode(), encoded[:depth], depth < len(names))
            if spot.kind is not Kind.STRUCTURE:
                break
        if spot.kind is Kind.GROUP:
            depth -= 1
        elif spot.kind is not Kind.TREE:
            continue  # a lock, an index, or what a dead writer left
        inside = msgspec.structs.replace(file, name="/".join(names[depth:]))
        found.setdefault((names[:depth], os.fsdecode(spot.group)), []).append(inside)
    return [
        msgspec.structs.replace(entry, path=list(path), group=group, files=files)
        for (path, group), files in found.items()
    ] or [entry]


def _is_placed(entry: PackedEntry) -> bool:
    """Whether the layouts define exactly this as an entry, and all folders above it as structure."""
    namespace, path = entry.namespace.encode(), tuple(map(os.fsencode, entry.path))
    above = path if entry.group else path[:-1]
    if any(place(namespace, above[:end], True).kind is not Kind.STRUCTURE for end in range(1, len(above) + 1)):
        return False
    if not entry.group:
        return bool(path) and place(namespace, path, True).kind is Kind.TREE
    for file in entry.files:
        spot = place(namespace, (*path, os.fsencode(file.name)), False)
        if "/" in file.name or spot.kind is not Kind.GROUP or os.fsdecode(spot.group) != entry.group:
            return False
    return True


def is_safe_name(name: str) -> bool:
    """Whether a name can only ever mean a file in the folder where it is looked up, and is displayed as it is."""
    if name in ("", ".", "..", ".kcachefs") or "/" in name or not name.isprintable():
        return False
    try:
        return len(name.encode()) <= _NAME_MAX
    except UnicodeEncodeError:
        return False


def is_left_out(name: str) -> bool:
    """Whether a file or folder inside an entry is of no use elsewhere: a lock, or what a dead writer left."""
    return name == "lock" or name.endswith(_LOCK_SUFFIXES) or is_temporary(os.fsencode(name))


def is_database(name: str, content: bytes) -> bool:
    """Whether a file is an SQLite database: its users change it in place, so one copy does not replace another."""
    return content.startswith(b"SQLite format 3\0") or name.endswith(_SQLITE_SUFFIXES)


def _shown(entry: PackedEntry) -> str:
    return printable(entry.label)
