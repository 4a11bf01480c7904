"""The ranges of inode and entry numbers, in one place. Every number that is assigned comes from one of these ranges.

| from | what |
| --- | --- |
| 1 | the root |
| 2 | every other inode of the catalog, numbered in order of creation |
| `VIRTUAL_BASE` | inodes that exist in memory only and are never in the catalog: |
| · `REPORT_INO` | the `.kcachefs` folder, followed by a number for each snapshot of a report |
| · `SHARED_INO` | the `.shared` folder of private mounts |
| · `LINK_BASE` | the namespaces in private mounts, which appear there as links |
| · `LOCK_BASE` to `LOCK_END` | locks of read-only mounts; the bit `LOCK_FOLDER` marks a folder of locks |
| `GROUP_BASE` | not inodes: entries that are groups of files. A folder's entry has the folder's inode number |
| `HANDLE_BASE` | not inodes: handles of files that pyfuse3 opened for writing; a smaller handle is an inode's number |
| `SHOWN_BASE` | not inodes: a bit set in each number that a private mount shows for an inode of the catalog |
| `ALIAS_BASE` | folders of a private mount's base as one user sees them: the user's root, then the folder's number |
"""

from __future__ import annotations

import time

ROOT_INO = 1
VIRTUAL_BASE = 1 << 61
REPORT_INO = VIRTUAL_BASE
SHARED_INO = VIRTUAL_BASE | 1 << 58
LINK_BASE = VIRTUAL_BASE | 1 << 59
LOCK_BASE = VIRTUAL_BASE | 1 << 60
LOCK_END = LOCK_BASE + (1 << 60)
LOCK_FOLDER = 1 << 59
GROUP_BASE = 1 << 62
HANDLE_BASE = 1 << 62
SHOWN_BASE = VIRTUAL_BASE >> 1
ALIAS_BASE = 1 << 63
ALIAS_BITS = 32
"""The low bits of an alias that hold the folder's number; the bits above them hold the number of the user's root."""


def above_earlier_workers(base: int) -> int:
    """A first number above all that earlier workers of the mount used: the kernel may still know those numbers.

    It is taken from the monotonic clock, in microseconds: nobody can set that clock back, and no mount outlives a boot.
    """
    return base + time.monotonic_ns() // 1000


def alias(under: int, folder: int) -> int:
    """The number under which a user sees a folder of the base; `under` is any alias of that user's."""
    return ALIAS_BASE | (under & ~ALIAS_BASE) >> ALIAS_BITS << ALIAS_BITS | folder


def first_alias(root: int, folder: int) -> int:
    """The same, given the user's root instead of an alias."""
    return alias(root << ALIAS_BITS, folder)


def aliased(ino: int) -> int:
    """The folder of the base that an alias stands for."""
    return ino & ((1 << ALIAS_BITS) - 1)
