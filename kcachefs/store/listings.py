"""Listings of large folders in the layout that the kernel takes, so that nobody waits for their names one by one.

A listing is made from the catalog, and is valid as long as its folder's time of change and number of names stay the
same. A store is complete without listings: one that is missing, damaged or out of date is made again. Listings are few
and small (beyond `TOTAL_MAX` bytes or `FILES_MAX` files the oldest go), so once read, they stay in memory.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
import threading
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from zlib import crc32

from kcachefs.store.descriptor import remove_half_written, replace_file

LISTING_MAX = 1 << 20
"""Bytes of one listing: some 15,000 names."""
TOTAL_MAX, FILES_MAX = 8 << 20, 256
"""Bytes of all listings on the disk, and how many there may be."""

_MAGIC = b"kclistng"
_HEAD = struct.Struct("<8sQqI")  # magic, folder, when it was changed last, how many records
_RECORD = struct.Struct("<QQII")  # inode, cookie, length of the name, type; then the name, padded to 8 bytes
_CHECK = struct.Struct("<I")  # the CRC-32 of all before it
_NAME = re.compile(r"[0-9a-f]{16}")
_FOLDER = stat.S_IFDIR >> 12
_DOTS = 2
"""Records that are not names of the folder: `.` and `..`."""

Row = tuple[int, bytes, int, int]
"""Cookie, name, inode, type."""


class Listing:
    """A listing as stored, from its bytes `raw`. Raises ValueError if they are damaged."""

    def __init__(self, raw: bytes) -> None:
        if len(raw) < _HEAD.size + _CHECK.size or crc32(raw[: -_CHECK.size]) != _CHECK.unpack(raw[-_CHECK.size :])[0]:
            raise ValueError("it fails its check")
        magic, self.folder, self._changed, count = _HEAD.unpack_from(raw)
        starts = _HEAD.size + 8 * count
        records = starts + 4 * (count + 1)
        if magic != _MAGIC or records > len(raw) - _CHECK.size:
            raise ValueError("it is not a listing")
        view = memoryview(raw)
        self.raw = raw
        self._cookies = view[_HEAD.size : starts].cast("Q")
        self._starts = view[starts:records].cast("I")
        self._records = view[records : -_CHECK.size]

    @classmethod
    def of(cls, folder: int, parent: int, changed: int, names: Sequence[Row]) -> Listing:
        """The listing of a folder with these names, in the order of their cookies, last changed at `changed`."""
        rows = [(1, b".", folder, _FOLDER), (2, b"..", parent, _FOLDER), *names]
        records = [
            _RECORD.pack(ino, cookie, len(name), kind) + name + bytes(-len(name) % 8)
            for cookie, name, ino, kind in rows
        ]
        cookies = array("Q", [row[0] for row in rows])
        starts = array("I", accumulate(map(len, records), initial=0))
        head = _HEAD.pack(_MAGIC, folder, changed, len(rows))
        body = b"".join((head, cookies.tobytes(), starts.tobytes(), *records))
        return cls(body + _CHECK.pack(crc32(body)))

    def is_of(self, changed: int, names: int) -> bool:
        """Whether this is the listing of a folder with this many names, last changed at `changed`."""
        return self._changed == changed and len(self._cookies) == names + _DOTS

    def part(self, cookie: int, size: int) -> bytes:
        """The records after `cookie`, as many as fit into `size` bytes."""
        begin = self._starts[bisect_right(self._cookies, cookie)]
        end = self._starts[bisect_right(self._starts, begin + size) - 1]
        return self._records[begin:end].tobytes()


class Listings:
    """The listings of one store. Any thread may use it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        """One thread at a time changes the files. No lock is needed to read: each file is replaced as a whole."""
        self._loaded: dict[int, Listing] = {}
        self._sizes: dict[int, int] = {}
        """Sizes of the files, by folder, the oldest first."""
        self._newest = 0
        """The time of the newest file. The next one is later, even if the clock is coarse or was set back."""
        with contextlib.suppress(OSError):  # a store is complete without them
            names = [name for name in os.listdir(directory) if _NAME.fullmatch(name)]
            found = [(status, name) for name in names if (status := _read_ahead(directory / name)) is not None]
            found.sort(key=lambda pair: pair[0].st_mtime_ns)
            self._newest = found[-1][0].st_mtime_ns if found else 0
            self._sizes = {int(name, 16): status.st_blocks * 512 for status, name in found}

    def remove_leftovers(self) -> None:
        """Remove half-written listings that a kill left. Nobody else may have the store open."""
        with contextlib.suppress(OSError):
            remove_half_written(self.directory, _NAME)

    def path(self, folder: int) -> Path:
        return self.directory / f"{folder:016x}"

    def folders(self) -> list[int]:
        """The folders that have a listing, valid or not."""
        return list(self._sizes)

    def get(self, folder: int) -> Listing | None:
        found = self._loaded.get(folder)
        if found is None and folder in self._sizes:
            try:
                found = self.read(folder)
                self._loaded[folder] = found
            except (OSError, ValueError):
                self.remove(folder)
        return found

    def read(self, folder: int) -> Listing:
        """The listing on the disk. Raises OSError or ValueError if it is missing or damaged."""
        with open(_open_file(self.path(folder)), "rb") as file:
            raw = file.read(LISTING_MAX + 1)
        if len(raw) > LISTING_MAX:
            raise ValueError("it is longer than a listing can be")
        found = Listing(raw)
        if found.folder != folder:
            raise ValueError("it belongs to another folder")
        return found

    def put(self, listing: Listing) -> None:
        """Keep a listing, unless it is too long. Raises OSError if the disk is full."""
        if len(listing.raw) > LISTING_MAX:
            return
        folder = listing.folder
        path = self.path(folder)
        with self._lock:
            self._loaded.pop(folder, None)
            self._sizes.pop(folder, None)
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.directory, 0o700)
            try:
                replace_file(path, listing.raw, sync=False)  # if a power cut spoils it, it fails its check
                status = os.stat(path)
                if status.st_mtime_ns <= self._newest:
                    os.utime(path, ns=(self._newest + 1, self._newest + 1))
                self._newest = max(status.st_mtime_ns, self._newest + 1)
                self._sizes[folder] = status.st_blocks * 512
            except OSError:
                self._remove(folder)
                self.remove_leftovers()
                raise
        self.trim(TOTAL_MAX)

    def trim(self, most: int) -> None:
        """Remove the oldest listings until the rest take at most `most` bytes and `FILES_MAX` files."""
        with self._lock:
            while self._sizes and (sum(self._sizes.values()) > most or len(self._sizes) > FILES_MAX):
                self._remove(next(iter(self._sizes)))

    def remove(self, folder: int) -> None:
        with self._lock:
            self._remove(folder)

    def allocated_bytes(self) -> int:
        """What the listings take on the disk."""
        return sum(list(self._sizes.values()))

    def _remove(self, folder: int) -> None:
        self._loaded.pop(folder, None)
        self._sizes.pop(folder, None)
        with contextlib.suppress(OSError):
            os.unlink(self.path(folder))


def _open_file(path: Path) -> int:
    """A descriptor of a plain file. Raises ValueError if `path` is anything else."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError("it is not a file")
    return fd


def _read_ahead(path: Path) -> os.stat_result | None:
    """Have the disk start reading a file, so that a listing soon after need not wait. None if it is not a file."""
    try:
        fd = _open_file(path)
    except (OSError, ValueError):
        return None
    try:
        os.posix_fadvise(fd, 0, LISTING_MAX, os.POSIX_FADV_WILLNEED)
        return os.fstat(fd)
    finally:
        os.close(fd)
