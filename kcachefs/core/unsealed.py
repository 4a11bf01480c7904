"""Bytes that are not sealed: small files in slots of the slot file, larger ones in a spool file each.

What a write acknowledged survives this process: the bytes by a pwrite; the size and times of a slot by a record in the
journal, those of a spool file by the file itself.

The catalog's lock guards which bytes belong to which file. A slot is written under the lock. A spool file is written
without it, but the write is announced first in `SpoolFile.changing`, so that the file is not sealed meanwhile.

After a power cut none of these bytes can be trusted. So a file that was synced, and is written again, keeps the object
that it was when it was synced (`Inode.keeps_synced`), and `recovery.py` goes back to that object.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from functools import partial

from kcachefs.bounded import BoundedDict
from kcachefs.core.entry_counts import EntryCounts
from kcachefs.core.nodes import Nodes
from kcachefs.core.seal_queue import SealQueue
from kcachefs.core.uses import Uses
from kcachefs.errors import FsError, NoSpace, RecordDamaged, or_no_space
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.descriptor import share_of_descriptors
from kcachefs.store.records import (
    META_SPOOL,
    NO_DIGEST,
    Content,
    Inode,
    number_of,
    pack_number,
    pack_time,
    slot_key,
    spool_key,
    unpack_number,
)

OPEN_SPOOL_MAX = 512
"""Spool files held open, or fewer if the system allows few; any others are reopened by name."""
_SPOOL_BLOCK = 64
"""Spool numbers reserved at a time."""


class SpoolFile:
    """An open spool file, closed with its last user."""

    __slots__ = ("changing", "fd", "number", "retimed")

    def __init__(self, number: int, fd: int) -> None:
        self.number = number
        self.fd = fd
        self.retimed = False
        """Its times were set explicitly: the next write has to replace them in the inode, too."""
        self.changing: list[None] = []
        """One item per thread that is changing the file, or is about to: until the list is empty, it is not sealed.

        Appended under the lock and popped without it: a list allows that, a number does not.
        """

    def __del__(self) -> None:
        os.close(self.fd)


def _may_close(spool: SpoolFile) -> bool:
    return not spool.retimed and not spool.changing


class Unsealed:
    """The unsealed bytes of one filesystem, by inode."""

    def __init__(self, store: Store, nodes: Nodes, counts: EntryCounts, uses: Uses, queue: SealQueue) -> None:
        self._store = store
        self._slots = store.slots
        self._nodes = nodes
        self._counts = counts
        self._uses = uses
        self._queue = queue
        self._lock = store.catalog.lock
        self._open: BoundedDict[int, SpoolFile] = BoundedDict(share_of_descriptors(OPEN_SPOOL_MAX), _may_close)
        raw = store.catalog.get(META_SPOOL)
        self._next_spool = self._reserved_spool = unpack_number(raw) if raw is not None else 1

    # --- slots: the lock is held --------------------------------------------------------------------------------------

    def read_slot(self, node: Inode, offset: int, size: int) -> bytes:
        return self._slots.read(node.spool, offset, min(size, max(0, node.size - offset)))

    def write_slot(self, ino: int, node: Inode, offset: int, data: bytes | memoryview) -> None:
        with self._nodes.change() as txn:
            slot = self._slot(txn, ino, node)
            try:
                if offset > node.size:
                    self._slots.zero(slot, node.size, offset)
                self._slots.write(slot, offset, data)
            except NoSpace:  # a part may have been written, and may have taken the last blocks of the disk
                self._slots.shrunk(slot, node.size)
                raise
            node.size = max(node.size, offset + len(data))
            self._slot_changed(txn, ino, node)

    def resize_slot(self, ino: int, node: Inode, size: int) -> None:
        with self._nodes.change() as txn:
            slot = self._slot(txn, ino, node)
            before = node.size
            self._slots.zero(slot, before, size)
            node.size = size
            self._slot_changed(txn, ino, node)
        if size < before:
            self._slots.shrunk(slot, size)

    def allocate_in_slot(self, ino: int, node: Inode, offset: int, end: int, *, zeroes: bool, grows: bool) -> None:
        with self._nodes.change() as txn:
            slot = self._slot(txn, ino, node)
            if zeroes:
                self._slots.zero(slot, offset, min(end, node.size))
            if grows and end > node.size:
                self._slots.zero(slot, node.size, end)
                node.size = end
            self._slot_changed(txn, ino, node)

    def fill_slot(self, txn: Transaction, ino: int, node: Inode, data: bytes, kept: bytes) -> None:
        """Give a file these bytes, in a slot of its own; `kept` is what `give_up` returned."""
        slot = self._take_slot(txn, ino)
        self._slots.write(slot, 0, data)
        set_content(node, Content.SLOT, number=slot, digest=kept, size=len(data))
        self._slot_changed(txn, ino, node)

    def _slot(self, txn: Transaction, ino: int, node: Inode) -> int:
        if node.content == Content.NONE:
            if not node.is_file:
                raise FsError(errno.EISDIR if node.is_dir else errno.EINVAL)
            if node.flags & Inode.SYNCED:
                self._queue.make_mutable(ino, node)
                keep_synced(node)
            set_content(node, Content.SLOT, number=self._take_slot(txn, ino), digest=node.digest)
        return node.spool

    def _take_slot(self, txn: Transaction, ino: int) -> int:
        slot = self._slots.take()
        txn.undo(lambda: self._slots.free(slot))
        txn.put(slot_key(slot), pack_number(ino))
        return slot

    def _slot_changed(self, txn: Transaction, ino: int, node: Inode) -> None:
        node.mtime = node.ctime = time.time_ns()
        self.changed(ino, node)
        self._nodes.save(txn, ino, node)

    def changed(self, ino: int, node: Inode) -> None:
        """A file's bytes change: what the sealer has read is stale, and the file has to rest again."""
        if node.entry:
            self._uses.written(node.entry)
        self._queue.changed(ino, node)

    # --- spool files --------------------------------------------------------------------------------------------------

    def spool_to_change(self, ino: int, node: Inode) -> SpoolFile:
        """The spool file, announced as changing: the caller pops from `changing` when done. The lock is held."""
        spool = self._open.get(ino) or self.spool_of(ino, node)
        assert spool is not None
        self.changed(ino, node)
        if spool.retimed:
            with self._nodes.change() as txn:
                txn.undo(partial(setattr, spool, "retimed", True))
                spool.retimed = False
                node.mtime = node.ctime = time.time_ns()
                self._nodes.save(txn, ino, node)
        spool.changing.append(None)
        return spool

    def spool_of(self, ino: int, node: Inode) -> SpoolFile | None:
        """The open spool file; None when the file was sealed since the caller looked."""
        spool = self._open.get(ino)
        if spool is None:
            with self._lock:
                node = self._nodes.get(ino)  # the caller's object may have left the cache, and the file been sealed
                if node.content != Content.SPOOL:
                    return None
                spool = self._open.get(ino)
                if spool is None:
                    spool = self._open[ino] = SpoolFile(node.spool, self._store.spool.open(node.spool))
        return spool

    def hold_spool(self, txn: Transaction, ino: int, spool: SpoolFile) -> None:
        """Give a spool file to a file in this transaction."""
        txn.put(spool_key(spool.number), pack_number(ino))
        txn.undo(lambda: self._open.pop(ino, None))
        self._open[ino] = spool

    def make_spool(self) -> SpoolFile:
        """A new spool file, which belongs to no file yet."""
        with self._nodes.change() as txn:
            number = self._store.spool.take()
            if number is None:
                number = self._next_spool
                self._next_spool += 1
                if number >= self._reserved_spool:
                    self._reserved_spool = number + _SPOOL_BLOCK
                    txn.undo(self._unreserve_spool)
                    txn.put(META_SPOOL, pack_number(self._reserved_spool))
        return SpoolFile(number, self._store.spool.open(number, create=True))

    def _unreserve_spool(self) -> None:
        self._reserved_spool = 0

    def fill(self, spool: SpoolFile, offset: int, data: bytes | memoryview) -> int:
        """Write all of the data: a disk that is nearly full takes a part, and refuses the rest at the next try."""
        try:
            written = os.pwrite(spool.fd, data, offset)
            while written < len(data):
                written += os.pwrite(spool.fd, data[written:], offset + written)
        except OSError as error:
            raise or_no_space(error, self._store.spool.path(spool.number)) from error
        return written

    # --- all of them --------------------------------------------------------------------------------------------------

    def give_up(self, txn: Transaction, ino: int, node: Inode, *, gone: bool = False) -> bytes:
        """Release whatever held a file's bytes. The caller sets where they are now, and saves the inode.

        Returns the digest that the inode has to have from now on: that of the object that it keeps, if it was synced.
        """
        if node.content == Content.OBJECT:
            self._counts.uncount(txn, node, gone=gone)
        elif node.content == Content.SPOOL:
            txn.delete(spool_key(node.spool))
            self._open.pop(ino, None)
        elif node.content == Content.SLOT:
            txn.delete(slot_key(node.spool))
        if node.flags & Inode.SYNCED and not gone:
            keep_synced(node)
            return node.digest
        self.forget_synced(txn, node)
        return NO_DIGEST

    def forget_synced(self, txn: Transaction, node: Inode) -> None:
        """Release the object that an inode refers to, be it the file's own or what it keeps."""
        if node.digest != NO_DIGEST:
            self._store.objects.unlink(txn, node.digest)
        if node.keeps_synced:
            node.target = b""

    def files(self) -> list[tuple[int, Inode]]:
        """Every file that is in a slot or in the spool."""
        found = []
        for table, content in ((b"a", Content.SLOT), (b"s", Content.SPOOL)):
            for key in self._store.catalog.keys(table):
                with contextlib.suppress(FsError, RecordDamaged):
                    ino = unpack_number(self._store.catalog.get(key) or bytes(8))
                    node = self._nodes.get(ino)
                    if node.content == content and node.spool == number_of(key):
                        found.append((ino, node))
        return found

    @property
    def open_count(self) -> int:
        return len(self._open)


def set_content(node: Inode, content: int, *, number: int = 0, digest: bytes = NO_DIGEST, size: int = 0) -> None:
    """Say where a file's bytes are, in one step: a reader without the lock must see all of it or nothing.

    Between these assignments the interpreter calls nothing, so it gives no other thread a turn.
    """
    node.spool, node.digest, node.size, node.content = number, digest, size, content


def keep_synced(node: Inode) -> None:
    """A synced file is about to change: its inode keeps the object that it was, or the fact that it was empty."""
    if node.content in (Content.OBJECT, Content.NONE) and not node.target:
        node.target = pack_time(node.mtime)


def refresh(node: Inode, spool: SpoolFile) -> None:
    """Take a file's size and times from its spool file, unless it was sealed just now: then the spool file has neither.

    Callers need no lock: between the check and the assignments the interpreter gives no other thread a turn.
    """
    state = os.fstat(spool.fd)
    mtime, ctime = max(node.mtime, state.st_mtime_ns), max(node.ctime, state.st_ctime_ns)
    if node.content == Content.SPOOL and node.spool == spool.number:
        node.size, node.mtime, node.ctime = state.st_size, mtime, ctime
