"""The filesystem as an engine sees it: one method per request, keyed by inode, raising errors that carry an errno.

An engine's thread calls the methods of a request. Beside it the daemon calls `files.seal_next`, `files.seal_quiet`,
`entries.flush`, `evictor.turn` and `evictor.reap`, each from a thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import time
from collections.abc import Callable
from typing import TypedDict

import msgspec

from kcachefs.core.entries import HEARTBEAT_SECONDS, Entries
from kcachefs.core.eviction import WAIT_WHEN_FULL_SECONDS, Evictor
from kcachefs.core.files import PUNCH_HOLE, Files, check_allocation
from kcachefs.core.layouts import NAMESPACES
from kcachefs.core.limits import Limits
from kcachefs.core.nodes import Nodes
from kcachefs.core.recall import Recall
from kcachefs.core.report import FOLDER, FOLDER_INO, VIRTUAL_BASE, ReportFolder, Statistics, statistics, statistics_of
from kcachefs.core.sharing import Sharing
from kcachefs.core.tree import DOTDOT, NAME_MAX, Tree
from kcachefs.errors import FsError, NoSpace
from kcachefs.store import Store
from kcachefs.store.records import GROUP_BASE, ROOT_INO, TENANTS, Inode, name_key, unpack_name

log = logging.getLogger(__name__)

BLOCK = 4096
CROWDED_TRIES = 3
PRESSURE_BYTES = 1 << 20
"""Bytes written after which the limits are looked at again, between the evictor's turns."""
ALLOCATED_BYTES = 16 << 20
"""Allocated at a time, between looks at the limits."""
_DOTS = (b".", b"..")
_RESERVED = (FOLDER, TENANTS)
REPORT_COOKIE = DOTDOT + 1
FOREVER_SECONDS = 3600
"""How long the kernel may trust names and attributes: every change comes through it, or is announced."""
PREFERRED_SIZE = 64 << 10
"""What a stat says is a good size to write in: C programs, gcc among them, then write 8 KiB at a time instead of 4."""
UNKNOWN = 0xFFFFFFFF
_KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK)


class FsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a filesystem is mounted."""

    limits: Limits = Limits()
    uid: int = 0
    gid: int = 0
    sharing: Sharing = Sharing()
    resumed: bool = False
    """The mount is there already, and its last worker died."""


class Statfs(msgspec.Struct, frozen=True):
    """What df shows: the quota as the size, and what is left of it, or of the disk beneath if that is less."""

    blocks: int
    free: int
    files: int
    files_free: int
    block_size: int = BLOCK
    name_max: int = NAME_MAX


class AttributeChanges(TypedDict, total=False):
    """What `set_attributes` may be asked to change; None: not that."""

    mode: int | None
    uid: int | None
    gid: int | None
    size: int | None
    atime: int | None
    mtime: int | None


class Filesystem:
    """One mounted tree over one store, shared as modes and owners allow."""

    links_differ = False
    """Whether a symbolic link leads different users to different places, so that the kernel must not keep it."""

    judges_opens = False
    """Whether `may_open` is to be asked of every open. It is where what is written through a map is judged."""

    def __init__(self, store: Store, options: FsOptions = FsOptions()) -> None:  # noqa: B008
        self.store = store
        self.options = options
        self._lock = store.catalog.lock
        self._get = store.catalog.get
        self.nodes = Nodes(store)
        self.entries = Entries(store, self.nodes)
        self.files = Files(store, self.nodes, self.entries)
        self.recall = Recall(store, resumed=options.resumed)
        self.tree = Tree(store, self.nodes, self.entries, self.recall)
        self.evictor = Evictor(store, self.nodes, self.tree, self.entries, options.limits)
        self.report = ReportFolder(options.uid, options.gid, self._told)
        self.pid = 0
        """On whose behalf the request at hand is made: a thread's number, or 0."""
        self.uid = UNKNOWN
        self.gid = UNKNOWN
        """Its user and group; UNKNOWN where the kernel does not tell."""
        self.requests: Callable[[], dict[str, int]] = dict
        """The engine's count of its requests."""
        self._unchecked = 0
        self.on_dropped: Callable[[int, bytes], None] = lambda parent, name: None
        """Told of every name that went without a request: the engine tells the kernel. Called with no lock held."""
        self.evictor.invalidate = self.name_gone
        self.evictor.attributes = self.files.attributes
        self.evictor.waiting = self.files.waiting
        self.evictor.unsealed = self.files.unsealed_bytes
        self.evictor.seal_waiting = self.files.seal_waiting
        self.tree.make_root(options.uid, options.gid)
        self._make_namespaces()
        if options.resumed:
            self.nodes.resume()
        else:
            self._drop_orphans()
        self._drop_unsynced()
        self.files.adopt()

    # --- names --------------------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> int | None:
        """The inode under a name, and one more reference that the kernel holds; None for a miss."""
        if parent == FOLDER_INO or (parent == ROOT_INO and name == FOLDER):
            return FOLDER_INO if parent == ROOT_INO else self.report.find(name)
        if name in _DOTS:
            return self.found(parent if name == b"." else self.nodes.get(parent).parent)
        if len(name) > NAME_MAX:
            raise FsError(errno.ENAMETOOLONG)
        raw = self._get(name_key(parent, name))
        if raw is None:
            return None
        ino = unpack_name(raw)[0]
        with self._lock:  # so that what is found here is not evicted before it is counted as in use
            try:
                node = self.nodes.get(ino)
            except FsError:
                return None  # it was, just now
            if self._is_heartbeat(ino, node):
                self.entries.touch(node.entry, self.pid, self.uid)
            return self.found(ino)

    def found(self, ino: int) -> int:
        """The kernel is told of an inode: it holds a reference until it forgets it."""
        lookups = self.nodes.lookups
        lookups[ino] = lookups.get(ino, 0) + 1
        return ino

    def name_seconds(self, ino: int, node: Inode) -> int:
        """How long the kernel may trust a name of this inode without asking again."""
        if ino >= VIRTUAL_BASE:
            return 0
        return HEARTBEAT_SECONDS if self._is_heartbeat(ino, node) else FOREVER_SECONDS

    def is_listed_whole(self, ino: int) -> bool:
        """Whether a listing may give the kernel this inode's attributes, and with them its name for a while."""
        return ino < VIRTUAL_BASE and self.nodes.exists(ino) and not self._is_heartbeat(ino, self.nodes.get(ino))

    def _is_heartbeat(self, ino: int, node: Inode) -> bool:
        """Whether a lookup of this inode's name is a use of its entry."""
        entry = node.entry
        return entry != 0 and (entry == ino or entry >= GROUP_BASE)

    def make(
        self, parent: int, name: bytes, mode: int, uid: int, gid: int, rdev: int = 0, target: bytes = b""
    ) -> tuple[int, Inode]:
        """mkdir, mknod, symlink: a new inode, which the kernel then holds."""
        if stat.S_IFMT(mode) in (stat.S_IFCHR, stat.S_IFBLK):
            raise FsError(errno.EPERM, "device files are refused")
        if stat.S_IFMT(mode) not in _KINDS or mode > 0o177777:
            raise FsError(errno.EINVAL)
        self._refuse_reserved(parent, name)
        ino, node = self.tree.create(parent, name, mode, uid, gid, rdev=rdev, target=target, pid=self.pid)
        return self.found(ino), self.shown(ino, node)

    def create(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> tuple[int, Inode]:
        """A new file, which the kernel then holds."""
        self._refuse_reserved(parent, name)
        ino, node = self.tree.create(parent, name, stat.S_IFREG | stat.S_IMODE(mode), uid, gid, pid=self.pid)
        return self.found(ino), self.shown(ino, node)

    def link(self, ino: int, parent: int, name: bytes) -> Inode:
        self._refuse_reserved(parent, name)
        self.tree.link(ino, parent, name)
        self.found(ino)
        return self.attributes(ino)

    def unlink(self, parent: int, name: bytes) -> None:
        self._refuse_reserved(parent, name)
        self.tree.unlink(parent, name)

    def rmdir(self, parent: int, name: bytes) -> None:
        self._refuse_reserved(parent, name)
        self.tree.rmdir(parent, name)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        self._refuse_reserved(parent, name)
        self._refuse_reserved(new_parent, new_name)
        self.tree.rename(parent, name, new_parent, new_name, flags, self.pid)

    def readlink(self, ino: int) -> bytes:
        node = self.nodes.get(ino)
        if not stat.S_ISLNK(node.mode):
            raise FsError(errno.EINVAL)
        return node.target

    def listing(self, ino: int, cookie: int, limit: int) -> list[tuple[int, bytes, int, int]]:
        """Names behind `cookie` as (cookie, name, inode, type), at most `limit`; 0 starts from the top."""
        if ino == FOLDER_INO:
            return self.report.listing(cookie)
        rows = self.tree.listing(ino, cookie, limit)
        if ino == ROOT_INO and cookie < REPORT_COOKIE:
            rows.insert(DOTDOT - min(cookie, DOTDOT), (REPORT_COOKIE, FOLDER, FOLDER_INO, stat.S_IFDIR >> 12))
        return rows

    def forget(self, ino: int, count: int) -> None:
        """The kernel lets go of `count` references."""
        if ino >= VIRTUAL_BASE:
            self.report.forget(ino)
        else:
            self.nodes.forget(ino, count)

    def _refuse_reserved(self, parent: int, name: bytes) -> None:
        if parent == FOLDER_INO or (parent == ROOT_INO and name in _RESERVED):
            raise FsError(errno.EPERM, "the report's folder and the private trees cannot be changed")

    # --- files --------------------------------------------------------------------------------------------------------

    def attributes(self, ino: int) -> Inode:
        """The inode with its size and times as they are now."""
        node = self.report.node(ino) if ino >= VIRTUAL_BASE else self.files.attributes(ino)
        if node is None:
            raise FsError(errno.ENOENT)
        return self.shown(ino, node)

    def shown(self, ino: int, node: Inode) -> Inode:
        """An inode as the kernel is told of it: with the mode and the owner that it is to enforce."""
        return node

    def read(self, ino: int, offset: int, size: int) -> bytes:
        return self.report.read(ino, offset, size) if ino >= VIRTUAL_BASE else self.files.read(ino, offset, size)

    def is_quick_to_read(self, ino: int, offset: int) -> bool:
        """Whether a read can be answered without keeping others waiting."""
        return ino >= VIRTUAL_BASE or self.files.is_quick(ino, offset)

    def is_quick_to_write(self, ino: int) -> bool:
        """Whether a write can: not when an object has to be brought back for it, nor while there is no room."""
        return self.files.is_quick_to_change(ino) and self.evictor.room.is_set()

    def is_quick_to_change(self, ino: int) -> bool:
        """Whether a truncation can: not when a large object has to be brought back for it."""
        return self.files.is_quick_to_change(ino)

    def is_quick_to_allocate(self, ino: int, length: int) -> bool:
        """Whether an allocation can: not either while there is no room for it, or so much that there may be none."""
        return length <= ALLOCATED_BYTES and self.files.is_quick_to_change(ino) and self.evictor.room.is_set()

    def write(self, ino: int, offset: int, data: bytes | memoryview) -> int:
        self._unchecked += len(data)
        if self._unchecked > PRESSURE_BYTES:
            self._unchecked = 0
            self.evictor.note_pressure()
        if self.evictor.room.is_set():
            return self.files.write(ino, offset, data)
        return self._write_when_crowded(ino, offset, data)

    def _write_when_crowded(self, ino: int, offset: int, data: bytes | memoryview) -> int:
        """Sealing takes room too before it gives any, and may have taken the last: what it sealed can be evicted."""
        for _ in range(CROWDED_TRIES):
            self.evictor.wait_for_room()
            if self.evictor.full:
                raise FsError(errno.ENOSPC, "the quota is used up and nothing can be evicted")
            with contextlib.suppress(NoSpace):
                return self.files.write(ino, offset, data)
        return self.files.write(ino, offset, data)

    def may_open(self, ino: int, flags: int) -> bool:
        """Refuse an open that a policy forbids; else whether the handle may use the kernel's cache, which all read.

        Asked by engines that are told of opens.
        """
        return True

    def may_change(self, ino: int, *, size: int | None = None, owner: bool = False) -> None:
        """Refuse what a policy forbids: a truncation or an allocation up to `size`, another mode or owner, other times.

        The engine's thread asks it before each, for there it is known who asks; what is done then judges no more.
        """
        if size and self.evictor.full and ino < VIRTUAL_BASE and size > self.files.attributes(ino).size:
            raise FsError(errno.ENOSPC, "the quota is used up and nothing can be evicted")

    def lists_afresh(self, ino: int) -> bool:
        """Whether a listing differs by who asks or by what else changed, so that the kernel must not keep it."""
        return False

    def opened(self, ino: int) -> None:
        """A handle to the inode exists: it lives, and is not sealed, until `released`. For engines that are told."""
        handles = self.nodes.handles
        handles[ino] = handles.get(ino, 0) + 1

    def released(self, ino: int) -> None:
        handles = self.nodes.handles
        left = handles.get(ino, 0) - 1
        if left > 0:
            handles[ino] = left
        else:
            handles.pop(ino, None)
            self.nodes.let_go(ino)

    def set_attributes(
        self,
        ino: int,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        size: int | None = None,
        atime: int | None = None,
        mtime: int | None = None,
    ) -> Inode:
        """Change what is given, times in nanoseconds; ctime becomes now."""
        if ino >= VIRTUAL_BASE:
            raise FsError(errno.EPERM, "the report's folder cannot be changed")
        if size is not None:
            self.files.truncate(ino, size)
        with self.nodes.change() as txn:
            node = self.files.attributes(ino)
            if mode is not None:
                node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
            if uid is not None:
                self.entries.handed_over(txn, node, uid)
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
        return self.shown(ino, node)

    def fallocate(self, ino: int, mode: int, offset: int, length: int) -> None:
        """A piece at a time, each of which waits for room as a write does. Where there is none, the rest is missing."""
        check_allocation(mode, offset, length)
        if mode & PUNCH_HOLE:
            self.files.fallocate(ino, mode, offset, length)
            return
        if length > self.options.limits.max_size:
            raise FsError(errno.ENOSPC, f"{length} bytes are more than the quota")
        end = offset + length
        for start in range(offset, end, ALLOCATED_BYTES):
            self.refuse_piece(ino)
            self.files.fallocate(ino, mode, start, min(ALLOCATED_BYTES, end - start))
            if length > PRESSURE_BYTES:
                self.evictor.note_pressure()

    def refuse_piece(self, ino: int) -> None:
        """Wait until there is room to allocate more for a file; raises where there is none to come."""
        if not self.evictor.room.is_set() and (self.evictor.full or not self.evictor.room.wait(WAIT_WHEN_FULL_SECONDS)):
            raise FsError(errno.ENOSPC, "the quota is used up, or the disk")

    def sync(self, ino: int) -> None:
        """fsync of a file or a directory."""
        if ino < VIRTUAL_BASE:
            self.files.sync(ino)

    def statfs(self) -> Statfs:
        disk = os.statvfs(self.store.path)
        limit = self.options.limits.max_size
        left = min(max(0, limit - self.store.used_bytes()), disk.f_bavail * disk.f_frsize)
        return Statfs(blocks=limit // BLOCK, free=left // BLOCK, files=disk.f_files, files_free=disk.f_ffree)

    def condemn(self, ino: int, error: Exception) -> None:
        """Its bytes cannot be trusted: drop every name of it, so that whoever needs it makes it again. Any thread.

        Where even that fails, it stays as it is, and fails again when it is read again.
        """
        log.error("inode %d is dropped: %s", ino, error)
        try:
            if self.nodes.get(ino).is_file:
                for parent, name in self.tree.drop_files({ino}):
                    self.name_gone(parent, name)
        except Exception:
            log.exception("inode %d could not be dropped", ino)

    def name_gone(self, parent: int, name: bytes) -> None:
        """A name went, or may be about to: the kernel is to ask again wherever it is shown. No lock is held."""
        self.on_dropped(parent, name)

    # --- beside the requests ------------------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        max_size, nameless = self.options.limits.max_size, len(self.nodes.orphans)
        return statistics(self.store, self.entries, max_size, nameless, self.requests())

    def _told(self) -> Statistics:
        """What whoever reads the report may know: the mount's owner and root everything, others what is theirs."""
        if self.uid in (0, self.options.uid):
            return self.statistics()
        limits = self.options.limits
        return statistics_of(self.uid, self.entries, limits.max_size_per_uid or limits.max_size)

    def settle(self) -> None:
        """Seal everything that waits and put it all on disk: what an unmount waits for.

        What cannot be sealed, because its record is damaged or the disk is full, is kept as it is.
        """
        for _ in range(self.files.waiting()):
            try:
                self.files.seal_next(0)
            except Exception as error:
                log.error("a file could not be sealed, and is left as it is: %s", error)
        self.entries.flush()
        self.store.fold()

    # --- at mount -----------------------------------------------------------------------------------------------------

    def _make_namespaces(self) -> None:
        for name in NAMESPACES:
            ino = self.tree.find(ROOT_INO, name.encode())
            if ino is None:
                ino, _ = self.tree.create(
                    ROOT_INO, name.encode(), stat.S_IFDIR | 0o1777, self.options.uid, self.options.gid
                )
            self.tree.protected.add(ino)

    def _drop_orphans(self) -> None:
        for ino in list(self.nodes.orphans):
            self.nodes.let_go(ino)

    def _drop_unsynced(self) -> None:
        """After a power loss a file that was never sealed nor synced may be short or empty: it is as if never written.

        A cache can miss; it must not serve half a file under a name that says it is whole.
        """
        if not self.store.lost_power:
            return
        doubtful = {ino for ino, node in self.files.unsealed() if not node.flags & (Inode.MUTABLE | Inode.SYNCED)}
        if doubtful:
            for _ in self.tree.drop_files(doubtful):
                pass  # no engine serves yet that could tell the kernel
        self.store.power_loss_settled()
