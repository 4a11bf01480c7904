"""fsync(2): when it returns, the file survives a power cut, and with it every complete file of its entry.

A synced file is an object in a synced volume, like any sealed file, and has the mark SYNCED. When it is written again,
its inode keeps that object (`unsealed.py`), so that there is something to go back to. The inode keeps the object until
the file is sealed or synced again and the bytes that replace the object are on the disk.

An entry is whole or absent, so a sync extends to the other files of the entry. It leaves out files that somebody may be
in the middle of writing: files under temporary names, and files that were written moments ago and not renamed since.

Programs that keep a cache hardly ever call fsync, so this may cost as much as sealing does: it compresses the file.
Any thread; no lock is held while bytes are stored.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from kcachefs.core.files import Files
from kcachefs.core.nodes import Nodes
from kcachefs.core.seal_queue import SealQueue
from kcachefs.core.sealing import REST_SECONDS, Sealer, is_mostly_hole
from kcachefs.core.temporaries import Temporaries
from kcachefs.core.tree import Tree
from kcachefs.core.unsealed import SpoolFile, Unsealed
from kcachefs.core.walk import Walk
from kcachefs.errors import FsError, ObjectMissing
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.ledger import Staged
from kcachefs.store.records import META_SYNCED, NO_DIGEST, Content, Inode, pack_number, pack_time

ENTRY_MAX = 1000
"""Files and folders of an entry up to which a sync of one file extends to the others: all are marked at once."""
_CHUNK = 1 << 20
_TRIES = 4
"""How often a sync starts over because files changed while their bytes were on the way to the disk."""


class Syncer:
    """Makes files of one filesystem survive power cuts."""

    def __init__(
        self,
        store: Store,
        nodes: Nodes,
        tree: Tree,
        walk: Walk,
        temporaries: Temporaries,
        files: Files,
        unsealed: Unsealed,
        sealer: Sealer,
        queue: SealQueue,
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._tree = tree
        self._walk = walk
        self._temporaries = temporaries
        self._files = files
        self._unsealed = unsealed
        self._sealer = sealer
        self._queue = queue
        self._lock = store.catalog.lock
        self.was_used = store.catalog.get(META_SYNCED) is not None
        """Whether fsync(2) was ever called for a file of this store; few stores see that."""

    def sync(self, ino: int) -> None:
        """Sync a file, or a directory: everything that was acknowledged before survives."""
        node = self._nodes.get(ino)
        if node.is_file:
            self._secure(ino, node.entry)
        self._store.sync()

    def before_rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes) -> None:
        """If a rename will replace a synced file, bring the new file's bytes to the disk before its name.

        Otherwise a power cut could leave neither file. The same goes for the other files of the entry that the new file
        joins.
        """
        found = self._to_secure(parent, name, new_parent, new_name)
        if found is not None:
            self._secure(*found)

    def is_needed_for_rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes) -> bool:
        """Whether a rename will replace a synced file, so that something has to be synced first."""
        return self._to_secure(parent, name, new_parent, new_name) is not None

    def _to_secure(self, parent: int, name: bytes, new_parent: int, new_name: bytes) -> tuple[int, int] | None:
        """The file that a rename puts in the place of a synced one, and the entry that it joins; None if none."""
        replaced = self._tree.find(new_parent, new_name)
        ino = self._tree.find(parent, name) if replaced is not None else None
        if ino is None or replaced is None or ino == replaced:
            return None
        with contextlib.suppress(FsError):  # one of the two is evicted at this moment: the rename will find out
            node = self._nodes.get(replaced)
            if node.flags & Inode.SYNCED and self._nodes.get(ino).is_file:
                return ino, node.entry
        return None

    def _secure(self, ino: int, entry: int) -> None:
        """Store a file's present bytes as an object, seal the entry's complete files, then mark all of them as synced.

        The marks are set in one transaction, after the bytes of all these files are on the disk: a power cut finds all
        of the marks or none, and none without its bytes. After that, only the journal is left to be synced.
        """
        for tries_left in reversed(range(_TRIES)):
            others = self._others(ino, entry) if entry else []
            for other in others:
                self._seal(other, self._is_complete)
            self._seal(ino, lambda ino: True)
            if self._sync_and_mark(ino, others, is_last=not tries_left):
                return

    def _sync_and_mark(self, ino: int, others: list[int], *, is_last: bool) -> bool:
        """Sync the bytes of sealed files, then mark them as synced. False if one of them changed during that."""
        with self._lock:
            node = self._nodes.get(ino)
            if node.nlink == 0:
                return True
            sealed = {one: self._nodes.get(one).digest for one in others if self._is_done(one)}
            if not _is_sealed(node):
                snapshot = self._snapshot(ino, node)  # it is being written to, so it was not sealed
            else:
                snapshot, sealed[ino] = None, node.digest
                if is_last:  # it changes so often that it is marked before its bytes are on the disk
                    with self._nodes.change() as txn:
                        self._mark(txn, ino, sealed)
        if snapshot is not None:
            with snapshot:
                while not self._keep(ino, snapshot, sealed):
                    pass
        if ino not in sealed:
            return True
        self._store.volumes.sync()
        with self._nodes.change() as txn:
            if not is_last and any(self._has_changed(one, sealed) for one in (ino, *others)):
                return False
            self._mark(txn, ino, sealed)
        return True

    def _is_done(self, ino: int) -> bool:
        """Whether a file is complete, and sealed. The lock is held."""
        return self._nodes.exists(ino) and _is_sealed(self._nodes.get(ino)) and self._is_complete(ino)

    def _has_changed(self, ino: int, sealed: dict[int, bytes]) -> bool:
        """Whether a file is complete, and is not what it was when its bytes were synced. The lock is held."""
        if not self._nodes.exists(ino) or (ino not in sealed and not self._is_complete(ino)):
            return False
        node = self._nodes.get(ino)
        return not _is_sealed(node) or node.digest != sealed.get(ino)

    def _mark(self, txn: Transaction, ino: int, sealed: dict[int, bytes]) -> None:
        """Mark a file as synced, and with it those other files that have not changed since they were synced."""
        for one in {ino, *sealed}:
            with contextlib.suppress(FsError):  # it is gone
                node = self._nodes.get(one)
                is_as_synced = _is_sealed(node) and node.digest == sealed.get(one)
                if not node.flags & Inode.SYNCED and (one == ino or is_as_synced):
                    node.flags |= Inode.SYNCED
                    self._nodes.save(txn, one, node)
        if not self.was_used:
            txn.put(META_SYNCED, pack_number(1))
            txn.undo(self._was_not_used)
            self.was_used = True

    def _was_not_used(self) -> None:
        self.was_used = False

    # --- the entry ----------------------------------------------------------------------------------------------------

    def _others(self, ino: int, entry: int) -> list[int]:
        """The other files of an entry, without those under temporary names; none if the entry is too large."""
        unfinished: set[int] = set()
        others: list[int] = []
        with contextlib.suppress(FsError):  # something in it was removed: then the entry is not complete
            for count, (member, parent, _) in enumerate(self._walk.members(entry)):
                if count > ENTRY_MAX:
                    return []
                if member in self._temporaries or parent in unfinished:
                    unfinished.add(member)
                elif member != ino and self._nodes.get(member).is_file:
                    others.append(member)
        return others

    def _is_complete(self, ino: int) -> bool:
        """Whether nobody seems to be in the middle of writing a file. The lock is held."""
        node = self._files.attributes(ino)
        # A write sets both times to the same value. A change after the last write, above all a rename, sets only ctime.
        is_done = node.content == Content.OBJECT or (node.ctime > node.mtime and node.content != Content.NONE)
        return is_done or node.ctime < time.time_ns() - int(REST_SECONDS * 1e9)

    def _seal(self, ino: int, condition: Callable[[int], bool]) -> None:
        with contextlib.suppress(FsError):  # it is gone
            while not self._sealer.seal(ino, condition) and self._queue.is_being_sealed(ino):
                time.sleep(0.001)  # another thread is sealing it, and may find that it has changed since

    # --- a file that others go on writing -----------------------------------------------------------------------------

    def _snapshot(self, ino: int, node: Inode) -> Snapshot | None:
        """What an unsealed file holds at this moment; None if it cannot be an object. The lock is held.

        Every write to a spool file is announced under the lock, so the file stands still once all of them are done.
        """
        if node.content != Content.SPOOL:
            data = self._unsealed.read_slot(node, 0, node.size) if node.content == Content.SLOT else b""
            return Snapshot(self._store, node.mtime, data)
        spool = self._unsealed.spool_of(ino, node)
        assert spool is not None
        while spool.changing:
            time.sleep(0.0001)
        if is_mostly_hole(spool.fd):
            os.fdatasync(spool.fd)
            return None
        copy = self._unsealed.make_spool()
        snapshot = Snapshot(self._store, os.fstat(spool.fd).st_mtime_ns, copy=copy)
        try:
            offset = 0
            while chunk := os.pread(spool.fd, _CHUNK, offset):
                offset += self._unsealed.fill(copy, offset, chunk)
        except BaseException:
            snapshot.close()
            raise
        return snapshot

    def _keep(self, ino: int, snapshot: Snapshot, sealed: dict[int, bytes]) -> bool:
        """Store a snapshot, which the inode keeps while others go on writing. False if it must be stored again."""
        staged = snapshot.stage()
        try:
            self._store.volumes.sync()  # before anything says that the old object is no longer needed
            with self._nodes.change() as txn:
                node = self._nodes.get(ino)
                if node.nlink == 0:
                    return True
                if not _is_sealed(node):  # otherwise it has these bytes, or newer ones
                    if staged is not None:
                        self._store.objects.link(txn, staged)
                    self._unsealed.forget_synced(txn, node)
                    node.digest = staged.digest if staged is not None else NO_DIGEST
                    node.target = pack_time(snapshot.mtime)
                    self._queue.make_mutable(ino, node)
                    self._queue.changed(ino, node)  # so that a sealing that began before this fails
                    self._nodes.save(txn, ino, node)
                self._mark(txn, ino, sealed)
        except ObjectMissing:
            return False
        finally:
            if staged is not None:
                self._store.objects.settle(staged)
        return True


def _is_sealed(node: Inode) -> bool:
    """Whether a file has no bytes outside of objects, and keeps no older state to go back to."""
    return node.content in (Content.OBJECT, Content.NONE) and not node.keeps_synced


class Snapshot:
    """The content of a file at some moment: its bytes, or a copy in a spool file that is recycled on exit."""

    def __init__(self, store: Store, mtime: int, data: bytes = b"", copy: SpoolFile | None = None) -> None:
        self._store = store
        self.mtime = mtime
        self._data = data
        self._copy = copy

    def stage(self) -> Staged | None:
        """Put the content into a volume; None for an empty file."""
        if self._copy is not None and os.fstat(self._copy.fd).st_size:
            return self._store.objects.stage_file(self._copy.fd)
        return self._store.objects.stage(self._data) if self._data else None

    def close(self) -> None:
        if self._copy is not None:
            self._store.spool.recycle(self._copy.number)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
