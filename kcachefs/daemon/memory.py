"""Keeps what the daemon has resident small, however large the catalog is that it maps.

Pages of a mapped file count as the daemon's, though they are the page cache's and can be taken back at any time. Who
watches memory does not see the difference. So when many have gathered the mapping is emptied: the pages stay cached,
and the next use of one is a minor fault.
"""

from __future__ import annotations

import os
from pathlib import Path

from kcachefs import libc

MAPPED_MAX = 160 << 20
"""Bytes of files that may be resident before the mapping is emptied."""


def trim(mapped: Path, most: int = MAPPED_MAX) -> bool:
    """Let go of the resident pages of a file that is mapped for reading, if there are more than that. Any thread."""
    if resident_file_bytes() <= most:
        return False
    for start, end in _places_of(mapped):
        libc.madvise(start, end - start, libc.MADV_DONTNEED)
    return True


def resident_file_bytes() -> int:
    """What this process has resident of files."""
    return _pages(2)


def resident_bytes() -> int:
    """What it has resident in all."""
    return _pages(1)


def _pages(column: int) -> int:
    return int(Path("/proc/self/statm").read_text().split()[column]) * os.sysconf("SC_PAGESIZE")


def _places_of(mapped: Path) -> list[tuple[int, int]]:
    """Where a file is mapped, as far as that is for reading alone: only then is nothing lost."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape", newline="\n") as maps:
        for line in maps:
            place, rights, _, _, _, *path = line.rstrip("\n").split(maxsplit=5)
            if path == [str(mapped)] and rights.startswith("r--s"):
                start, _, end = place.partition("-")
                found.append((int(start, 16), int(end, 16)))
    return found
