"""Locks that exist in memory only: empty files, and folders for them, that go when nobody holds them any more.

The kernel does the locking itself; all that a lock needs of us is a name and an inode. The next worker has to know only
one thing of a lock that it did not make, and that is in the number: whether it is a folder.
"""

from __future__ import annotations

import errno
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from kcachefs.core.caller import Caller
from kcachefs.core.nodes import new_inode
from kcachefs.errors import FsError
from kcachefs.store.inode_numbers import LOCK_BASE, LOCK_FOLDER, ROOT_INO, above_earlier_workers
from kcachefs.store.records import Inode

LOCKS_MAX = 4096
"""Locks, and folders for them, that one user, or the users of one tenant, may have made."""


@dataclass
class _Lock:
    node: Inode
    place: tuple[int, bytes]
    lookups: int = 0


class MemoryLocks:
    """Locks by inode and by name. The engine's thread only."""

    def __init__(self, account_of: Callable[[int], int] = lambda uid: uid) -> None:
        self._account_of = account_of
        self._locks: dict[int, _Lock] = {}
        self._names: dict[tuple[int, bytes], int] = {}
        self._made: Counter[int] = Counter()
        """How many there are, by the account of who made them."""
        self._next = above_earlier_workers(LOCK_BASE)

    def find(self, parent: int, name: bytes) -> int | None:
        return self._names.get((parent, name))

    def make(self, caller: Caller, parent: int, name: bytes, mode: int) -> tuple[int, Inode]:
        """A new lock, or a folder for some, which the kernel then holds."""
        if (parent, name) in self._names:
            raise FsError(errno.EEXIST)
        account = self._account_of(caller.uid)
        if self._made[account] >= LOCKS_MAX:
            raise FsError(errno.ENOSPC, f"user {caller.uid} has too many locks in memory")
        ino = self._next | (LOCK_FOLDER if stat.S_ISDIR(mode) else 0)
        self._next += 1
        node = _new(ino, caller.uid, caller.gid, parent)
        self._locks[ino] = _Lock(node, (parent, name))
        self._names[parent, name] = ino
        self._made[account] += 1
        return self.hold(ino), node

    def hold(self, ino: int) -> int:
        """The kernel is told of a lock, and holds one more reference to it. Returns the inode."""
        self._locks[ino].lookups += 1
        return ino

    def remove(self, caller: Caller, parent: int, name: bytes) -> None:
        """Take a name away: the user who made it may, and root."""
        maker = self._locks[self._names[parent, name]].node.uid
        if caller.uid not in (0, maker):
            raise FsError(errno.EPERM, f"the lock {name!r} is user {maker}'s")
        del self._names[parent, name]

    def forget(self, ino: int, count: int) -> None:
        """The kernel lets go of a lock. One that nobody knows is free, and its name goes too."""
        lock = self._locks.get(ino)
        if lock is None:
            return
        lock.lookups -= count
        if lock.lookups <= 0:
            del self._locks[ino]
            account = self._account_of(lock.node.uid)
            self._made[account] -= 1
            if not self._made[account]:
                del self._made[account]
            if self._names.get(lock.place) == ino:
                del self._names[lock.place]

    def node(self, ino: int) -> Inode:
        """Its attributes. A lock that an earlier worker made is still one: it is free, or somebody holds it."""
        lock = self._locks.get(ino)
        return lock.node if lock is not None else _new(ino, 0, 0, ROOT_INO)


def _new(ino: int, uid: int, gid: int, parent: int) -> Inode:
    """A lock, or a folder for some, open to all."""
    if not ino & LOCK_FOLDER:
        return new_inode(stat.S_IFREG | 0o666, uid, gid, parent)
    node = new_inode(stat.S_IFDIR | 0o777, uid, gid, parent)
    node.nlink = 2
    return node
