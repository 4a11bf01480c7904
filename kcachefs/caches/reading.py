"""Reads records from open files: the head alone, or a large value, which is hashed once per file and process."""

from __future__ import annotations

import os
import time

from kcachefs.bounded import BoundedDict
from kcachefs.caches.record import Entry, Head, head_of, head_size

_HEAD_SIZE = 4096

Identity = tuple[int, int, int, int, int]


class Verified:
    """Which large files this process has read and found whole, by what the kernel says of them.

    A file that is written to, through any name, gets a new ctime: as long as a file's inode, size, mtime and ctime are
    those it had when it was verified, so are its bytes. Two things do not show. One is a write within the clock tick of
    an earlier change, so a file that was changed a moment ago is not taken for verified. The other is bytes that rot on
    the disk beneath the kernel; the next process that reads the file finds those.

    Hashing in parallel instead is no help: BLAKE3's pool of threads does not survive a fork, so a child would wait for
    it for ever, and it gains nothing below several MiB.
    """

    SETTLED_NS = 100_000_000
    LIMIT = 4096

    def __init__(self) -> None:
        self._files: BoundedDict[str, Identity] = BoundedDict(self.LIMIT)

    def read(self, key: bytes, path: str, file: int, status: os.stat_result) -> tuple[Entry | None, bytes]:
        """The entry of `key` in an open file and its checksum; None where the file is not a whole record of `key`."""
        head = read_head(file, status.st_size)
        if head is None or head.key != key or head.size != status.st_size:
            return None, b""
        value = _read_exactly(file, head.value_size, head.value_at)
        seen = identity(status)
        if self._files.get(path) != seen or identity(os.fstat(file)) != seen:
            if not head.is_valid(value):
                return None, b""
            if abs(time.time_ns() - status.st_ctime_ns) > self.SETTLED_NS:
                self._files[path] = seen
        return head.entry(value), head.checksum


def identity(status: os.stat_result) -> Identity:
    """What changes whenever a file is written, replaced or given another age."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_head(file: int, file_size: int) -> Head | None:
    """The head of the record in an open file; None if it is not one of ours."""
    start = os.pread(file, _HEAD_SIZE, 0)
    size = head_size(start)
    if size is None or size > file_size:
        return None
    if size > len(start):
        start = os.pread(file, size, 0)
    return head_of(start)


def _read_exactly(file: int, size: int, at: int) -> bytes:
    value = os.pread(file, size, at)
    while len(value) < size:  # the kernel gives at most 2 GiB at a time
        more = os.pread(file, size - len(value), at + len(value))
        if not more:
            break
        value += more
    return value
