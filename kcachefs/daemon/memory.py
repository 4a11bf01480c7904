"""Keeps the daemon's resident memory small, however large its mapped catalog is and whatever it allocates and frees.

Resident pages of a mapped file count as the daemon's memory, although they belong to the page cache and can be
reclaimed at any time; monitoring tools cannot tell the difference. So when many have accumulated they are unmapped: the
pages stay in the page cache, and the next access is a minor fault.

Freed memory stays resident, too: glibc gives each thread an arena of its own and keeps freed memory in it, and buffers
of all sizes leave holes. So there are few arenas, large buffers are mapped and unmapped one by one, and once much was
freed, the holes of the heap are given back to the kernel.
"""

from __future__ import annotations

import os
from pathlib import Path

from kcachefs import libc

MAPPED_MAX = 160 << 20
"""How many resident bytes of mapped files are tolerated."""

HEAP_GROWTH = 8 << 20
"""How much free memory may be resident before it is returned, which stops all threads for a moment."""
LOOK_EVERY = 3
"""A process that has not grown looks at its free memory once in so many times: many holes take milliseconds."""
ARENAS_MAX = 2
LARGE = 512 << 10
"""Buffers from this size on are never part of the heap; by itself glibc would raise the threshold to 32 MiB."""
TOP_MAX = 4 << 20
"""How much free memory the end of the heap may keep."""


def trim(mapped: Path, limit: int = MAPPED_MAX) -> bool:
    """Unmap the resident pages of a file that is mapped read-only, if there are more than `limit`. Any thread."""
    if resident_file_bytes() <= limit:
        return False
    for start, end in _read_only_mappings(mapped):
        libc.madvise(start, end - start, libc.MADV_DONTNEED)
    return True


class Heap:
    """Keeps the resident memory of this process close to what it uses. One thread at a time.

    Memory that is resident and not in use is free memory, and what does not come from malloc: stacks, and most of
    Python's objects. What a trim leaves of it is taken for the latter.
    """

    def __init__(self) -> None:
        self._left = self._resident = self._calls = 0

    def trim(self, growth: int = HEAP_GROWTH) -> bool:
        """Give free memory back if that much was freed since the last time. To be called every second or so."""
        resident, self._calls = resident_private_bytes(), self._calls + 1
        if resident < self._resident + growth and self._calls < LOOK_EVERY:
            return False
        self._resident, self._calls = resident, 0
        unused = resident - libc.malloced_bytes()
        if unused < self._left + growth:
            self._left = min(self._left, unused)
            return False
        libc.malloc_trim()
        self._left = resident_private_bytes() - libc.malloced_bytes()
        return True


def bound_heap() -> None:
    """Set how this process allocates memory. Call this before it starts threads."""
    libc.mallopt(libc.M_ARENA_MAX, ARENAS_MAX)
    libc.mallopt(libc.M_MMAP_THRESHOLD, LARGE)
    libc.mallopt(libc.M_TRIM_THRESHOLD, TOP_MAX)


def resident_private_bytes() -> int:
    """How much memory that no file backs is resident in this process."""
    return _pages(1) - _pages(2)


def resident_file_bytes() -> int:
    """How much memory of mapped files is resident in this process."""
    return _pages(2)


def resident_bytes() -> int:
    """How much memory is resident in this process."""
    return _pages(1)


def _pages(column: int) -> int:
    return int(Path("/proc/self/statm").read_text().split()[column]) * os.sysconf("SC_PAGESIZE")


def _read_only_mappings(mapped: Path) -> list[tuple[int, int]]:
    """The address ranges where a file is mapped shared and read-only, so that dropping pages loses nothing."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape", newline="\n") as maps:
        for line in maps:
            addresses, rights, _, _, _, *path = line.rstrip("\n").split(maxsplit=5)
            if path == [str(mapped)] and rights.startswith("r--s"):
                start, _, end = addresses.partition("-")
                found.append((int(start, 16), int(end, 16)))
    return found
