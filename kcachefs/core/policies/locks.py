"""Locks that exist in memory only: empty files, and folders for them, that go when nobody holds them any more.

The kernel does the locking itself; all that a lock needs from us is a name and an inode. Of a lock that it did not
make, the next worker needs to know only whether it is a folder, and the inode number says that.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from kcachefs.core.caller import Caller
from kcachefs.core.nodes import new_inode
from kcachefs.errors import FsError
from kcachefs.store.inode_numbers import LOCK_BASE, LOCK_FOLDER, ROOT_INO, above_earlier_workers
from kcachefs.store.records import Inode

LOCKS_MAX = 4096
"""Locks, and folders for them, that one user, or the users of one tenant, may have at a time."""
LOCKS_KEPT = LOCKS_MAX // 2
"""Above this many, each new lock makes the kernel drop the oldest that nobody has open: by itself the kernel keeps
names until it needs the memory."""


@dataclass
class _Lock:
    node: Inode
    place: tuple[int, bytes]
    lookups: int = 0


class MemoryLocks:
    """Locks by inode and by name. The engine's thread only."""

    def __init__(
        self,
        account_of: Callable[[int], int] = lambda uid: uid,
        name_gone: Callable[[int, bytes], None] = lambda parent, name: None,
    ) -> None:
        self._account_of = account_of
        self._name_gone = name_gone
        self._locks: dict[int, _Lock] = {}
        self._names: dict[tuple[int, bytes], int] = {}
        self._made: dict[int, dict[int, None]] = {}
        """The locks of each account, in the order in which the kernel is asked to drop them."""
        self._next = above_earlier_workers(LOCK_BASE)

    def find(self, parent: int, name: bytes) -> int | None:
        return self._names.get((parent, name))

    def make(self, caller: Caller, parent: int, name: bytes, mode: int) -> tuple[int, Inode]:
        """Make a lock, or a folder for locks, which the kernel then holds."""
        if (parent, name) in self._names:
            raise FsError(errno.EEXIST)
        account = self._account_of(caller.uid)
        made = self._made.setdefault(account, {})
        if len(made) >= LOCKS_MAX:
            raise FsError(errno.ENOSPC, f"user {caller.uid} has too many locks in memory")
        ino = self._next | (LOCK_FOLDER if stat.S_ISDIR(mode) else 0)
        self._next += 1
        node = _new(ino, caller.uid, caller.gid, parent)
        self._locks[ino] = _Lock(node, (parent, name))
        self._names[parent, name] = ino
        made[ino] = None
        if len(made) > LOCKS_KEPT:
            self._have_oldest_let_go(made)
        return self.hold(ino), node

    def _have_oldest_let_go(self, made: dict[int, None]) -> None:
        """Have the kernel drop two locks for each new one, so that fewer remain. An open lock gets its turn again."""
        for ino in list(islice(made, 2)):
            made[ino] = made.pop(ino)
            place = self._locks[ino].place
            if not ino & LOCK_FOLDER and self._names.get(place) == ino:
                self._name_gone(*place)

    def hold(self, ino: int) -> int:
        """Count one more reference that the kernel holds to a lock. Returns the inode."""
        self._locks[ino].lookups += 1
        return ino

    def remove(self, caller: Caller, parent: int, name: bytes) -> None:
        """Remove a name: only the user who made it may, and root."""
        maker = self._locks[self._names[parent, name]].node.uid
        if caller.uid not in (0, maker):
            raise FsError(errno.EPERM, f"the lock {name!r} belongs to user {maker}")
        del self._names[parent, name]

    def forget(self, ino: int, count: int) -> None:
        """The kernel dropped references to a lock. A lock that it no longer knows is free, and its name goes too."""
        lock = self._locks.get(ino)
        if lock is None:
            return
        lock.lookups -= count
        if lock.lookups <= 0:
            del self._locks[ino]
            account = self._account_of(lock.node.uid)
            del self._made[account][ino]
            if not self._made[account]:
                del self._made[account]
            if self._names.get(lock.place) == ino:
                del self._names[lock.place]

    def node(self, ino: int) -> Inode:
        """A lock's attributes. A lock that an earlier worker made is still a lock, whether free or held."""
        lock = self._locks.get(ino)
        return lock.node if lock is not None else _new(ino, 0, 0, ROOT_INO)


def _new(ino: int, uid: int, gid: int, parent: int) -> Inode:
    """The inode of a lock, or of a folder for locks, open to all."""
    if not ino & LOCK_FOLDER:
        return new_inode(stat.S_IFREG | 0o666, uid, gid, parent)
    node = new_inode(stat.S_IFDIR | 0o777, uid, gid, parent)
    node.nlink = 2
    return node
