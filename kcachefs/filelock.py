"""File locks whose file may be removed: take the flock, then check that the path still leads to the locked file.

Lock files that are removed after use have a race: between opening and locking one, its last holder may remove it, and
the next opener creates a new one. Both would then hold "the" lock. So after locking, we compare the locked file with
the file that the path leads to now, and start over if they differ. Remove a lock file only while you hold its lock.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from typing import TypeVar

P = TypeVar("P", bound="str | os.PathLike[str]")


def open_locked(
    path: P,
    flags: int,
    how: int,
    mode: int = 0o600,
    *,
    opener: Callable[[P, int, int], int] = os.open,
    closer: Callable[[int], None] = os.close,
) -> int:
    """Open `path` with `flags`, lock it as `how` says (fcntl.LOCK_…), and return the descriptor; close it to unlock.

    With LOCK_NB, a lock that somebody else holds raises BlockingIOError. Every other error is open's or flock's own.
    `opener` and `closer` replace os.open and os.close, and can keep track of a descriptor that waits for the lock.
    """
    while True:
        fd = opener(path, flags, mode)
        try:
            if lock(fd, path, how):
                return fd
        except BaseException:
            closer(fd)
            raise
        closer(fd)


def lock(fd: int, path: str | os.PathLike[str], how: int) -> bool:
    """Lock `fd`, opened at `path`. False if `path` now leads to another file: then close it and open again."""
    fcntl.flock(fd, how)
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), named)
