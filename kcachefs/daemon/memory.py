"""Keeps the daemon's resident memory small, however large its mapped catalog is.

Resident pages of a mapped file count as the daemon's memory, although they belong to the page cache and can be
reclaimed at any time; monitoring tools cannot tell the difference. So when many have accumulated they are unmapped: the
pages stay in the page cache, and the next access is a minor fault.
"""

from __future__ import annotations

import os
from pathlib import Path

from kcachefs import libc

MAPPED_MAX = 160 << 20
"""How many resident bytes of mapped files are tolerated."""


def trim(mapped: Path, limit: int = MAPPED_MAX) -> bool:
    """Unmap the resident pages of a file that is mapped read-only, if there are more than `limit`. Any thread."""
    if resident_file_bytes() <= limit:
        return False
    for start, end in _read_only_mappings(mapped):
        libc.madvise(start, end - start, libc.MADV_DONTNEED)
    return True


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
