"""The ranges of inode and entry numbers, in one place. Every number that is given out comes from one of these.

| from | what |
| --- | --- |
| 1 | the root |
| 2 | every other inode of the catalog, numbered in order of creation |
| `VIRTUAL_BASE` | inodes that exist in memory only and are never in the catalog: |
| · `REPORT_INO` | the `.kcachefs` folder, then a snapshot of a report each |
| · `SHARED_INO` | the `.shared` folder of private mounts |
| · `LINK_BASE` | the namespaces of private mounts, which are links there |
| · `LOCK_BASE` to `LOCK_END` | locks of read-only mounts; `LOCK_FOLDER` is set in the number of a folder for them |
| `GROUP_BASE` | not inodes: entries that are groups of files. The entry of a folder has the folder's inode number |
| `HANDLE_BASE` | not inodes: handles of files that pyfuse3 opened for writing; a smaller handle is an inode's number |
| `SHOWN_BASE` | not inodes: set in each number that a private mount shows for an inode of the catalog |
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
"""Bits of an alias that hold the folder's own number; the bits above hold the number of the user's root."""


def above_earlier_workers(base: int) -> int:
    """A first number that no earlier worker of the mount has reached: the kernel may still know what they made.

    It is taken from the monotonic clock, in microseconds: nobody can set that back, and no mount outlives a boot.
    """
    return base + time.monotonic_ns() // 1000


def alias(under: int, folder: int) -> int:
    """The number under which a user sees a folder of the base; `under` is any alias of that user's."""
    return ALIAS_BASE | (under & ~ALIAS_BASE) >> ALIAS_BITS << ALIAS_BITS | folder


def first_alias(root: int, folder: int) -> int:
    """The same, from the user's root."""
    return alias(root << ALIAS_BITS, folder)


def aliased(ino: int) -> int:
    """The folder of the base that an alias stands for."""
    return ino & ((1 << ALIAS_BITS) - 1)
