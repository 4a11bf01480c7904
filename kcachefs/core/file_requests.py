"""The requests about attributes and bytes, one method each.

An engine *authorizes* a change in the thread of the request, asks whether it is *quick*, and then has it done in that
thread or in another. `authorize_*` raise if the caller is refused; `is_quick_*` only say whether something can be done
without keeping other requests waiting. Permissions are checked once, in `authorize_*`; quotas are checked again while a
write waits for room. Errors carry an errno. Only the engine's thread may call `authorize_*` and `is_quick_*`; any
thread may call the rest.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import time
from collections.abc import Sequence
from typing import Unpack

from kcachefs.core.caller import Caller
from kcachefs.core.files import KEEP_SIZE, PUNCH_HOLE, QUICK_READ, check_allocation
from kcachefs.core.limits import Limits
from kcachefs.core.name_requests import NameRequests
from kcachefs.core.options import BLOCK, AttributeChanges, Statfs
from kcachefs.core.parts import Parts
from kcachefs.core.policies.policy import Policy
from kcachefs.core.report_folder import ReportFolder
from kcachefs.core.user_quotas import UserQuotas
from kcachefs.errors import FsError, NoSpace
from kcachefs.store.inode_numbers import SHARED_INO, VIRTUAL_BASE
from kcachefs.store.records import Content, Inode

log = logging.getLogger(__name__)

CROWDED_TRIES = 3
PRESSURE_BYTES = 1 << 20
"""After this many written bytes the limits are checked again, between the evictor's turns."""
ALLOCATED_BYTES = 16 << 20
"""Bytes allocated at a time; the limits are checked in between."""
_FILES = 1 << 32
_ANY_ROOM: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
_FULL = "the quota is used up and nothing can be evicted"


class FileRequests(NameRequests):
    """The requests of an engine about attributes and bytes, besides those about names."""

    def __init__(self, parts: Parts, policy: Policy, report: ReportFolder, quotas: UserQuotas | None) -> None:
        super().__init__(parts, policy, report, quotas)
        self.store = parts.store
        self.options = parts.options
        self.distrust = parts.distrust
        self.judges_opens = policy.judges_opens
        """Whether the engine must ask `authorize_open` for every open."""
        self.names_writers = quotas is not None or policy.judges_opens
        """Whether it matters who writes to an open file."""
        self._counts = parts.counts
        self._table = parts.table
        self._history = parts.history
        self._expect = parts.store.objects.next_read.expect
        self.prepare_read = parts.store.objects.next_read.prepare
        """Called while no request is waiting."""
        self._unchecked = 0
        """Bytes written since the limits were last checked; some are missed if two threads add at the same time."""

    # --- looking ------------------------------------------------------------------------------------------------------

    def attributes(self, ino: int) -> Inode:
        """The inode with its size and times as they are now."""
        node = self.files.attributes(ino) if ino < VIRTUAL_BASE else self._virtual(ino)
        return self.shown(ino, node) if self._alters_attributes else node

    def looked_up(self, ino: int) -> Inode:
        """The attributes of an inode that was just looked up. In the engine's thread.

        If the inode is a small sealed file, the next request is probably a read of it.
        """
        node = self.files.attributes(ino) if ino < VIRTUAL_BASE else self._virtual(ino)
        if node.content == Content.OBJECT and node.size <= QUICK_READ:
            self._expect(node.digest)
        return self.shown(ino, node) if self._alters_attributes else node  # as `attributes` does, without one more call

    def _virtual(self, ino: int) -> Inode:
        node = self.report.node(ino) if ino < SHARED_INO else self.policy.node(ino)
        if node is None:
            raise FsError(errno.ENOENT)
        return node

    def read(self, ino: int, offset: int, size: int) -> bytes:
        if ino < VIRTUAL_BASE:
            return self.files.read(ino, offset, size)
        return self.report.read(ino, offset, size) if ino < SHARED_INO else b""

    def read_parts(self, ino: int, offset: int, size: int) -> Sequence[bytes | memoryview]:
        """What `read` returns, in the pieces in which it was decoded."""
        return self.files.read_parts(ino, offset, size)

    def is_quick_to_read(self, ino: int, offset: int) -> bool:
        """Whether a read would keep nobody waiting."""
        return ino >= VIRTUAL_BASE or self.files.is_quick(ino, offset)

    def statfs(self, caller: Caller) -> Statfs:
        if caller.uid not in (0, self.options.uid):
            shares = [record for _, record in self._table.shares_of(caller.uid)]
            held = sum(record.stored for record in shares)
            if self.quotas is not None:
                held = self.quotas.accounts.total(self.quotas.accounts.of(caller.uid))
            return _as_if_alone(self.room.limits, held, sum(record.files for record in shares))
        disk = os.statvfs(self.store.path)
        limit = self.room.limits.max_size
        left = min(max(0, limit - self.room.used_bytes()), disk.f_bavail * disk.f_frsize)
        return Statfs(blocks=limit // BLOCK, free=left // BLOCK, files=disk.f_files, files_free=disk.f_ffree)

    # --- opening ------------------------------------------------------------------------------------------------------

    def authorize_open(self, caller: Caller, ino: int, flags: int) -> bool:
        """Returns whether the handle may use the kernel's page cache. For engines that see every open."""
        return self.policy.authorize_open(caller, ino, flags)

    def opened(self, ino: int) -> None:
        """A handle to the inode exists: it lives, unsealed, until `released`. For engines that see every open."""
        self.nodes.open_handle(ino)

    def released(self, ino: int) -> None:
        self._lifetimes.close_handle(ino)

    # --- writing ------------------------------------------------------------------------------------------------------

    def authorize_write(self, caller: Caller, ino: int, end: int = 0) -> None:
        """Authorize a write up to `end`."""
        if self._has_policy:
            self.policy.authorize_write(caller, ino)
        if self.quotas is not None and ino < VIRTUAL_BASE:
            self.quotas.authorize_write(caller, ino, end)

    def is_quick_to_write(self, ino: int, end: int = 0) -> bool:
        """Whether a write up to `end` would keep nobody waiting: no large object is brought back, and there is room."""
        return ino >= VIRTUAL_BASE or (self.files.is_quick_to_change(ino) and self.has_room_to_write(ino, end))

    def has_room_to_write(self, ino: int, end: int) -> bool:
        """Whether a write up to `end` need not wait for room."""
        return (self.quotas is None or self.quotas.fits(ino, end)) and self.room.has_room.is_set()

    def write(self, ino: int, offset: int, data: bytes | memoryview, *, may_wait: bool = True) -> int:
        """Write; if there is no room, wait for room first. The thread that answers requests must not wait."""
        if ino >= VIRTUAL_BASE:
            raise FsError(errno.EROFS, "a file that exists only in memory cannot hold bytes")
        if may_wait:
            with self.quotas.room_for(ino, offset + len(data)) if self.quotas is not None else _ANY_ROOM:
                if self.room.has_room.is_set():
                    with contextlib.suppress(NoSpace):
                        return self.write(ino, offset, data, may_wait=False)
                    if self.room.check():  # the limits hold: eviction would not begin
                        self.store.slots.trim()
                        return self.write(ino, offset, data, may_wait=False)
                return self._write_when_crowded(ino, offset, data)
        written = self.files.write(ino, offset, data)
        self._unchecked += written
        if self._unchecked > PRESSURE_BYTES:
            self._unchecked = 0
            self.room.check()
        return written

    def _write_when_crowded(self, ino: int, offset: int, data: bytes | memoryview) -> int:
        """Try again: sealing takes room before it frees any. It may have used the last, but sealed files can go."""
        until = time.monotonic() + self.room.patience_seconds
        for _ in range(CROWDED_TRIES):
            owner = self.nodes.get(ino).uid
            self.room.wait(ino, owner, until)
            if self.quotas is not None:
                self.quotas.check_barred(owner)
            if self.room.is_full:
                raise FsError(errno.ENOSPC, _FULL)
            with contextlib.suppress(NoSpace):
                return self.files.write(ino, offset, data)
        return self.files.write(ino, offset, data)

    # --- attributes ---------------------------------------------------------------------------------------------------

    def authorize_change(self, caller: Caller, ino: int, *, size: int | None = None, owner: bool = False) -> None:
        """Authorize a change of the size to `size`, of mode or owner (`owner`), or of times if neither is given."""
        self.policy.authorize_change(caller, ino, size=size, owner=owner)
        if size and ino < VIRTUAL_BASE:
            if self.room.is_full and size > self.files.attributes(ino).size:
                raise FsError(errno.ENOSPC, _FULL)
            if self.quotas is not None:
                self.quotas.check_size(caller, ino, size)

    def is_quick_to_resize(self, ino: int, size: int) -> bool:
        """Whether a truncation would keep nobody waiting: it brings no large object back, and does not free much."""
        return ino >= VIRTUAL_BASE or self.files.is_quick_to_resize(ino, size)

    def set_attributes(self, caller: Caller, ino: int, **changes: Unpack[AttributeChanges]) -> Inode:
        """Change the attributes that are given, times in nanoseconds; ctime becomes now."""
        size = changes.get("size")
        if ino >= VIRTUAL_BASE:
            if ino < SHARED_INO:
                raise FsError(errno.EPERM, "the report's folder cannot be changed")
            if size:
                raise FsError(errno.EROFS, "a file that exists only in memory cannot hold bytes")
            return self.attributes(ino)
        if self.policy.ignores_changes(caller, ino):
            return self.attributes(ino)
        if size is not None:
            self.files.truncate(ino, size)
            if all(value is None for name, value in changes.items() if name != "size"):
                return self.attributes(ino)
        return self.shown(ino, self._set_metadata(ino, changes))

    def _set_metadata(self, ino: int, changes: AttributeChanges) -> Inode:
        mode, uid, gid = changes.get("mode"), changes.get("uid"), changes.get("gid")
        atime, mtime = changes.get("atime"), changes.get("mtime")
        with self.nodes.change() as txn:
            node = self.files.attributes(ino)
            if mode is not None:
                node.mode = self.policy.allowed_mode(stat.S_IFMT(node.mode) | stat.S_IMODE(mode))
            if uid is not None:
                self._counts.hand_over(txn, node, uid)
                node.uid = uid
            if gid is not None:
                node.gid = gid
            if atime is not None:
                node.atime = atime
            if mtime is not None:
                node.mtime = mtime
            node.ctime = time.time_ns()
            if atime is not None or mtime is not None:
                self.files.set_times(ino, node)
            self.nodes.save(txn, ino, node)
        return node

    # --- allocating ---------------------------------------------------------------------------------------------------

    def authorize_allocate(self, caller: Caller, ino: int, mode: int, offset: int, length: int) -> None:
        self.authorize_change(caller, ino, size=None if mode & KEEP_SIZE else offset + length)
        self.policy.authorize_allocate(caller, ino)
        if self.quotas is not None and ino < VIRTUAL_BASE:
            self.quotas.check_allocation(caller, ino, mode, offset, length)

    def is_quick_to_allocate(self, ino: int, offset: int, length: int) -> bool:
        """Whether an allocation would keep nobody waiting: it is small, and there is room for it."""
        return length <= ALLOCATED_BYTES and self.is_quick_to_write(ino, offset + length)

    def fallocate(self, ino: int, mode: int, offset: int, length: int, *, may_wait: bool = True) -> None:
        """Allocate piece by piece; each piece waits for room like a write. Without room the rest is not allocated."""
        check_allocation(mode, offset, length)
        if mode & PUNCH_HOLE:
            with self.quotas.room_for_hole(ino, offset, length) if may_wait and self.quotas is not None else _ANY_ROOM:
                self.files.fallocate(ino, mode, offset, length)
            return
        if length > self.room.limits.max_size:
            raise FsError(errno.ENOSPC, f"{length} bytes exceed the quota")
        end = offset + length
        for start in range(offset, end, ALLOCATED_BYTES):
            if may_wait and not self.room.wait_long():
                raise FsError(errno.ENOSPC, "the quota or the disk is used up")
            piece_end = min(start + ALLOCATED_BYTES, end)
            with self.quotas.room_for(ino, piece_end) if may_wait and self.quotas is not None else _ANY_ROOM:
                self.files.fallocate(ino, mode, start, piece_end - start)
            if length > PRESSURE_BYTES:
                self.room.check()

    # --- the rest -----------------------------------------------------------------------------------------------------

    def sync(self, ino: int) -> None:
        """fsync of a file or a directory."""
        if ino < VIRTUAL_BASE:
            self._syncer.sync(ino)

    def condemn(self, ino: int, error: Exception) -> None:
        """Drop all names of a file whose bytes cannot be trusted, so that it is made again when needed. Any thread.

        If even that fails, the file stays as it is, and the next read of it fails again.
        """
        log.error("inode %d is dropped: %s", ino, error)
        try:
            if (node := self.nodes.get(ino)).is_file:
                entry = self._table.get(node.entry) if node.entry else None
                for parent, name in self.distrust.drop_files({ino}):
                    self.name_gone(parent, name)
                if entry is not None:
                    self._history.note_gone(entry, "damaged")
        except Exception:
            log.exception("inode %d could not be dropped", ino)


def _as_if_alone(limits: Limits, held: int, files: int) -> Statfs:
    """The free space for one user, from their own quota and files: totals would show what others have."""
    limit = limits.max_size_per_uid or limits.max_size
    free = max(0, limit - held) // BLOCK
    return Statfs(blocks=limit // BLOCK, free=free, files=_FILES, files_free=_FILES - files)
