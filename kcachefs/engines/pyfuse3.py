"""The pyfuse3 engine: the same filesystem through libfuse, on trio. The reference for the direct engine.

It is slower, and its limits are those of libfuse and pyfuse3: every open and close is a message, listings are not
cached, there is no fallocate, and a worker that dies takes the mount with it. A handle is the inode's number, unless it
matters who writes.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, Unpack, cast

import pyfuse3
import trio

from kcachefs.core import Filesystem
from kcachefs.core.caller import NOBODY, Caller
from kcachefs.core.files import is_damage
from kcachefs.core.options import FOREVER_SECONDS as FOREVER
from kcachefs.core.options import AttributeChanges
from kcachefs.core.remote import MISS_SECONDS, Found
from kcachefs.core.request_times import RequestTimes
from kcachefs.core.tree import DOTDOT
from kcachefs.engines.pyfuse3_kernel import Pyfuse3Kernel
from kcachefs.engines.pyfuse3_replies import as_entry, as_handle, as_statfs
from kcachefs.errors import FsError, KcachefsError, NoSpace, errno_of
from kcachefs.store.inode_numbers import HANDLE_BASE, VIRTUAL_BASE
from kcachefs.store.records import Inode

log = logging.getLogger(__name__)

_FETCHING_THREADS = 64
"""Lookups that wait for a remote tier."""
_WAITING_THREADS = 32
"""Writes that wait for room have threads of their own: the other helper threads may be needed to make room."""
_OF_BYTES = ("read", "write", "setattr", "fsync")
"""Methods that fail if a file's bytes are damaged. Their first argument is that file."""
_Method = TypeVar("_Method", bound=Callable[..., Awaitable[Any]])


class Pyfuse3Engine:
    """Serves one filesystem on an open /dev/fuse descriptor."""

    name = "pyfuse3"

    def __init__(self, fs: Filesystem, device: int, kernel: Pyfuse3Kernel) -> None:
        # Under this name, libfuse accepts a descriptor that is mounted already.
        pyfuse3.init(Operations(fs, kernel), f"/dev/fd/{device}", set())
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._began = threading.Event()
        self._ended = threading.Event()
        self._turned = threading.Event()
        """Set by the loop when it gets to the call that `request_at_hand` queued."""
        self._turned.set()

    def serve(self) -> None:
        """Answer requests until the filesystem is unmounted, or `stop` is called."""
        try:
            trio.run(self._main)
        finally:
            self._began.set()
            self._ended.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._began.set()
        try:
            with self._scope:
                await pyfuse3.main()
        finally:
            pyfuse3.close(unmount=False)

    def stop(self) -> None:
        self._began.wait()
        self._in_loop(self._scope.cancel)
        self._ended.wait()

    def request_at_hand(self) -> object:
        """The event that we asked trio's loop to set, until it is set: a handler that hangs blocks the loop."""
        if not self._turned.is_set():
            return self._turned
        self._turned = threading.Event()
        if not self._in_loop(self._turned.set):
            self._turned.set()
        return None

    def _in_loop(self, function: Callable[[], object]) -> bool:
        """Have trio's thread call `function`; returns whether there is a loop."""
        with contextlib.suppress(trio.RunFinishedError):
            if self._token is not None:
                self._token.run_sync_soon(function)
                return True
        return False


def _guarded(method: _Method) -> _Method:
    """Turn every error into an errno: an exception that escaped would take the mount down."""
    verb = method.__name__

    @functools.wraps(method)
    async def call(self: Operations, *arguments: Any) -> Any:
        self.counts[verb] = self.counts.get(verb, 0) + 1
        began = time.monotonic_ns()
        try:
            return await method(self, *arguments)
        except pyfuse3.FUSEError:
            raise
        except Exception as error:
            if is_damage(error) and verb in _OF_BYTES:
                ino = self.real(arguments[0]) if verb == "setattr" else self.handles.of(arguments[0])[0]
                await trio.to_thread.run_sync(self.fs.condemn, ino, error)
                raise pyfuse3.FUSEError(errno.EIO) from None
            if not isinstance(error, FsError):
                is_bug = not isinstance(error, (KcachefsError, OSError))
                log.error("%s%r failed: %s", verb, arguments[:2], error, exc_info=is_bug)
            raise pyfuse3.FUSEError(errno_of(error)) from None
        finally:
            self.times.setdefault(verb, RequestTimes()).note(time.monotonic_ns() - began)

    return cast(_Method, call)


class Handles:
    """Open files. A handle is the inode's number, or stands for an inode and the caller that opened it for writing."""

    def __init__(self) -> None:
        self._writers: dict[int, tuple[int, Caller]] = {}
        self._next = HANDLE_BASE

    def open(self, ino: int, writer: Caller) -> int:
        handle, self._next = self._next, self._next + 1
        self._writers[handle] = ino, writer
        return handle

    def of(self, handle: int) -> tuple[int, Caller]:
        """The inode, and the writer if it is known."""
        return self._writers.get(handle, (handle, NOBODY))

    def close(self, handle: int) -> int:
        """Returns the inode."""
        ino, _ = self.of(handle)
        self._writers.pop(handle, None)
        return ino


class Operations(pyfuse3.Operations):
    """One method per request, each a call of the core."""

    supports_dot_lookup = True
    enable_writeback_cache = False
    enable_acl = False

    def __init__(self, fs: Filesystem, kernel: Pyfuse3Kernel) -> None:
        super().__init__()
        self.fs = fs
        self.counts = kernel.counts
        self.times = kernel.times
        self._shown = fs.hide_number or _same
        self.real = fs.real_number or _same
        """With pyfuse3 the kernel knows inodes by the numbers that attributes show: it cannot be given other ones."""
        self.handles = Handles()
        self._fetching = trio.CapacityLimiter(_FETCHING_THREADS)
        self._waiting = trio.CapacityLimiter(_WAITING_THREADS)

    # --- names --------------------------------------------------------------------------------------------------------

    @_guarded
    async def lookup(self, parent_inode: Any, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        if not self.fs.is_quick_to_look_up(parent_inode, name):
            ino = await trio.to_thread.run_sync(self.fs.lookup, _caller(ctx), parent_inode, name)
        else:
            ino = await _look_up(self.fs, _caller(ctx), self.real(parent_inode), name, self._fetching)
        if ino is None:
            miss = pyfuse3.EntryAttributes()
            miss.st_ino = 0
            miss.entry_timeout = MISS_SECONDS if self.fs.has_remote else FOREVER
            return miss
        return self._entry(ino, self.fs.attributes(ino))

    def _entry(self, ino: int, node: Inode) -> pyfuse3.EntryAttributes:
        return as_entry(self._shown(ino), node, self.fs.name_seconds(ino, node))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        for ino, count in inode_list:
            try:
                self.fs.forget(self.real(ino), count)
            except Exception:
                log.exception("forget of inode %d failed", ino)

    @_guarded
    async def mkdir(self, parent_inode: Any, name: bytes, mode: int, ctx: Any) -> pyfuse3.EntryAttributes:
        return self._entry(*self.fs.make(_caller(ctx), self.real(parent_inode), name, 0o040000 | (mode & 0o7777)))

    @_guarded
    async def mknod(self, parent_inode: Any, name: bytes, mode: int, rdev: int, ctx: Any) -> pyfuse3.EntryAttributes:
        return self._entry(*self.fs.make(_caller(ctx), self.real(parent_inode), name, mode, rdev=rdev))

    @_guarded
    async def symlink(self, parent_inode: Any, name: bytes, target: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        return self._entry(*self.fs.make(_caller(ctx), self.real(parent_inode), name, 0o120777, target=target))

    @_guarded
    async def link(self, inode: Any, new_parent_inode: Any, new_name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        ino = self.real(inode)
        return self._entry(ino, self.fs.link(_caller(ctx), ino, self.real(new_parent_inode), new_name))

    @_guarded
    async def unlink(self, parent_inode: Any, name: bytes, ctx: Any) -> None:
        self.fs.unlink(_caller(ctx), self.real(parent_inode), name)

    @_guarded
    async def rmdir(self, parent_inode: Any, name: bytes, ctx: Any) -> None:
        self.fs.rmdir(_caller(ctx), self.real(parent_inode), name)

    @_guarded
    async def rename(
        self, parent_inode_old: Any, name_old: bytes, parent_inode_new: Any, name_new: bytes, flags: int, ctx: Any
    ) -> None:
        caller, old, new = _caller(ctx), self.real(parent_inode_old), self.real(parent_inode_new)
        if self.fs.is_quick_to_rename(old, name_old, new, name_new):
            self.fs.rename(caller, old, name_old, new, name_new, flags)
            return
        self.fs.authorize_rename(caller, old, name_old, new, name_new, flags)
        await trio.to_thread.run_sync(self.fs.rename, caller, old, name_old, new, name_new, flags)

    @_guarded
    async def readlink(self, inode: Any, ctx: Any) -> bytes:
        return self.fs.readlink(_caller(ctx), self.real(inode))

    @_guarded
    async def opendir(self, inode: Any, ctx: Any) -> Any:
        ino = self.real(inode)
        self.fs.note_listing(_caller(ctx), ino)
        return ino

    @_guarded
    async def readdir(self, fh: Any, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        cookie = start_id
        while rows := self.fs.listing(fh, cookie, 128):
            for position, name, ino, _ in rows:
                cookie = position
                if ino >= VIRTUAL_BASE and not self.fs.links_differ:
                    continue
                try:
                    entry = self._entry(ino, self.fs.attributes(ino))
                except FsError:
                    continue
                if not self.fs.is_listed_whole(ino):
                    entry.entry_timeout = 0  # makes the next use of an entry a lookup, which is its heartbeat
                if not pyfuse3.readdir_reply(token, name, entry, position):
                    return
                if position > DOTDOT:  # the kernel takes no reference for `.` and `..`
                    self.fs.hold(ino)

    # --- attributes and bytes -----------------------------------------------------------------------------------------

    @_guarded
    async def getattr(self, inode: Any, ctx: Any) -> pyfuse3.EntryAttributes:
        ino = self.real(inode)
        return self._entry(ino, self.fs.attributes(ino))

    @_guarded
    async def setattr(self, inode: Any, attr: Any, fields: Any, fh: Any, ctx: Any) -> pyfuse3.EntryAttributes:
        caller, ino = _caller(ctx), self.real(inode)
        self.fs.authorize_change(
            caller,
            ino,
            size=attr.st_size if fields.update_size else None,
            owner=fields.update_mode or fields.update_uid or fields.update_gid,
        )
        node = await _set_attributes(
            self.fs,
            caller,
            ino,
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            size=attr.st_size if fields.update_size else None,
            atime=attr.st_atime_ns if fields.update_atime else None,
            mtime=attr.st_mtime_ns if fields.update_mtime else None,
        )
        return self._entry(ino, node)

    @_guarded
    async def create(
        self, parent_inode: Any, name: bytes, mode: int, flags: int, ctx: Any
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        caller, is_new = _caller(ctx), bool(flags & os.O_EXCL)
        ino, node = self.fs.create(caller, self.real(parent_inode), name, mode, exclusively=is_new)
        return as_handle(_open(self, caller, ino, flags)), self._entry(ino, node)

    @_guarded
    async def open(self, inode: Any, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        caller, ino = _caller(ctx), self.real(inode)
        uses_cache = self.fs.authorize_open(caller, ino, flags)
        if flags & os.O_TRUNC:  # libfuse always asks the kernel to leave the truncation to us
            self.fs.authorize_change(caller, ino, size=0)
            await _set_attributes(self.fs, caller, ino, size=0, mtime=time.time_ns())
        self.fs.attributes(ino)
        self.fs.note_use(caller, ino)
        return as_handle(_open(self, caller, ino, flags), direct=not uses_cache)

    @_guarded
    async def read(self, fh: Any, off: int, size: int) -> bytes:
        ino = self.handles.of(fh)[0]
        if self.fs.is_quick_to_read(ino, off):
            return self.fs.read(ino, off, size)
        return await trio.to_thread.run_sync(self.fs.read, ino, off, size)

    @_guarded
    async def write(self, fh: Any, off: int, buf: bytes) -> int:
        # libfuse does not say who writes; the writer was judged when the file was opened.
        ino, writer = self.handles.of(fh)
        self.fs.authorize_write(writer, ino, off + len(buf))
        if self.fs.is_quick_to_write(ino, off + len(buf)):
            with contextlib.suppress(NoSpace):  # the disk is full: the write waits for room
                return self.fs.write(ino, off, buf, may_wait=False)
        return await trio.to_thread.run_sync(self.fs.write, ino, off, buf, limiter=self._waiting)

    @_guarded
    async def release(self, fh: Any) -> None:
        self.fs.released(self.handles.close(fh))

    async def releasedir(self, fh: Any) -> None:
        pass

    async def flush(self, fh: Any) -> None:
        raise pyfuse3.FUSEError(errno.ENOSYS)

    @_guarded
    async def fsync(self, fh: Any, datasync: bool) -> None:
        await trio.to_thread.run_sync(self.fs.sync, self.handles.of(fh)[0])

    fsyncdir = fsync

    @_guarded
    async def statfs(self, ctx: Any) -> pyfuse3.StatvfsData:
        return as_statfs(self.fs.statfs(_caller(ctx)))


async def _look_up(
    fs: Filesystem, caller: Caller, parent: int, name: bytes, fetching: trio.CapacityLimiter
) -> int | None:
    """Look a name up, and wait for it where a remote tier can deliver it."""
    if not fs.has_remote:
        return fs.lookup(caller, parent, name)
    refusal = None
    try:
        ino = fs.lookup(caller, parent, name)
    except FsError as error:
        if error.errno != errno.ENOENT:
            raise
        ino, refusal = None, error
    if ino is not None:
        return ino
    delivery = fs.missed(caller, parent, name)
    if delivery is Found.NOWHERE:
        if refusal is not None:
            raise refusal
        return None
    if delivery is not Found.HERE:
        # libfuse does not say when a caller is killed, so this waits until the delivery ends.
        await trio.to_thread.run_sync(delivery.wait, abandon_on_cancel=True, limiter=fetching)
    return fs.lookup(caller, parent, name)


async def _set_attributes(fs: Filesystem, caller: Caller, ino: int, **changes: Unpack[AttributeChanges]) -> Inode:
    """Make a change of attributes that is authorized already."""
    size = changes.get("size")
    if size is None or fs.is_quick_to_resize(ino, size):
        return fs.set_attributes(caller, ino, **changes)
    return await trio.to_thread.run_sync(functools.partial(fs.set_attributes, caller, ino, **changes))


def _open(operations: Operations, caller: Caller, ino: int, flags: int) -> int:
    """Note that an inode was opened; returns a new handle."""
    operations.fs.opened(ino)
    names_writer = operations.fs.names_writers and flags & os.O_ACCMODE != os.O_RDONLY
    return operations.handles.open(ino, caller) if names_writer else ino


def _same(number: int) -> int:
    return number


def _caller(context: Any) -> Caller:
    return Caller(context.uid, context.gid, context.pid)
