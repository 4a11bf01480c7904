"""The bytes of regular files: reads them from wherever they are, and brings them to where they can be written.

    nothing ──write──▶ slot ──past 1 MiB──▶ spool file          not sealed yet (`unsealed.py`)
                        │ ▲                   │
                      seal └── written again ─┤                 a mutable file
                        ▼                     ▼
                               object                           what most files are (`sealing.py` makes them)

A new file is empty and costs nothing. Its first bytes go to a slot, or to a spool file if they do not fit. When it has
rested for a moment, the sealer turns it into an object, and readers are still served from its old place meanwhile. A
file that is written after that is *mutable*: it is not sealed again until it has been quiet for a long time.

Any thread may read and write. An inode that a caller looked at without the lock may have changed by the time it acts:
each operation looks again under the lock before it changes anything.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Sequence

from kcachefs import libc
from kcachefs.core.accounts import Accounts
from kcachefs.core.entry_counts import EntryCounts
from kcachefs.core.nodes import Nodes
from kcachefs.core.seal_queue import SealQueue
from kcachefs.core.unsealed import SpoolFile, Unsealed, refresh, set_content
from kcachefs.errors import FsError, ObjectDamaged, ObjectMissing, or_no_space
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.records import Content, Inode
from kcachefs.store.slots import SLOT_SIZE

MAX_SIZE = (1 << 63) - 1
QUICK = 256 << 10
"""Objects up to this size are made writable in the thread of the request, larger ones in another thread."""
QUICK_TO_FREE = 16 << 20
"""Spool files up to this size are cut short in the thread of the request."""
QUICK_READ = 64 << 10
"""Files up to this size are decoded in the thread of the request: handing them to another thread would cost more."""
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16


class Files:
    """Bytes by inode."""

    def __init__(
        self,
        store: Store,
        nodes: Nodes,
        counts: EntryCounts,
        unsealed: Unsealed,
        queue: SealQueue,
        accounts: Accounts | None = None,
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._counts = counts
        self._unsealed = unsealed
        self._queue = queue
        self._accounts = accounts
        self._lock = store.catalog.lock

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
            spool = self._unsealed.spool_of(ino, node)
            data = os.pread(spool.fd, size, offset) if spool else b""
            node = self._nodes.get(ino)
            if spool and node.content == Content.SPOOL and node.spool == spool.number:
                return data
            return self.read(ino, offset, size)  # it was sealed, and its spool file may be empty by now
        if content == Content.SLOT:
            with self._lock:  # once this file is sealed, the slot may become another's
                node = self._nodes.get(ino)
                if node.content != Content.SLOT:
                    return self.read(ino, offset, size)
                return self._unsealed.read_slot(node, offset, size)
        if stat.S_ISDIR(node.mode):
            raise FsError(errno.EISDIR)
        return b""

    def _read_settled(self, ino: int, digest: bytes, offset: int, size: int) -> bytes:
        """Read again under the lock after an object was missing: it may be on its way in, or the file was rewritten."""
        with self._lock:
            node = self._nodes.get(ino)
            if (node.content, node.digest) == (Content.OBJECT, digest):
                return self._store.objects.read(digest, offset, size)
        return self.read(ino, offset, size)

    def read_parts(self, ino: int, offset: int, size: int) -> Sequence[bytes | memoryview]:
        """What `read` returns, in the pieces in which it was decoded."""
        node = self._nodes.get(ino)
        content, digest = node.content, node.digest
        if content == Content.OBJECT:
            with contextlib.suppress(ObjectMissing):  # `read` finds out why
                return self._store.objects.read_parts(digest, offset, size)
        return (self.read(ino, offset, size),)

    def is_quick(self, ino: int, offset: int) -> bool:
        """Whether a read at this offset can be answered without keeping others waiting."""
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
            # If the spool file is gone, the name still exists, and reading the file reports the loss.
            with contextlib.suppress(ObjectMissing):
                if spool := self._unsealed.spool_of(ino, node):
                    refresh(node, spool)
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
                    spool = self._unsealed.spool_to_change(ino, node)
                    break
                if node.content != Content.OBJECT and end <= SLOT_SIZE:
                    self._unsealed.write_slot(ino, node, offset, data)
                    return len(data)
            self._make_writable(ino, node, end)
        try:
            written = self._unsealed.fill(spool, offset, data)
            if self._accounts is not None:
                self._accounts.resized(ino, end, grown=True)
            return written
        except BaseException:
            self._size_may_have_changed(ino, spool)
            raise
        finally:
            spool.changing.pop()

    def is_quick_to_change(self, ino: int) -> bool:
        """Whether a file can be changed without keeping others waiting: no large object has to be brought back."""
        node = self._nodes.get(ino)
        return node.content != Content.OBJECT or node.size <= QUICK

    def is_quick_to_resize(self, ino: int, size: int) -> bool:
        """Whether a file can be resized without keeping others waiting.

        No large object has to be brought back, and no large spool file has to free its blocks.
        """
        node = self._nodes.get(ino)
        if node.content == Content.SPOOL and (spool := self._unsealed.spool_of(ino, node)):
            state = os.fstat(spool.fd)
            return size >= state.st_size or state.st_blocks * 512 <= QUICK_TO_FREE
        return size == 0 or self.is_quick_to_change(ino)

    def truncate(self, ino: int, size: int) -> None:
        if size > MAX_SIZE:
            raise FsError(errno.EFBIG)
        while True:
            with self._lock:
                node = self._nodes.get(ino)
                if node.is_dir:
                    raise FsError(errno.EISDIR)
                if node.content == Content.SPOOL:
                    spool = self._unsealed.spool_to_change(ino, node)
                    break
                if size == 0:
                    self._empty(ino, node)
                    return
                if node.content != Content.OBJECT and size <= SLOT_SIZE:
                    self._unsealed.resize_slot(ino, node, size)
                    return
            self._make_writable(ino, node, size)
        try:
            os.ftruncate(spool.fd, size)
        except OSError as error:
            raise or_no_space(error, self._store.spool.path(spool.number)) from error
        finally:
            self._size_may_have_changed(ino, spool)
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
                    spool = self._unsealed.spool_to_change(ino, node)
                    break
                if node.content != Content.OBJECT and end <= SLOT_SIZE:
                    zeroes, grows = bool(mode & (PUNCH_HOLE | ZERO_RANGE)), not mode & KEEP_SIZE
                    self._unsealed.allocate_in_slot(ino, node, offset, end, zeroes=zeroes, grows=grows)
                    return
            self._make_writable(ino, node, end)
        try:
            libc.fallocate(spool.fd, mode, offset, length)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # the store's filesystem has no such mode: a tmpfs has no ZERO_RANGE
                raise FsError(errno.EOPNOTSUPP) from error
            raise or_no_space(error, self._store.spool.path(spool.number)) from error
        finally:
            self._size_may_have_changed(ino, spool)
            spool.changing.pop()

    def _size_may_have_changed(self, ino: int, spool: SpoolFile) -> None:
        if self._accounts is not None:
            self._accounts.resized(ino, os.fstat(spool.fd).st_size)

    def set_times(self, ino: int, node: Inode) -> None:
        """A node's times were set explicitly: its spool file gets them too."""
        if node.content == Content.SPOOL and (spool := self._unsealed.spool_of(ino, node)):
            os.utime(spool.fd, ns=(node.atime, node.mtime))
            spool.retimed = True

    # --- bringing bytes to where they can be written ------------------------------------------------------------------

    def _empty(self, ino: int, node: Inode) -> None:
        with self._nodes.change() as txn:
            if node.content == Content.OBJECT:
                self._queue.make_mutable(ino, node)
            kept = node.digest if node.content == Content.NONE else self._unsealed.give_up(txn, ino, node)
            set_content(node, Content.NONE, digest=kept)
            node.mtime = node.ctime = time.time_ns()
            self._queue.emptied(txn, ino, node.uid)
            self._nodes.save(txn, ino, node)

    def _make_writable(self, ino: int, node: Inode, end: int) -> None:
        """Move a file's bytes to where `end` bytes can be written. Hold no lock.

        An object's bytes go to a slot or to a spool file, a slot's bytes to a spool file.
        """
        if not node.is_file:
            raise FsError(errno.EISDIR if node.is_dir else errno.EINVAL)
        with self._lock:  # so that the file does not move from one place to another meanwhile
            node = self._nodes.get(ino)
            content, digest = node.content, node.digest
        if content == Content.SPOOL:
            return  # another thread was quicker
        if content == Content.OBJECT and max(node.size, end) <= SLOT_SIZE:
            self._object_to_slot(ino, digest, self._read_settled(ino, digest, 0, 1 << 62))
            return
        spool = self._unsealed.make_spool()
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
            if not is_used:  # the disk is full, or another thread was quicker
                self._store.spool.recycle(spool.number)

    def _move_to_spool(self, ino: int, content: int, digest: bytes, spool: SpoolFile) -> bool:
        """Make a spool file the place of a file's bytes; False if the file changed meanwhile.

        The bytes of a slot are copied here, those of an object are in the spool file already.
        """
        with self._nodes.change() as txn:
            node = self._nodes.get(ino)
            if (node.content, node.digest) != (content, digest):
                return False
            if content == Content.SLOT:
                self._unsealed.fill(spool, 0, self._unsealed.read_slot(node, 0, node.size))
            size = node.size
            if content == Content.OBJECT or node.flags & Inode.SYNCED:
                self._queue.make_mutable(ino, node)
            kept = self._unsealed.give_up(txn, ino, node)
            set_content(node, Content.SPOOL, number=spool.number, digest=kept, size=size)
            self._unsealed.changed(ino, node)
            node.mtime = node.ctime = time.time_ns()
            self._nodes.save(txn, ino, node)
            self._unsealed.hold_spool(txn, ino, spool)
        return True

    def _object_to_slot(self, ino: int, digest: bytes, data: bytes) -> None:
        with self._nodes.change() as txn:
            node = self._nodes.get(ino)
            if (node.content, node.digest) != (Content.OBJECT, digest):
                return
            self._queue.make_mutable(ino, node)
            kept = self._unsealed.give_up(txn, ino, node)
            self._unsealed.fill_slot(txn, ino, node, data, kept)

    def _copy_out(self, digest: bytes, spool: SpoolFile) -> None:
        offset = 0
        while chunk := self._store.objects.read(digest, offset, 1 << 20):
            offset += self._unsealed.fill(spool, offset, chunk)

    # --- the end of a file --------------------------------------------------------------------------------------------

    def orphaned(self, txn: Transaction, node: Inode) -> None:
        """A file lost its last name but lives on: it no longer belongs to an entry."""
        if node.content == Content.OBJECT:
            self._counts.uncount(txn, node)
        else:
            self._counts.abandon(txn, node)
        node.entry = 0

    def gone(self, txn: Transaction, ino: int, node: Inode) -> None:
        """A file goes for good, with its bytes."""
        if node.is_file:
            if node.content != Content.OBJECT:
                self._counts.abandon(txn, node)
            self._unsealed.give_up(txn, ino, node, gone=True)
            set_content(node, Content.NONE)
            self._queue.gone(txn, ino, node.uid)


def check_allocation(mode: int, offset: int, length: int) -> None:
    """Refuse allocations that no file supports."""
    if mode & ~(KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE):
        raise FsError(errno.EOPNOTSUPP)
    if length == 0:
        raise FsError(errno.EINVAL)
    if offset + length > MAX_SIZE:
        raise FsError(errno.EFBIG)


def is_damage(error: BaseException) -> bool:
    """Whether a read failed because the bytes are damaged or missing, so that the file has to be dropped."""
    return isinstance(error, ObjectDamaged | ObjectMissing)
