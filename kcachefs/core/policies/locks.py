"""Locks that exist in memory only: empty files, and folders for them, which are gone when nobody holds them any more.

The kernel does the locking itself; all that a lock needs of us is a name and an inode.
"""

from __future__ import annotations

import errno
import stat
import time
from dataclasses import dataclass

from kcachefs.core.nodes import new_inode
from kcachefs.core.report import VIRTUAL_BASE
from kcachefs.errors import FsError
from kcachefs.store.records import ROOT_INO, Inode

LOCK_BASE = VIRTUAL_BASE | 1 << 60
LOCK_END = LOCK_BASE + (1 << 60)
LOCKS_MAX = 65536
CONTENT_MAX = 4096
"""A lock may say who holds it; it is no place to keep files."""


@dataclass
class _Lock:
    node: Inode
    place: tuple[int, bytes]
    data: bytes = b""
    lookups: int = 0


class MemoryLocks:
    """Locks by inode and by name. The engine's thread only."""

    def __init__(self) -> None:
        self._locks: dict[int, _Lock] = {}
        self._names: dict[tuple[int, bytes], int] = {}
        # The kernel may still know locks that an earlier worker made: their numbers are not given out again.
        self._next = LOCK_BASE + (time.time_ns() >> 10)

    def find(self, parent: int, name: bytes) -> int | None:
        return self._names.get((parent, name))

    def make(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> tuple[int, Inode]:
        if (parent, name) in self._names:
            raise FsError(errno.EEXIST)
        if len(self._locks) >= LOCKS_MAX:
            raise FsError(errno.ENOSPC, "too many locks in memory")
        ino = self._next
        self._next += 1
        open_to_all = 0o777 if stat.S_ISDIR(mode) else 0o666
        node = new_inode(stat.S_IFMT(mode) | open_to_all, uid, gid, parent)
        if node.is_dir:
            node.nlink = 2
        self._locks[ino] = _Lock(node, (parent, name))
        self._names[parent, name] = ino
        return self.found(ino), node

    def found(self, ino: int) -> int:
        self._locks[ino].lookups += 1
        return ino

    def remove(self, parent: int, name: bytes) -> None:
        del self._names[parent, name]

    def forget(self, ino: int, count: int) -> None:
        """The kernel lets go of it. A lock that nobody knows is free, and its name may as well be gone."""
        lock = self._locks.get(ino)
        if lock is None:
            return
        lock.lookups -= count
        if lock.lookups <= 0:
            del self._locks[ino]
            if self._names.get(lock.place) == ino:
                del self._names[lock.place]

    def node(self, ino: int) -> Inode:
        """Its attributes. A lock that an earlier worker made is still one: it is free, or its holders still have it."""
        lock = self._locks.get(ino)
        return lock.node if lock is not None else new_inode(stat.S_IFREG | 0o666, 0, 0, ROOT_INO)

    def read(self, ino: int, offset: int, size: int) -> bytes:
        lock = self._locks.get(ino)
        return lock.data[offset : offset + size] if lock is not None else b""

    def write(self, ino: int, offset: int, data: bytes) -> int:
        lock = self._locks.get(ino)
        if offset + len(data) > CONTENT_MAX or lock is None:
            raise FsError(errno.EROFS, "a lock in memory holds a few bytes at most")
        self._resize(lock, max(lock.node.size, offset + len(data)))
        lock.data = lock.data[:offset] + data + lock.data[offset + len(data) :]
        return len(data)

    def truncate(self, ino: int, size: int) -> None:
        lock = self._locks.get(ino)
        if size > CONTENT_MAX:
            raise FsError(errno.EROFS, "a lock in memory holds a few bytes at most")
        if lock is not None:
            self._resize(lock, size)

    def _resize(self, lock: _Lock, size: int) -> None:
        lock.data = lock.data[:size].ljust(size, b"\0")
        lock.node.size = size
