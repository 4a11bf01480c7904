"""The bytes of regular files: written beside the store's objects, sealed into objects, unsealed when written again.

    nothing ──write──▶ slot of the arena ──past 1 MiB──▶ spool file          what is not sealed yet
                            │  ▲                           │
                          seal  └────── written again ─────┤                 a mutable file
                            ▼                              ▼
                                        object                               what most files are

A new file is empty and costs nothing. Its first bytes go to a slot, or to a spool file if they do not fit. When it has
rested for a moment, the sealer's thread turns it into an object, while readers are still served from where it was. A
file that is written after that is *mutable*: it stays out of the objects until it has been quiet for long.

That a file rests is told by the clock and not by its last close. Once a kernel has been spared the OPENs it sends no
RELEASE either, not even for what it CREATEd (seen on Linux 6.18: 10 creations, no release). An engine that is told of
opens says so with `opened` and `released`, and then a file is not sealed while it is open.

What a write acknowledged is outside this process: the bytes by a pwrite; the size and times of a slot by a record in
the journal, those of a spool file by the file itself. Bytes are hashed by the sealer and not as they are written: it
reads them anyway to compress them, and the thread that answers requests has 5 µs per 16 KiB better to spend.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import stat
import time
from collections import deque
from collections.abc import Sequence

from kcachefs.core.entries import Entries
from kcachefs.core.nodes import Nodes
from kcachefs.errors import FsError, NoSpace, ObjectDamaged, ObjectMissing, RecordDamaged, or_no_space
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.ledger import Staged
from kcachefs.store.records import (
    META_SPOOL,
    NO_DIGEST,
    Content,
    Inode,
    number_of,
    pack_number,
    slot_key,
    spool_key,
    unpack_number,
)
from kcachefs.store.slots import SLOT_SIZE

log = logging.getLogger(__name__)

MAX_SIZE = (1 << 63) - 1
REST_SECONDS = 2.0
"""How long after its last write a file is sealed: what is deleted before is never sealed."""
PATIENCE_SECONDS = 10.0
"""How long it waits at most for requests to pause: a compiler's burst of writes goes first."""
QUEUE_MAX = 4096
"""Files waiting, above which the longest waiting is sealed whatever else goes on."""
QUIET_SECONDS = 60.0
"""How long a mutable file must not have changed before it is sealed after all."""
QUICK = 256 << 10
"""Objects up to this size are brought back where they are written to; for larger ones another thread is better."""
QUICK_READ = 64 << 10
"""Files up to this size are decoded where they are asked for: handing them to another thread would cost more."""
OPEN_SPOOL_MAX = 512
"""Spool files held open; beyond it they are reopened by name."""
HOLE_MIN = 256 << 20
"""Files larger than this that are mostly holes stay plain files."""
_SPOOL_BLOCK = 64
KEEP_SIZE, PUNCH_HOLE, _ZERO_RANGE = 1, 2, 16
_libc = ctypes.CDLL(None, use_errno=True)


class SpoolFile:
    """An open spool file, closed with its last user."""

    __slots__ = ("changing", "fd", "number", "retimed")

    def __init__(self, number: int, fd: int) -> None:
        self.number = number
        self.fd = fd
        self.retimed = False
        """Its times were set by hand: the next write has to say that they no longer hold."""
        self.changing: list[None] = []
        """One for each thread that is about to change it, or doing so: it is not sealed meanwhile.

        Put there under the lock, and taken away without it, which a list can do and a number cannot.
        """

    def __del__(self) -> None:
        os.close(self.fd)


class Files:
    """Bytes by inode."""

    def __init__(self, store: Store, nodes: Nodes, entries: Entries) -> None:
        self._store = store
        self._entries = entries
        self._arena = store.slots
        self._nodes = nodes
        self._lock = store.catalog.lock
        self._open: dict[int, SpoolFile] = {}
        raw = store.catalog.get(META_SPOOL)
        self._next_spool = self._reserved_spool = unpack_number(raw) if raw is not None else 1
        self._queue: deque[tuple[int, float]] = deque()
        self._queued: set[int] = set()
        self._mutable: set[int] = set()
        self._sealing: dict[int, bool] = {}
        """Inodes that the sealer is reading, and whether they were changed since it began."""
        nodes.on_gone = self._gone
        nodes.on_orphaned = self._orphaned

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, ino: int, offset: int, size: int) -> bytes:
        node = self._nodes.get(ino)
        content, digest = node.content, node.digest
        if content == Content.OBJECT:
            try:
                return self._store.objects.read(digest, offset, size)
            except ObjectMissing:
                return self._read_settled(ino, digest, offset, size)
        if content == Content.SPOOL:
            spool = self._spool_of(ino, node)
            return os.pread(spool.fd, size, offset) if spool else self.read(ino, offset, size)
        if content == Content.SLOT:
            with self._lock:  # a slot is another file's as soon as this one is sealed
                node = self._nodes.get(ino)
                if node.content != Content.SLOT:
                    return self.read(ino, offset, size)
                return self._arena.read(node.spool, offset, min(size, max(0, node.size - offset)))
        if stat.S_ISDIR(node.mode):
            raise FsError(errno.EISDIR)
        return b""

    def _read_settled(self, ino: int, digest: bytes, offset: int, size: int) -> bytes:
        """An object was not there. It may be on its way in, or the file was written again: the lock tells."""
        with self._lock:
            node = self._nodes.get(ino)
            if (node.content, node.digest) == (Content.OBJECT, digest):
                return self._store.objects.read(digest, offset, size)
        return self.read(ino, offset, size)

    def read_parts(self, ino: int, offset: int, size: int) -> Sequence[bytes | memoryview]:
        """The same in as many pieces as it comes in."""
        node = self._nodes.get(ino)
        content, digest = node.content, node.digest
        if content == Content.OBJECT:
            with contextlib.suppress(ObjectMissing):  # `read` knows why
                return self._store.objects.read_parts(digest, offset, size)
        return (self.read(ino, offset, size),)

    def is_quick(self, ino: int, offset: int) -> bool:
        """Whether `read` there can be answered without keeping others waiting."""
        node = self._nodes.get(ino)
        return (
            node.content != Content.OBJECT
            or node.size <= QUICK_READ
            or self._store.objects.is_quick(node.digest, offset)
        )

    def attributes(self, ino: int) -> Inode:
        """The inode with its size and times as they are now."""
        node = self._nodes.get(ino)
        if node.content == Content.SPOOL:
            # Should the spool file be gone, the name is still there, and whoever reads it finds out.
            with contextlib.suppress(ObjectMissing):
                if spool := self._spool_of(ino, node):
                    _refresh(node, spool)
        return node

    # --- changing -----------------------------------------------------------------------------------------------------

    def write(self, ino: int, offset: int, data: bytes | memoryview) -> int:
        end = offset + len(data)
        if end > MAX_SIZE:
            raise FsError(errno.EFBIG)
        while True:
            with self._lock:
                node = self._nodes.get(ino)
                if node.content == Content.SPOOL:
                    spool = self._touched_spool(ino, node)
                    break
                if node.content != Content.OBJECT and end <= SLOT_SIZE:
                    self._write_slot(ino, node, offset, data)
                    return len(data)
            self._make_room(ino, node, end)
        try:
            return self._fill(spool, offset, data)
        finally:
            spool.changing.pop()

    def is_quick_to_change(self, ino: int) -> bool:
        """Whether a change can be made without keeping others waiting: bringing back a large object cannot."""
        node = self._nodes.get(ino)
        return node.content != Content.OBJECT or node.size <= QUICK

    def truncate(self, ino: int, size: int) -> None:
        if size > MAX_SIZE:
            raise FsError(errno.EFBIG)
        while True:
            with self._lock:
                node = self._nodes.get(ino)
                if node.is_dir:
                    raise FsError(errno.EISDIR)
                if node.content == Content.SPOOL:
                    spool = self._touched_spool(ino, node)
                    break
                if size == 0:
                    self._empty(ino, node)
                    return
                if node.content != Content.OBJECT and size <= SLOT_SIZE:
                    self._resize_slot(ino, node, size)
                    return
            self._make_room(ino, node, size)
        try:
            os.ftruncate(spool.fd, size)
        except OSError as error:
            raise or_no_space(error, self._store.spool.path(spool.number)) from error
        finally:
            spool.changing.pop()

    def fallocate(self, ino: int, mode: int, offset: int, length: int) -> None:
        check_allocation(mode, offset, length)
        end = offset + length
        while True:
            with self._lock:
                node = self._nodes.get(ino)
                if not node.is_file:
                    raise FsError(errno.ENODEV)
                if node.content == Content.SPOOL:
                    spool = self._touched_spool(ino, node)
                    break
                if node.content != Content.OBJECT and end <= SLOT_SIZE:
                    self._allocate_in_slot(ino, node, mode, offset, end)
                    return
            self._make_room(ino, node, end)
        try:
            if _libc.fallocate(spool.fd, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
                number = ctypes.get_errno()
                raise or_no_space(OSError(number, os.strerror(number)), self._store.spool.path(spool.number))
        finally:
            spool.changing.pop()

    def set_times(self, ino: int, node: Inode) -> None:
        """The caller set a node's times by hand: a spool file gets them too."""
        if node.content == Content.SPOOL and (spool := self._spool_of(ino, node)):
            os.utime(spool.fd, ns=(node.atime, node.mtime))
            spool.retimed = True

    def sync(self, ino: int) -> None:
        """The file's bytes, and everything acknowledged before, survive power loss when this returns."""
        node = self._nodes.get(ino)
        if node.content in (Content.SPOOL, Content.SLOT):
            spool = self._spool_of(ino, node) if node.content == Content.SPOOL else None
            if spool:
                os.fdatasync(spool.fd)
            else:
                self._arena.sync()
            with self._nodes.change() as txn:
                node = self._nodes.get(ino)
                if node.content in (Content.SPOOL, Content.SLOT) and not node.flags & Inode.SYNCED:
                    node.flags |= Inode.SYNCED
                    self._nodes.save(txn, ino, node)
        self._store.sync()

    # --- sealing: the sealer's thread ---------------------------------------------------------------------------------

    def adopt(self) -> None:
        """At mount: what an earlier daemon left unsealed is sealed now, or watched until it is quiet."""
        for ino, node in self.unsealed():
            if node.flags & Inode.MUTABLE:
                self._mutable.add(ino)
            else:
                self._enqueue(ino, 0.0)

    def unsealed(self) -> list[tuple[int, Inode]]:
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

    def statistics(self) -> dict[str, int]:
        """What is in the making. Takes no lock: it is asked when something hangs."""
        oldest = self._queue[0][1] if self._queue else None
        return {
            "waiting_for_sealing": len(self._queue),
            "longest_waiting_s": round(time.monotonic() - oldest) if oldest else 0,
            "being_sealed": len(self._sealing),
            "mutable": len(self._mutable),
            "open_spool_files": len(self._open),
        }

    def waiting(self) -> int:
        return len(self._queue)

    def unsealed_bytes(self) -> dict[int, int]:
        """How many bytes are not sealed yet, by the user who owns them."""
        held: dict[int, int] = {}
        for ino in {*list(self._queued), *list(self._mutable)}:
            with contextlib.suppress(FsError, RecordDamaged):
                node = self.attributes(ino)
                if node.content in (Content.SLOT, Content.SPOOL):
                    held[node.uid] = held.get(node.uid, 0) + node.size
        return held

    def seal_waiting(self, until: float) -> None:
        """Seal what waits though it has not rested, until that moment: the quota is near."""
        waiting = len(self._queue)
        while waiting and time.monotonic() < until and self.seal_next(0):
            waiting -= 1

    def is_pressing(self) -> bool:
        """So much waits for the sealer that it must work though requests come in."""
        queue = self._queue
        return bool(queue) and (len(queue) >= QUEUE_MAX or time.monotonic() - queue[0][1] > PATIENCE_SECONDS)

    def seal_next(self, rest_seconds: float = REST_SECONDS) -> bool:
        """Seal the file that has waited longest, if it has rested that long. False when there is none."""
        now = time.monotonic()
        with self._lock:  # the evictor seals too, and so does whoever asks for what there is
            if not self._queue:
                return False
            ino, since = self._queue[0]
            if now - since < rest_seconds and len(self._queue) < QUEUE_MAX:
                return False
            self._queue.popleft()
            self._queued.discard(ino)
        with contextlib.suppress(FsError):  # unlinked while it waited
            age = (time.time_ns() - self.attributes(ino).mtime) / 1e9
            if rest_seconds and (ino in self._nodes.handles or 0 <= age < rest_seconds):
                self._enqueue(ino, now - max(0.0, min(age, rest_seconds)))  # written since: it rests anew
            else:
                self._seal_or_keep(ino, now)
        return True

    def _seal_or_keep(self, ino: int, now: float) -> None:
        try:
            self.seal(ino)
        except NoSpace:
            self._enqueue(ino, now)
            raise

    def _enqueue(self, ino: int, since: float) -> None:
        with self._lock:
            if ino not in self._queued:
                self._queued.add(ino)
                self._queue.append((ino, since))

    def seal_quiet(self, quiet_seconds: float = QUIET_SECONDS) -> None:
        """Seal the mutable files that have not changed for that long."""
        horizon = time.time_ns() - int(quiet_seconds * 1e9)
        failed: Exception | None = None
        for ino in list(self._mutable):
            try:
                if self.attributes(ino).ctime > horizon:
                    continue
                self._mutable.discard(ino)  # before it is sealed: a change meanwhile puts it back
                self.seal(ino)
            except FsError:
                self._mutable.discard(ino)
            except Exception as error:
                self._mutable.add(ino)
                failed = failed or error
        if failed is not None:  # what one of them cannot does not keep the others
            raise failed

    def seal(self, ino: int) -> bool:
        """Turn a file into an object. False if it changed meanwhile, or was no candidate."""
        while True:
            with self._lock:
                node = self._nodes.get(ino)
                if node.content not in (Content.SLOT, Content.SPOOL) or node.nlink == 0:
                    return False
                data = self._arena.read(node.spool, 0, node.size) if node.content == Content.SLOT else b""
                spool = self._spool_of(ino, node) if node.content == Content.SPOOL else None
                if ino in self._sealing or (spool is not None and spool.changing):
                    self._await_rest(ino, node)
                    return False
                self._sealing[ino] = False
            staged: Staged | None = None
            try:
                if spool is not None and _is_mostly_hole(spool.fd):
                    return False
                if spool is not None and os.fstat(spool.fd).st_size:
                    staged = self._store.objects.stage_file(spool.fd)
                elif data:
                    staged = self._store.objects.stage(data)
                return self._commit_seal(ino, spool, staged)
            except ObjectMissing:
                continue  # the twin that it was to share with was deleted at that moment: store it after all
            finally:
                self._sealing.pop(ino, None)
                if staged is not None:
                    self._store.objects.settle(staged)

    def _commit_seal(self, ino: int, spool: SpoolFile | None, staged: Staged | None) -> bool:
        with self._nodes.change() as txn:
            node = self._nodes.get(ino)
            if self._sealing[ino] or node.content not in (Content.SLOT, Content.SPOOL):
                return False
            if spool is not None:
                _refresh(node, spool)
            self._let_go(txn, ino, node)
            if staged is not None:
                self._store.objects.link(txn, staged)
                _is_now(node, Content.OBJECT, digest=staged.digest, size=staged.plain)
                self._entries.count(txn, ino, node)
                # The kernel keeps the pages that a program writes, but not the last, which is written in part: who
                # reads the file first asks for that page. Decoding took half of the 200 µs that it then waited, and
                # most of the 450 of a file that is too large to be decoded where it is asked for.
                self._store.objects.remember(staged)
            else:
                _is_now(node, Content.NONE)
            node.flags &= ~(Inode.MUTABLE | Inode.SYNCED)
            self._nodes.save(txn, ino, node)
        return True

    # --- slots: the lock is held --------------------------------------------------------------------------------------

    def _write_slot(self, ino: int, node: Inode, offset: int, data: bytes | memoryview) -> None:
        with self._nodes.change() as txn:
            slot = self._slot(txn, ino, node)
            if offset > node.size:
                self._arena.zero(slot, node.size, offset)
            self._arena.write(slot, offset, data)
            node.size = max(node.size, offset + len(data))
            self._slot_changed(txn, ino, node)

    def _resize_slot(self, ino: int, node: Inode, size: int) -> None:
        with self._nodes.change() as txn:
            slot = self._slot(txn, ino, node)
            self._arena.zero(slot, node.size, size)
            node.size = size
            self._slot_changed(txn, ino, node)

    def _allocate_in_slot(self, ino: int, node: Inode, mode: int, offset: int, end: int) -> None:
        with self._nodes.change() as txn:
            slot = self._slot(txn, ino, node)
            if mode & (PUNCH_HOLE | _ZERO_RANGE):
                self._arena.zero(slot, offset, min(end, node.size))
            if not mode & KEEP_SIZE and end > node.size:
                self._arena.zero(slot, node.size, end)
                node.size = end
            self._slot_changed(txn, ino, node)

    def _slot(self, txn: Transaction, ino: int, node: Inode) -> int:
        if node.content == Content.NONE:
            if not node.is_file:
                raise FsError(errno.EISDIR if node.is_dir else errno.EINVAL)
            _is_now(node, Content.SLOT, number=self._take_slot(txn, ino))
        return node.spool

    def _take_slot(self, txn: Transaction, ino: int) -> int:
        slot = self._arena.take()
        txn.undo(lambda: self._arena.free(slot))
        txn.put(slot_key(slot), pack_number(ino))
        return slot

    def _slot_changed(self, txn: Transaction, ino: int, node: Inode) -> None:
        node.mtime = node.ctime = time.time_ns()
        self._note_change(ino, node)
        self._nodes.save(txn, ino, node)

    def _empty(self, ino: int, node: Inode) -> None:
        with self._nodes.change() as txn:
            if node.content == Content.OBJECT:
                self._make_mutable(ino, node)
            self._let_go(txn, ino, node)
            _is_now(node, Content.NONE)
            node.mtime = node.ctime = time.time_ns()
            if ino in self._sealing:
                self._sealing[ino] = True
            self._nodes.save(txn, ino, node)

    def _note_change(self, ino: int, node: Inode) -> None:
        """What the sealer has read is stale; when the file has rested it is to be sealed, if it is not mutable."""
        if node.entry:
            self._entries.written(node.entry)
        if ino in self._sealing:
            self._sealing[ino] = True
        self._await_rest(ino, node)

    def _await_rest(self, ino: int, node: Inode) -> None:
        if node.flags & Inode.MUTABLE:
            self._mutable.add(ino)
        elif ino not in self._queued:
            self._enqueue(ino, time.monotonic())

    def _make_mutable(self, ino: int, node: Inode) -> None:
        node.flags |= Inode.MUTABLE
        self._mutable.add(ino)

    # --- spool files --------------------------------------------------------------------------------------------------

    def _touched_spool(self, ino: int, node: Inode) -> SpoolFile:
        """The spool file, about to be changed: who does takes one from `changing` after it. The lock is held."""
        spool = self._open.get(ino) or self._spool_of(ino, node)
        assert spool is not None
        self._note_change(ino, node)
        if spool.retimed:
            with self._nodes.change() as txn:
                spool.retimed = False
                node.mtime = node.ctime = time.time_ns()
                self._nodes.save(txn, ino, node)
        spool.changing.append(None)
        return spool

    def _spool_of(self, ino: int, node: Inode) -> SpoolFile | None:
        """The open spool file; None when the inode was sealed since the caller looked."""
        spool = self._open.get(ino)
        if spool is None:
            with self._lock:
                node = self._nodes.get(ino)  # the caller's may have left the cache, and another been sealed since
                if node.content != Content.SPOOL:
                    return None
                spool = self._open.get(ino)
                if spool is None:
                    spool = SpoolFile(node.spool, self._store.spool.open(node.spool))
                    self._hold(ino, spool)
        return spool

    def _hold(self, ino: int, spool: SpoolFile) -> None:
        if len(self._open) >= OPEN_SPOOL_MAX:
            for old in list(self._open)[: OPEN_SPOOL_MAX // 8]:
                # One whose times the next write must correct is not to be forgotten, nor one that is being changed.
                if not self._open[old].retimed and not self._open[old].changing:
                    del self._open[old]
        self._open[ino] = spool

    def _make_room(self, ino: int, node: Inode, end: int) -> None:
        """Bring a file to where `end` bytes can be written: an object back, a slot into a spool file. No lock held."""
        if not node.is_file:
            raise FsError(errno.EISDIR if node.is_dir else errno.EINVAL)
        with self._lock:  # not while it is on its way from one place to another
            node = self._nodes.get(ino)
            content, digest = node.content, node.digest
        if content == Content.SPOOL:
            return  # someone else was quicker
        if content == Content.OBJECT and max(node.size, end) <= SLOT_SIZE:
            self._object_to_slot(ino, digest, self._read_settled(ino, digest, 0, 1 << 62))
            return
        spool = self._make_spool()
        is_used = False
        try:
            if content == Content.OBJECT:
                self._copy_out(digest, spool)
            is_used = self._move_to_spool(ino, content, digest, spool)
        except ObjectMissing:
            with self._lock:
                node = self._nodes.get(ino)
                if (node.content, node.digest) == (content, digest):
                    raise
        finally:
            if not is_used:  # the disk is full, or someone else was quicker
                self._store.spool.recycle(spool.number)

    def _move_to_spool(self, ino: int, content: int, digest: bytes, spool: SpoolFile) -> bool:
        """Have a file's bytes be in a spool file, where an object's have been copied to. False if it has changed."""
        with self._nodes.change() as txn:
            node = self._nodes.get(ino)
            if (node.content, node.digest) != (content, digest):
                return False
            if content == Content.SLOT:
                self._fill(spool, 0, self._arena.read(node.spool, 0, node.size))
            size = node.size
            if content == Content.OBJECT:
                self._make_mutable(ino, node)
            self._let_go(txn, ino, node)
            _is_now(node, Content.SPOOL, number=spool.number, size=size)
            self._note_change(ino, node)
            txn.put(spool_key(spool.number), pack_number(ino))
            node.mtime = node.ctime = time.time_ns()
            self._nodes.save(txn, ino, node)
            txn.undo(lambda: self._open.pop(ino, None))
            self._hold(ino, spool)
        return True

    def _object_to_slot(self, ino: int, digest: bytes, data: bytes) -> None:
        with self._nodes.change() as txn:
            node = self._nodes.get(ino)
            if (node.content, node.digest) != (Content.OBJECT, digest):
                return
            self._make_mutable(ino, node)
            self._let_go(txn, ino, node)
            slot = self._take_slot(txn, ino)
            self._arena.write(slot, 0, data)
            _is_now(node, Content.SLOT, number=slot, size=len(data))
            self._slot_changed(txn, ino, node)

    def _copy_out(self, digest: bytes, spool: SpoolFile) -> None:
        offset = 0
        while chunk := self._store.objects.read(digest, offset, 1 << 20):
            offset += self._fill(spool, offset, chunk)

    def _fill(self, spool: SpoolFile, offset: int, data: bytes | memoryview) -> int:
        """Write all of it; a disk that is nearly full takes a part, and says so at the next try."""
        try:
            written = os.pwrite(spool.fd, data, offset)
            while written < len(data):
                written += os.pwrite(spool.fd, data[written:], offset + written)
        except OSError as error:
            raise or_no_space(error, self._store.spool.path(spool.number)) from error
        return written

    def _make_spool(self) -> SpoolFile:
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

    # --- letting go ---------------------------------------------------------------------------------------------------

    def _let_go(self, txn: Transaction, ino: int, node: Inode, *, gone: bool = False) -> None:
        """Whatever held the bytes holds them no longer. The caller says where they are now, and saves the inode."""
        if node.content == Content.OBJECT:
            self._entries.uncount(txn, node, gone=gone)
            self._store.objects.unlink(txn, node.digest)
        elif node.content == Content.SPOOL:
            txn.delete(spool_key(node.spool))
            self._open.pop(ino, None)
        elif node.content == Content.SLOT:
            txn.delete(slot_key(node.spool))

    def _orphaned(self, txn: Transaction, node: Inode) -> None:
        if node.content == Content.OBJECT:
            self._entries.uncount(txn, node)
        else:
            self._entries.abandoned(txn, node)
        node.entry = 0

    def _gone(self, txn: Transaction, ino: int, node: Inode) -> None:
        if node.is_file:
            if node.content != Content.OBJECT:
                self._entries.abandoned(txn, node)
            self._let_go(txn, ino, node, gone=True)
            _is_now(node, Content.NONE)
            if ino in self._mutable:
                txn.undo(lambda: self._mutable.add(ino))
                self._mutable.discard(ino)
            if ino in self._sealing:
                self._sealing[ino] = True
                txn.undo(lambda: self._enqueue(ino, time.monotonic()))


def check_allocation(mode: int, offset: int, length: int) -> None:
    """Refuse what no file allocates."""
    if mode & ~(KEEP_SIZE | PUNCH_HOLE | _ZERO_RANGE):
        raise FsError(errno.EOPNOTSUPP)
    if length == 0:
        raise FsError(errno.EINVAL)
    if offset + length > MAX_SIZE:
        raise FsError(errno.EFBIG)


def _is_now(node: Inode, content: int, *, number: int = 0, digest: bytes = NO_DIGEST, size: int = 0) -> None:
    """Say where a file's bytes are. At one stroke: who reads without the lock must see all of it or nothing.

    Between these assignments the interpreter calls nothing, so it gives no other thread a turn.
    """
    node.spool, node.digest, node.size, node.content = number, digest, size, content


def _refresh(node: Inode, spool: SpoolFile) -> None:
    state = os.fstat(spool.fd)
    node.size = state.st_size
    node.mtime = max(node.mtime, state.st_mtime_ns)
    node.ctime = max(node.ctime, state.st_ctime_ns)


def _is_mostly_hole(fd: int) -> bool:
    """Whether sealing would be mostly reading zeros: of a file of terabytes that holds a page, for hours."""
    state = os.fstat(fd)
    return state.st_size > HOLE_MIN and state.st_blocks * 512 * 16 < state.st_size


def is_damage(error: BaseException) -> bool:
    """Whether a read failed because the bytes cannot be trusted or are not there: the file is to be dropped."""
    return isinstance(error, ObjectDamaged | ObjectMissing)
