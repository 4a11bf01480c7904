"""The local index: which pack of the bucket holds which entry. It is a mapped file that is bisected; needs no network.

A key is the hash of the name of an entry, or of a folder that only leads to entries. The file is written for this
machine only, and replaced as a whole: a process keeps the old file mapped until it opens the new one.

    header | keys, sorted, 8 bytes each | numbers of packs, 4 bytes each | references, msgpack
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import msgspec
from blake3 import blake3

from kcachefs.core.layouts import Kind, place
from kcachefs.errors import PackError
from kcachefs.fleet.manifest import PackedEntry
from kcachefs.fleet.pack_records import PackReference, SignedRecord

FOLDER = 0xFFFFFFFF
"""Stands in place of a pack's number: the key is that of a folder that leads to entries of some pack."""
_FOLDER_BIT = 1 << 31
"""Set in the file with a pack's number: the key is that of a folder, and the pack has entries below it."""
_MAGIC = b"KCINDEX1"
_HEADER = struct.Struct("8sQQd32s")
"""Magic, number of keys, size of the references in bytes, load time in seconds since 1970, the source of the index."""
_LOADED_AT = 24


# --- keys ------------------------------------------------------------------------------------------------------------


def key_of_entry(namespace: bytes, path: tuple[bytes, ...], group: bytes = b"") -> int:
    """The key of an entry: a folder, or with `group` the files of one stem in the folder `path`."""
    return _hash(b"group" if group else b"tree", namespace, *path, *((group,) if group else ()))


def key_of_names(namespace: str, path: Iterable[str], group: str) -> int:
    """The key of an entry whose names are given as str."""
    return key_of_entry(namespace.encode(), tuple(map(os.fsencode, path)), os.fsencode(group))


def key_of_folder(namespace: bytes, path: tuple[bytes, ...]) -> int:
    """The key of a folder that holds entries and is not one itself."""
    return _hash(b"folder", namespace, *path)


def keys_of_name(namespace: bytes, path: tuple[bytes, ...]) -> tuple[int, ...]:
    """The keys under which a name that was not found may be in an index; empty for locks and temporaries.

    `path` is relative to the namespace, and its parent holds entries. The caller cannot know whether it is a folder.
    """
    as_folder, as_file = place(namespace, path, True).kind, place(namespace, path, False)
    if as_folder is Kind.TEMP or as_file.kind in (Kind.TEMP, Kind.LOCK, Kind.KEPT):
        return ()
    if as_folder is Kind.STRUCTURE:
        keys: tuple[int, ...] = (key_of_folder(namespace, path),)
    else:
        keys = (key_of_entry(namespace, path),)
    if as_file.kind is Kind.GROUP:
        keys += (key_of_entry(namespace, path[:-1], as_file.group),)
    return keys


def keys_of_entries(entries: Iterable[PackedEntry]) -> tuple[set[int], set[int]]:
    """The keys of the entries of a pack, and those of the folders above them."""
    keys, folders = set(), set()
    for entry in entries:
        namespace, path = entry.namespace.encode(), tuple(map(os.fsencode, entry.path))
        keys.add(key_of_names(entry.namespace, entry.path, entry.group))
        above = path if entry.group else path[:-1]
        folders |= {key_of_folder(namespace, above[:end]) for end in range(1, len(above) + 1)}
    return keys, folders


def packed_keys(keys: Iterable[int]) -> bytes:
    """Keys as a record holds them: sorted, little-endian."""
    return b"".join(key.to_bytes(8, "little") for key in sorted(keys))


def unpacked_keys(raw: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(raw) // 8}Q", raw))


def _hash(*parts: bytes) -> int:
    return int.from_bytes(blake3(b"\0".join(parts)).digest(length=8), "little")


# --- the file --------------------------------------------------------------------------------------------------------


class KeyIndex:
    """A mapped index."""

    def __init__(self, fd: int) -> None:
        """Map the file; the descriptor can be closed afterwards."""
        size = os.fstat(fd).st_size
        if size < _HEADER.size:
            raise PackError("the index of the fleet is cut off")
        self._map = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        whole = memoryview(self._map)
        magic, count, length, self.loaded, self.source = _HEADER.unpack(whole[: _HEADER.size])
        numbers, references = _HEADER.size + 8 * count, _HEADER.size + 12 * count
        if magic != _MAGIC or size != references + length:
            raise PackError("the index of the fleet is damaged")
        self._keys = whole[_HEADER.size : numbers].cast("Q")
        self._numbers = whole[numbers:references].cast("I")
        self.packs: list[PackReference] = msgspec.msgpack.decode(whole[references:], type=list[PackReference])
        """Newest first."""

    @classmethod
    def open(cls, path: Path) -> KeyIndex | None:
        """The index at a path; None if there is none, or it is unusable."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            return cls(fd)
        except (PackError, msgspec.DecodeError, ValueError):
            return None
        finally:
            os.close(fd)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key: int) -> int | None:
        """The number in `packs` of the newest pack with this key, or FOLDER; None if there is none."""
        at = bisect_left(self._keys, key)
        if at == len(self._keys) or self._keys[at] != key:
            return None
        number: int = self._numbers[at]
        return number if number < _FOLDER_BIT else FOLDER

    def find_all(self, key: int) -> list[PackReference]:
        """Every pack with this key, newest first."""
        at, found = bisect_left(self._keys, key), []
        while at < len(self._keys) and self._keys[at] == key:
            if self._numbers[at] < _FOLDER_BIT:
                found.append(self.packs[self._numbers[at]])
            at += 1
        return found

    def same_run(self, reference: PackReference) -> list[PackReference]:
        """The other packs that were published together with this one."""
        return [one for one in self.packs if one.run == reference.run and one != reference]

    @cached_property
    def entry_counts(self) -> Counter[tuple[str, str]]:
        """How many entries each pack has, by its place."""
        counts = Counter(number for _, number, is_folder in self.rows() if not is_folder)
        return Counter({self.packs[number].place: count for number, count in counts.items()})

    def rows(self) -> Iterator[tuple[int, int, bool]]:
        """Every key with the number of a pack, and whether the key is that of a folder."""
        for key, number in zip(self._keys, self._numbers, strict=True):
            yield key, number & ~_FOLDER_BIT, number >= _FOLDER_BIT


def write(
    path: Path,
    added: Sequence[SignedRecord],
    base: KeyIndex | None = None,
    *,
    source: bytes = bytes(32),
    loaded: float,
    keep: Callable[[PackReference], bool] = lambda reference: True,
) -> None:
    """Write an index of the packs in `base` and in the added records that `keep` accepts. It appears as a whole."""
    origins: list[tuple[PackReference, int | SignedRecord]] = []
    known = set()
    for record in added:
        reference = record.reference
        if keep(reference) and reference.place not in known:
            known.add(reference.place)
            origins.append((reference, record))
    for number, reference in enumerate(base.packs if base is not None else ()):
        if keep(reference) and reference.place not in known:
            origins.append((reference, number))
    origins.sort(key=lambda one: (one[0].day, one[0].plain, one[0].pack), reverse=True)
    rows: list[int] = []  # key and number in one integer: sorting those is much quicker than sorting pairs
    renumbered: dict[int, int] = {}
    for number, (_, origin) in enumerate(origins):
        if isinstance(origin, int):
            renumbered[origin] = number
        else:
            rows += [key << 32 | number for key in unpacked_keys(origin.record.entries)]
            rows += [key << 32 | _FOLDER_BIT | number for key in unpacked_keys(origin.record.folders)]
    for key, old, is_folder in base.rows() if base is not None else ():
        if old in renumbered:
            rows.append(key << 32 | renumbered[old] | (_FOLDER_BIT if is_folder else 0))
    rows.sort()
    keys, numbers = array("Q", [row >> 32 for row in rows]), array("I", [row & 0xFFFFFFFF for row in rows])
    references = msgspec.msgpack.encode([reference for reference, _ in origins])
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(_HEADER.pack(_MAGIC, len(keys), len(references), loaded, source))
            file.writelines((keys.tobytes(), numbers.tobytes(), references))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def touch(path: Path, loaded: float) -> None:
    """Record that the index was found unchanged at this time."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, struct.pack("d", loaded), _LOADED_AT)
    finally:
        os.close(fd)
