"""The slot file: bytes of small files that are not sealed yet, each file in a slot of one large file.

Making a file costs the disk's filesystem a journal transaction, which waits while another one is being committed, and
our own folds cause commits all the time. A slot costs nothing: it is a range of a file that exists already and keeps
its blocks. Beyond the end of its small file, a slot holds old bytes; code that makes the file larger zeroes the gap.

Slots are handed out by number. Any thread may read and write the slots it was given; `take` and `free` use a lock.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from kcachefs import libc
from kcachefs.errors import or_no_space

SLOT_SIZE = 1 << 20
"""Bytes in a slot; a larger file gets a spool file of its own."""
KEEP = 256
"""How many free slots keep their blocks for the next file; any other free slot gives them back."""
_BLOCK = 4096
"""The smallest piece that can be given back to the disk; after `keep_little`, a free slot keeps no more than this."""
_ZEROS = bytes(64 << 10)
_PUNCH = libc.FALLOC_FL_PUNCH_HOLE | libc.FALLOC_FL_KEEP_SIZE


class SlotFile:
    """The slots of the file at `path`. `used` lists the slots that have a record in the catalog."""

    def __init__(self, path: Path, used: Iterable[int] = ()) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._keeps_little = False
        self._keeps_blocks = True
        """Whether any free slot may have blocks."""
        taken = set(used)
        self._next = max(taken, default=-1) + 1
        self._free = [slot for slot in range(self._next) if slot not in taken]
        self._unknown = len(self._free)
        """How many free slots, at the end of the list, may still have blocks that an earlier process left. Of the slots
        freed since then, the last `KEEP` may have some."""
        if not taken:
            os.ftruncate(self._fd, 0)

    def keep_little(self) -> None:
        """From now on a slot's next file may be another user's, who must not hold more blocks than the file needs."""
        self._keeps_little = True

    def take(self) -> int:
        """The number of a slot that nobody uses."""
        with self._lock:
            if self._free:
                return self._free.pop()
            self._next += 1
            return self._next - 1

    def free(self, slot: int) -> None:
        """Take a slot back. The caller has made sure that no record on disk refers to the slot any more."""
        with self._lock:
            if len(self._free) < KEEP:
                if self._keeps_little:
                    self._punch(slot, _BLOCK)
                self._free.append(slot)
                self._keeps_blocks = True
                return
            self._punch(slot)
            self._free.insert(0, slot)

    def trim(self) -> None:
        """Give the blocks of every free slot back to the disk."""
        with self._lock:
            if not self._keeps_blocks:
                return
            self._keeps_blocks = False
            if len(self._free) == self._next:
                self._free, self._next = [], 0
                os.ftruncate(self._fd, 0)
            for slot in self._free[-max(KEEP, self._unknown) :]:
                self._punch(slot)
            self._unknown = 0

    def shrunk(self, slot: int, size: int) -> None:
        """The file in a slot now has only `size` bytes: give back the blocks after them."""
        if size <= SLOT_SIZE - _BLOCK:
            self._punch(slot, -(-size // _BLOCK) * _BLOCK)

    def _punch(self, slot: int, start: int = 0) -> None:
        # Some filesystems cannot punch holes. The slot then keeps its blocks, and the next file uses them.
        with contextlib.suppress(OSError):
            libc.fallocate(self._fd, _PUNCH, slot * SLOT_SIZE + start, SLOT_SIZE - start)

    def read(self, slot: int, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, slot * SLOT_SIZE + offset)

    def write(self, slot: int, offset: int, data: bytes | memoryview) -> None:
        position = slot * SLOT_SIZE + offset
        try:
            written = os.pwrite(self._fd, data, position)
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], position + written)
        except OSError as error:
            raise or_no_space(error, self._path) from error

    def zero(self, slot: int, start: int, end: int) -> None:
        while start < end:
            step = min(len(_ZEROS), end - start)
            self.write(slot, start, _ZEROS[:step])
            start += step

    def slack_bytes(self) -> int:
        """Bytes of the blocks that free slots keep for future files."""
        with self._lock:
            free = list(self._free) if self._keeps_blocks else []
        return sum(self._data_bytes(slot) for slot in free)

    def _data_bytes(self, slot: int) -> int:
        position, end, total = slot * SLOT_SIZE, (slot + 1) * SLOT_SIZE, 0
        with contextlib.suppress(OSError):  # ENXIO: no data from here on
            while position < end and (start := os.lseek(self._fd, position, os.SEEK_DATA)) < end:
                position = min(end, os.lseek(self._fd, start, os.SEEK_HOLE))
                total += position - start
        return total

    def allocated_bytes(self) -> int:
        return os.fstat(self._fd).st_blocks * 512

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)
        self._fd = -1
