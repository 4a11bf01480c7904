"""Inodes: read through a bounded cache, numbered, changed in transactions; and who still refers to each.

An inode lives while it has a name, or a lookup that the kernel has not forgotten; the kernel forgets no inode that is
open. Lookups are counted only in memory. An inode without a name stays in the catalog's orphan table until nothing uses
it, so that a daemon that starts after a kill finds it there. What happens at the end of an inode's life is in
`lifetimes.py`.

A worker that takes over from a dead one does not know the counts so far. So an inode that is older than the worker is
removed neither with its last name nor after a FORGET, but only once the kernel says, when asked, that it does not know
the inode. Even a FORGET of more references than this worker has counted proves nothing: it may have waited in the
kernel while a lookup overtook it.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import time
from collections.abc import Iterable, Iterator

from kcachefs.bounded import BoundedDict
from kcachefs.core.kernel import Kernel
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.records import (
    META_INO,
    NO_DIGEST,
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


class Fate(enum.Enum):
    """What becomes of an inode that lost a name."""

    LIVES = "has another name"
    ORPHANED = "has no name, and something still uses it"
    GONE = "nothing refers to it"


LIVES, ORPHANED, GONE = Fate.LIVES, Fate.ORPHANED, Fate.GONE
_set = dict.__setitem__


class Nodes:
    """All inodes of one filesystem."""

    def __init__(self, store: Store, kernel: Kernel) -> None:
        self._store = store
        self._catalog = store.catalog
        self._kernel = kernel
        self.lock = store.catalog.lock
        self._cache: BoundedDict[int, Inode] = BoundedDict(CACHE_MAX)
        raw = store.catalog.get(META_INO)
        self._next_ino = self._reserved_ino = unpack_number(raw) if raw is not None else ROOT_INO + 1
        self._uncertain_below = 0
        """Inodes below this number may be known to the kernel from an earlier worker, and then `lookups` lacks them."""
        self.lookups: dict[int, int] = {}
        """References that the kernel holds, by inode. Changed by the engine's thread, and under the lock by lookups
        that waited for a remote tier."""
        self.handles: dict[int, int] = {}
        """Open handles by inode, where the engine is told of opens."""
        self.forgotten_since_probe: set[int] | None = None
        """Inodes that the kernel let go of since the evictor began to probe; None while it does not probe."""
        self.cut_off: set[int] = set()
        """Entries, and inodes of other folders, whose names the kernel was told to drop, so that we see if they are in
        use. It has not looked them up since."""
        self.orphans = set(map(number_of, store.catalog.keys(b"x")))
        """Inodes without a name that something still uses."""

    # --- reading and changing -----------------------------------------------------------------------------------------

    def get(self, ino: int) -> Inode:
        """The inode, decoded. It is shared: change it only inside `change`, and `save` it there."""
        node = self._cache.get(ino)
        return node if node is not None else self._load(ino)

    def _load(self, ino: int) -> Inode:
        with self._catalog.lock:  # a record read before a change must not enter the cache after it
            node = self._cache.get(ino)
            if node is None:
                raw = self._catalog.get(inode_key(ino))
                if raw is None:
                    raise FsError(errno.ENOENT, f"inode {ino} is gone")
                cache, node = self._cache, Inode.unpack(raw)
                if len(cache) < CACHE_MAX:  # the same as below, without a call
                    _set(cache, ino, node)
                else:
                    cache[ino] = node
            return node

    def prefetch(self, inos: Iterable[int]) -> None:
        """Read all of these inodes at once, because they will be needed."""
        with self._catalog.lock:
            missing = {inode_key(ino): ino for ino in inos if ino not in self._cache}
            if missing:
                for key, raw in self._catalog.get_all(missing).items():
                    self._cache[missing[key]] = Inode.unpack(raw)

    def exists(self, ino: int) -> bool:
        return ino in self._cache or self._catalog.get(inode_key(ino)) is not None

    def change(self) -> Transaction:
        """A mutation: `with nodes.change() as txn`. If it fails, the cached inodes are dropped with it."""
        return self._store.transaction(self._cache.clear)

    def save(self, txn: Transaction, ino: int, node: Inode) -> None:
        cache = self._cache
        if len(cache) < CACHE_MAX or ino in cache:  # nothing has to be dropped for it
            _set(cache, ino, node)
        else:
            cache[ino] = node
        txn.put(inode_key(ino), node.pack())

    def delete(self, txn: Transaction, ino: int) -> None:
        txn.delete(inode_key(ino))
        self._cache.pop(ino, None)

    def allocate(self, txn: Transaction) -> int:
        """A new inode number."""
        ino = self._next_ino
        self._next_ino += 1
        if ino >= self._reserved_ino:
            self._reserved_ino = ino + _INO_BLOCK
            txn.undo(self._unreserve)
            txn.put(META_INO, pack_number(self._reserved_ino))
        return ino

    @property
    def next_ino(self) -> int:
        """The number of the next inode; all existing ones have smaller numbers."""
        return self._next_ino

    def _unreserve(self) -> None:
        """The reservation failed: a number above it would be given out again after a restart."""
        self._reserved_ino = 0

    # --- who refers to an inode ---------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Take over from a worker that died: the kernel's references to the inodes so far are not known."""
        self._uncertain_below = self._next_ino

    def hold(self, ino: int) -> int:
        """Count one more reference to an inode, which the kernel holds until it forgets it. Returns the inode."""
        with self.lock:  # an inode that another thread is removing is gone before it is held, or seen to be held
            self.lookups[ino] = self.lookups.get(ino, 0) + 1
        return ino

    def hold_all(self, inos: Iterable[int]) -> None:
        with self.lock:
            for ino in inos:
                self.lookups[ino] = self.lookups.get(ino, 0) + 1

    def release(self, ino: int, count: int) -> bool:
        """The kernel lets go of `count` references; returns whether it is certain that it holds none any more."""
        with self.lock:  # a lookup that waited for a remote tier calls `hold` in another thread
            left = self.lookups.get(ino, 0) - count
            if left > 0:
                self.lookups[ino] = left
                return False
            self.lookups.pop(ino, None)
        if self.forgotten_since_probe is not None:
            self.forgotten_since_probe.add(ino)
        return ino >= self._uncertain_below

    @contextlib.contextmanager
    def probing(self) -> Iterator[None]:
        """Within this context, collect in `forgotten_since_probe` the inodes that the kernel lets go of."""
        self.forgotten_since_probe = set()
        try:
            yield
        finally:
            self.forgotten_since_probe = None

    def open_handle(self, ino: int) -> None:
        self.handles[ino] = self.handles.get(ino, 0) + 1

    def close_handle(self, ino: int) -> bool:
        """Returns whether that was the last open handle."""
        left = self.handles.get(ino, 0) - 1
        if left > 0:
            self.handles[ino] = left
            return False
        self.handles.pop(ino, None)
        return True

    def has_references(self, ino: int) -> bool:
        """Whether the kernel knows an inode, as it knows every one that is open or mapped anywhere."""
        return ino in self.lookups

    def is_known(self, ino: int) -> bool:
        """The same, but asks the kernel if the count died with a worker. Not for the thread that answers requests."""
        return ino in self.lookups or (ino < self._uncertain_below and self._kernel.knows(ino))

    def is_cut_off(self, folder: int) -> bool:
        """Whether the kernel may know a folder without a name that leads to it (see `probing.py`)."""
        if folder in self.orphans:
            return True
        try:
            return bool(self.cut_off) and (folder in self.cut_off or self.get(folder).entry in self.cut_off)
        except FsError:  # it is gone
            return False

    def drop_name(self, ino: int, node: Inode) -> Fate:
        """Take one name off an inode, in memory; the caller acts on the result and saves the inode."""
        node.nlink = 0 if node.is_dir else node.nlink - 1
        if node.nlink > 0:
            return LIVES
        return ORPHANED if ino in self.lookups or ino < self._uncertain_below else GONE

    def add_orphan(self, txn: Transaction, ino: int) -> None:
        txn.put(orphan_key(ino), b"")
        txn.undo(lambda: self.orphans.discard(ino))
        self.orphans.add(ino)

    def remove_orphan(self, txn: Transaction, ino: int) -> None:
        txn.undo(lambda: self.orphans.add(ino))
        self.orphans.discard(ino)
        txn.delete(orphan_key(ino))


def new_inode(mode: int, uid: int, gid: int, parent: int) -> Inode:
    now = time.time_ns()
    return Inode(mode, 1, uid, gid, 0, 0, now, now, now, parent, 0, 0, 0, 0, NO_DIGEST)
