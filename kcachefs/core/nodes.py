"""Inodes: read through a bounded cache, numbered, changed in transactions, and kept alive while anything needs them.

An inode lives while it has a name, a lookup that the kernel has not forgotten, or an open handle. The kernel's count is
known only in memory; an inode without a name stands in the catalog's orphan table until it is let go, so that a daemon
that starts after a kill finds it there.

A worker that takes over from a dead one does not know the counts so far. Of the inodes that were there before it, none
goes with its last name; it goes when the kernel is known to have let go of it. That is either told by a FORGET of more
references than were counted since, which must then be all of them, or asked.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable

from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.records import (
    META_INO,
    NO_DIGEST,
    ROOT_INO,
    Inode,
    inode_key,
    number_of,
    orphan_key,
    pack_number,
    unpack_number,
)

CACHE_MAX = 16384
"""Decoded inodes kept in memory: about 10 MiB."""
_INO_BLOCK = 1024
"""Inode numbers reserved at a time: one more record per thousand creations."""


class Nodes:
    """All inodes of one filesystem."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._catalog = store.catalog
        self._cache: dict[int, Inode] = {}
        raw = store.catalog.get(META_INO)
        self._next_ino = self._reserved_ino = unpack_number(raw) if raw is not None else ROOT_INO + 1
        self._uncertain_below = 0
        self.lookups: dict[int, int] = {}
        """References that the kernel holds, by inode. Only the engine's thread touches it."""
        self.handles: dict[int, int] = {}
        """New files that may still be in the making, each with the entry that it was made in."""
        self.orphans = set(map(number_of, store.catalog.keys(b"x")))
        """Inodes without a name that something still uses."""
        self.on_gone: Callable[[Transaction, int, Inode], None] = lambda txn, ino, node: None
        """Called inside the transaction that removes an inode for good: lets go of its bytes."""
        self.on_orphaned: Callable[[Transaction, Inode], None] = lambda txn, node: None
        """Called inside the transaction that takes the last name of an inode that lives on: it is in no entry."""
        self.ask_kernel: Callable[[int], bool] = lambda ino: True
        """Whether the kernel knows an inode. Never to be called by the thread that answers requests."""

    def get(self, ino: int) -> Inode:
        """The inode, decoded. It is shared: change it only inside `change`, and `save` it there."""
        node = self._cache.get(ino)
        return node if node is not None else self._load(ino)

    def _load(self, ino: int) -> Inode:
        with self._catalog.lock:  # what was read must not come into the cache behind a change that was made meanwhile
            node = self._cache.get(ino)
            if node is None:
                raw = self._catalog.get(inode_key(ino))
                if raw is None:
                    raise FsError(errno.ENOENT, f"inode {ino} is gone")
                node = self.remember(ino, Inode.unpack(raw))
            return node

    def get_ready(self, inos: Iterable[int]) -> None:
        """These will be asked for: look for all of them at once."""
        with self._catalog.lock:
            missing = {inode_key(ino): ino for ino in inos if ino not in self._cache}
            if missing:
                for key, raw in self._catalog.get_all(missing).items():
                    self.remember(missing[key], Inode.unpack(raw))

    def exists(self, ino: int) -> bool:
        return ino in self._cache or self._catalog.get(inode_key(ino)) is not None

    def remember(self, ino: int, node: Inode) -> Inode:
        """Put it into the cache. The catalog's lock is held."""
        cache = self._cache
        if len(cache) >= CACHE_MAX:
            for old in list(cache)[: CACHE_MAX // 8]:
                cache.pop(old, None)
        cache[ino] = node
        return node

    def change(self) -> Transaction:
        """A mutation: `with nodes.change() as txn`. When it fails, the cached nodes it touched are dropped with it."""
        return self._store.transaction(self._cache.clear)

    def save(self, txn: Transaction, ino: int, node: Inode) -> None:
        self._cache[ino] = node
        txn.put(inode_key(ino), node.pack())

    def allocate(self, txn: Transaction) -> int:
        ino = self._next_ino
        self._next_ino += 1
        if ino >= self._reserved_ino:
            self._reserved_ino = ino + _INO_BLOCK
            txn.undo(self._unreserve)
            txn.put(META_INO, pack_number(self._reserved_ino))
        return ino

    def _unreserve(self) -> None:
        """What was to be reserved is not: a number above it would be given out again after a restart."""
        self._reserved_ino = 0

    def drop_link(self, txn: Transaction, ino: int, node: Inode) -> None:
        """One name less; with the last one the inode goes, or becomes an orphan while something holds it."""
        node.nlink = 0 if node.is_dir else node.nlink - 1
        if node.nlink > 0:
            self.save(txn, ino, node)
        elif self.in_use(ino) or ino < self._uncertain_below:
            self.on_orphaned(txn, node)
            self.save(txn, ino, node)
            txn.put(orphan_key(ino), b"")
            txn.undo(lambda: self.orphans.discard(ino))
            self.orphans.add(ino)
        else:
            self._remove(txn, ino, node)

    def resume(self) -> None:
        """Take over from a worker that died: what the kernel holds of the inodes so far is not known."""
        self._uncertain_below = self._next_ino

    def in_use(self, ino: int) -> bool:
        """Whether the kernel knows it, as it does every inode that is open or mapped anywhere."""
        return ino in self.lookups

    def is_held(self, ino: int) -> bool:
        """The same, when the counts may have died with a worker. Not for the thread that answers requests."""
        return ino in self.lookups or (ino < self._uncertain_below and self.ask_kernel(ino))

    def forget(self, ino: int, count: int) -> None:
        """The kernel lets go of `count` references."""
        left = self.lookups.get(ino, 0) - count
        if left > 0:
            self.lookups[ino] = left
        else:
            self.lookups.pop(ino, None)
            if left < 0 or ino >= self._uncertain_below:
                self.let_go(ino)

    def let_go_of_orphans(self) -> int:
        """Remove the orphans that the kernel forgot without our counting it, or when the disk was too full for it."""
        gone = [ino for ino in list(self.orphans) if not self.is_held(ino)]
        for ino in gone:
            self.let_go(ino)
        return len(gone)

    def let_go(self, ino: int) -> None:
        """Something stopped using an inode: if it has no name either, it goes now."""
        if ino not in self.orphans:
            return
        with self.change() as txn:
            if ino not in self.orphans or self.in_use(ino):
                return
            txn.undo(lambda: self.orphans.add(ino))
            self.orphans.discard(ino)
            txn.delete(orphan_key(ino))
            self._remove(txn, ino, self.get(ino))

    def _remove(self, txn: Transaction, ino: int, node: Inode) -> None:
        self.on_gone(txn, ino, node)
        txn.delete(inode_key(ino))
        self._cache.pop(ino, None)


def new_inode(mode: int, uid: int, gid: int, parent: int) -> Inode:
    now = time.time_ns()
    return Inode(mode, 1, uid, gid, 0, 0, now, now, now, parent, 0, 0, 0, 0, NO_DIGEST)
