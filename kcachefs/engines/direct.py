"""The direct engine: the kernel's FUSE protocol on /dev/fuse, one blocking loop, no library between.

Most reads never get here. What makes that so, each confirmed by measurement:

- OPEN is answered ENOSYS once; from then on the kernel sends none, nor any RELEASE, and keeps the page cache over
  opens. READ and WRITE carry the node id, so no handle is needed. Under a policy that has to know who opens a file for
  writing each OPEN is a message; the page cache is kept all the same.
- Listings are cached whole by the kernel. OPENDIR is a message all the same: without it a listing that began before a
  change can fill the cache that another, begun after it, goes on reading from (seen with 16 processes in one directory:
  a name still listed by the process that had removed it). So the first OPENDIR after a change has the kernel drop what
  it cached; what is filled in later is at least as new as that change.
- FLUSH and GETXATTR are answered ENOSYS once, and stop.
- A miss is an entry with node id 0 and a timeout, which the kernel remembers; ENOENT it would not.
- ATOMIC_O_TRUNC is not negotiated, so that O_TRUNC arrives as a SETATTR: with no OPEN it would be lost.

Every change comes through this kernel, so names and attributes are good for an hour; what changes without a request
(eviction, damage) is announced through the Notifier, from its own thread.

`serve` runs in one thread and is the only one to read the device. A request that would take long goes to a small pool,
which replies when it is done. A handler that raises is a line in the log and an EIO, never an exit.

A worker that takes over begins with what its predecessor took and did not answer: the kernel sends it again, or the
intake has it. A change of names that was made already is answered with what it came to then. All else can be done
again: a write has its place in its file, and its caller has not gone on yet.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import trio

from kcachefs.core import Filesystem
from kcachefs.core.files import KEEP_SIZE, MAX_SIZE, is_damage
from kcachefs.core.filesystem import UNKNOWN
from kcachefs.core.report import VIRTUAL_BASE
from kcachefs.core.tree import DOTDOT
from kcachefs.engines import protocol as p
from kcachefs.engines.anticipation import Anticipation
from kcachefs.engines.intake import Intake
from kcachefs.engines.notifier import Notifier
from kcachefs.engines.protocol import Fattr, Op
from kcachefs.engines.replies import (
    LISTING_AFRESH,
    LISTING_KEPT,
    LISTING_NEW,
    MISS,
    NO_ENTRY,
    OPENED,
    OPENED_UNCACHED,
    pack_attributes,
    pack_entry,
    pack_name,
)
from kcachefs.errors import FsError, NoSpace, RequestGarbled, errno_of
from kcachefs.store.records import Inode

log = logging.getLogger(__name__)

MAX_REQUEST = 1 << 20
READAHEAD = 4 << 20
"""What we allow. The kernel takes no more than is set for the mount, be it before or after, by the supervisor."""
_SLOW_THREADS = min(8, max(2, os.cpu_count() or 2))
"""Decoding lets go of the interpreter: what is read ahead of a sequential reader is decoded side by side."""
_NS = 1_000_000_000
_HEADER = p.IN_HEADER.size
_RESENT = 1 << 63
"""Set in the number of a request that the kernel sends again."""
_read_header = p.IN_HEADER.unpack_from
_reply_header = p.OUT_HEADER.pack

Handler = Callable[["DirectEngine", int, int, int], bytes | None]
"""(engine, node, unique, length of the request) → reply body, or None when the reply is sent otherwise or never."""


class DirectEngine:
    """Serves one filesystem on an open /dev/fuse descriptor."""

    name = "direct"

    def __init__(
        self,
        fs: Filesystem,
        device: int,
        intake: Intake | None = None,
        herald: socket.socket | None = None,
        *,
        resumed: bool = False,
        resend: bool = True,
    ) -> None:
        """`resumed`: takes over from a worker that died. Not `resend`: the kernel is not asked to send again."""
        self._fs = fs
        self._device = device
        self._resumed = resumed
        self._capabilities = _CAPABILITIES if resend else _CAPABILITIES & ~p.Init.HAS_RESEND
        self._intake = intake or Intake.alone()
        self._buffer = self._intake.buffer
        self._recall = fs.recall
        self._header: tuple[int, ...] = ()
        self._pool = ThreadPoolExecutor(_SLOW_THREADS, thread_name_prefix="kcachefs-slow")
        self._deferred: dict[int, Future[None]] = {}
        self._complained: set[int] = set()
        self._listed: dict[int, int] = {}
        """When each directory that was opened had last changed by then."""
        self.handling = False
        """A request is being carried out by `serve`'s thread."""
        self.counts = [0] * _OPCODES
        """Requests so far, by opcode."""
        self._keeps = not self._intake.agreed & p.Init.HAS_RESEND
        """The intake is needed: the kernel cannot send again what a worker took."""
        self.notifier = Notifier(device, herald)
        self.anticipation = Anticipation(device)
        fs.on_dropped = self.notifier.entry_gone
        fs.requests = self.statistics
        fs.nodes.ask_kernel = self.notifier.knows

    async def run(self) -> None:
        """`serve`, in a thread of its own."""
        await trio.to_thread.run_sync(self.serve, abandon_on_cancel=True)

    def serve(self) -> None:
        """Answer requests until the filesystem is unmounted."""
        self.notifier.start()
        if self._resumed:
            self._take_over()
        device, buffers, intake = self._device, [self._buffer], self._intake
        look, came, deferred = self.anticipation.look, self.anticipation.came, self._deferred
        try:
            while True:
                look(is_alone=not deferred)
                try:
                    length = os.readv(device, buffers)
                except OSError as error:
                    if error.errno == errno.ENODEV:
                        return
                    if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                        continue
                    raise
                came()
                self.handling = True
                self.handle(length)
                self.handling = False
                if self._keeps:
                    intake.answered()
        finally:
            self.close()

    def _take_over(self) -> None:
        """See to what the last worker took and did not answer."""
        if not self._keeps:
            self.notifier.resend()
            return
        left = list(self._intake.left())  # before the request in the buffer may take a slot itself
        if length := self._intake.unanswered():
            self.handle(length, resent=True)
            self._intake.answered()
        for slot, request, answer in left:
            if answer is not None:
                self._reply(p.IN_HEADER.unpack_from(request)[2], answer)
            else:
                self.feed(request, resent=True)
                self._intake.answered()
            self._intake.release(slot)

    def attention(self) -> object:
        """What `serve` is at, None when it waits: the same thing for long means that it hangs. Asked every second."""
        self.anticipation.weigh()
        return self._header if self.handling else None

    def close(self) -> None:
        """Answer what is still deferred, and stop."""
        self._pool.shutdown(wait=True)
        self.notifier.stop()
        self._intake.close()

    def feed(self, request: bytes, *, resent: bool = False) -> None:
        """Handle one request as if the kernel had sent it."""
        self._buffer[: len(request)] = request
        self.handle(len(request), resent=resent)

    def handle(self, length: int, *, resent: bool = False) -> None:
        """Answer the request of that length in the buffer."""
        if length < _HEADER:
            log.warning("a request of %d bytes is shorter than its header", length)
            return
        header = self._header = _read_header(self._buffer)
        fs = self._fs
        said, opcode, unique, node, fs.uid, fs.gid, fs.pid, _, _ = header
        if said != length:
            log.warning("request %d: says it has %d bytes and has %d", opcode, said, length)
            self._reply_error(unique, errno.EIO)
            return
        if opcode >= _OPCODES:
            self._unknown(opcode, unique)
            return
        self._recall.request = unique
        if (unique >= _RESENT or resent) and self._answer_again(opcode, unique):
            return
        handler, shortest = _HANDLERS[opcode]
        self.counts[opcode] += 1
        try:
            if length < shortest:
                raise RequestGarbled(f"{length} bytes are too few")
            body = handler(self, node, unique, length)
        except Exception as error:
            self._fail(error, opcode, unique, node)
            return
        if body is not None:
            self._reply(unique, body)

    def _answer_again(self, opcode: int, unique: int) -> bool:
        """Answer a change of names that a worker made before it died, if this was one."""
        number = self._recall.request = unique & ~_RESENT
        ino = self._recall.answer(number)
        if ino is None:
            return False
        body = b""
        if ino:
            try:
                body = self._entry(ino)
            except FsError:
                return False  # somebody removed it since
            self._fs.found(ino)
            if opcode == Op.CREATE:
                body += OPENED
        self._reply(unique, body)
        return True

    @property
    def requests(self) -> int:
        return sum(self.counts)

    def statistics(self) -> dict[str, int]:
        """Requests so far, by name."""
        known = {op.value: op.name.lower() for op in Op}
        return {known.get(code, f"opcode {code}"): count for code, count in enumerate(self.counts) if count}

    # --- replies ------------------------------------------------------------------------------------------------------

    def _reply(self, unique: int, body: bytes) -> None:
        length = 16 + len(body)
        try:
            if length < 8192:
                os.write(self._device, _reply_header(length, 0, unique) + body)
            else:
                os.writev(self._device, (_reply_header(length, 0, unique), body))
        except OSError as error:
            self._unsent(error)

    def _reply_parts(self, unique: int, parts: Sequence[bytes | memoryview]) -> None:
        try:
            os.writev(self._device, (_reply_header(16 + sum(map(len, parts)), 0, unique), *parts))
        except OSError as error:
            self._unsent(error)

    def _reply_error(self, unique: int, number: int) -> None:
        try:
            os.write(self._device, p.OUT_HEADER.pack(16, -number, unique))
        except OSError as error:
            self._unsent(error)

    def _unsent(self, error: OSError) -> None:
        # ENOENT: the caller was interrupted and is gone. ENODEV: so is the mount.
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            log.error("a reply was refused: %s", error)

    def _fail(self, error: Exception, opcode: int, unique: int, node: int) -> None:
        if is_damage(error) and opcode in _OF_BYTES:
            # Looking for its names may take long. The reply comes behind it: who asks again then finds it gone.
            self._pool.submit(self._condemn, node, unique, error)
            return
        if isinstance(error, RequestGarbled):
            log.warning("request %d on node %d cannot be read: %s", opcode, node, error)
        elif not isinstance(error, FsError):
            story = None if isinstance(error, NoSpace) else error
            log.error("request %d on node %d failed: %s", opcode, node, error, exc_info=story)
        self._reply_error(unique, errno_of(error))

    def _condemn(self, node: int, unique: int, error: Exception) -> None:
        try:
            self._fs.condemn(node, error)
        finally:
            self._reply_error(unique, errno.EIO)

    def _unknown(self, opcode: int, unique: int) -> None:
        if opcode not in self._complained and len(self._complained) < 256:
            self._complained.add(opcode)
            log.info("opcode %d is not known here and is answered ENOSYS", opcode)
        self._reply_error(unique, errno.ENOSYS)

    def _defer(self, unique: int, node: int, action: Callable[[], bytes | Sequence[bytes | memoryview]]) -> None:
        """Do it in the pool and reply from there."""
        opcode = self._header[1]
        slot = self._intake.put_aside(self._header[0]) if self._keeps else -1

        def run() -> None:
            try:
                body = action()
            except Exception as error:
                self._fail(error, opcode, unique, node)
            else:
                if not isinstance(body, bytes):
                    self._reply_parts(unique, body)
                    return
                if slot >= 0:
                    self._intake.carried_out(slot, body)
                self._reply(unique, body)

        if self._keeps and slot < 0:
            run()  # so much waits already that this could not be found again: it is done at once
            return
        future = self._deferred[unique] = self._pool.submit(run)
        future.add_done_callback(lambda _: self._finished(unique, slot))

    def _finished(self, unique: int, slot: int) -> None:
        self._deferred.pop(unique, None)
        if slot >= 0:
            self._intake.release(slot)

    # --- names --------------------------------------------------------------------------------------------------------

    def _lookup(self, node: int, unique: int, length: int) -> bytes:
        if self._buffer[length - 1]:
            raise RequestGarbled("a name without an end")
        ino = self._fs.lookup(node, self._buffer[_HEADER : length - 1].tobytes())
        if ino is None:
            return MISS
        return self._entry(ino)

    def _entry(self, ino: int) -> bytes:
        return self._pack_entry(ino, self._fs.attributes(ino))

    def _pack_entry(self, ino: int, node: Inode) -> bytes:
        return pack_entry(ino, node, self._fs.name_seconds(ino, node))

    def _forget(self, node: int, unique: int, length: int) -> None:
        self._fs.forget(node, p.FORGET_IN.unpack_from(self._buffer, _HEADER)[0])

    def _batch_forget(self, node: int, unique: int, length: int) -> None:
        count = p.BATCH_FORGET_IN.unpack_from(self._buffer, _HEADER)[0]
        start = _HEADER + p.BATCH_FORGET_IN.size
        if start + count * p.FORGET_ONE.size > length:
            raise RequestGarbled(f"{count} nodes do not fit into {length} bytes")
        for ino, references in p.FORGET_ONE.iter_unpack(self._buffer[start : start + count * p.FORGET_ONE.size]):
            try:
                self._fs.forget(ino, references)
            except Exception as error:  # a full disk: it is tried again later, and the others are not kept by it
                log.warning("inode %d is forgotten, and could not be removed yet: %s", ino, error)

    def _mkdir(self, node: int, unique: int, length: int) -> bytes:
        mode, _ = p.MKDIR_IN.unpack_from(self._buffer, _HEADER)
        name = self._name(_HEADER + p.MKDIR_IN.size, length)
        header = self._header
        return self._pack_entry(*self._fs.make(node, name, 0o040000 | (mode & 0o7777), header[4], header[5]))

    def _mknod(self, node: int, unique: int, length: int) -> bytes:
        mode, rdev, _, _ = p.MKNOD_IN.unpack_from(self._buffer, _HEADER)
        name = self._name(_HEADER + p.MKNOD_IN.size, length)
        header = self._header
        return self._pack_entry(*self._fs.make(node, name, mode, header[4], header[5], rdev=rdev))

    def _symlink(self, node: int, unique: int, length: int) -> bytes:
        name, target = self._two_names(_HEADER, length)
        header = self._header
        return self._pack_entry(*self._fs.make(node, name, 0o120777, header[4], header[5], target=target))

    def _create(self, node: int, unique: int, length: int) -> bytes:
        flags, mode, _, _ = p.CREATE_IN.unpack_from(self._buffer, _HEADER)
        name = self._name(_HEADER + p.CREATE_IN.size, length)
        header = self._header
        opened = OPENED
        try:
            ino, record = self._fs.create(node, name, mode, header[4], header[5])
        except FsError as error:
            if error.errno != errno.EEXIST or flags & os.O_EXCL:
                raise
            found = self._fs.lookup(node, name)
            if found is None:
                raise
            ino = found
            if not self._fs.may_open(ino, flags):
                opened = OPENED_UNCACHED
            record = self._fs.attributes(ino)
        return self._pack_entry(ino, record) + opened

    def _link(self, node: int, unique: int, length: int) -> bytes:
        (ino,) = p.LINK_IN.unpack_from(self._buffer, _HEADER)
        return self._pack_entry(ino, self._fs.link(ino, node, self._name(_HEADER + p.LINK_IN.size, length)))

    def _unlink(self, node: int, unique: int, length: int) -> bytes:
        self._fs.unlink(node, self._name(_HEADER, length))
        return b""

    def _rmdir(self, node: int, unique: int, length: int) -> bytes:
        self._fs.rmdir(node, self._name(_HEADER, length))
        return b""

    def _rename(self, node: int, unique: int, length: int) -> bytes:
        (new_parent,) = p.RENAME_IN.unpack_from(self._buffer, _HEADER)
        name, new_name = self._two_names(_HEADER + p.RENAME_IN.size, length)
        self._fs.rename(node, name, new_parent, new_name)
        return b""

    def _rename2(self, node: int, unique: int, length: int) -> bytes:
        new_parent, flags, _ = p.RENAME2_IN.unpack_from(self._buffer, _HEADER)
        name, new_name = self._two_names(_HEADER + p.RENAME2_IN.size, length)
        self._fs.rename(node, name, new_parent, new_name, flags)
        return b""

    def _readlink(self, node: int, unique: int, length: int) -> bytes:
        return self._fs.readlink(node)

    def _opendir(self, node: int, unique: int, length: int) -> bytes:
        changed = self._fs.attributes(node).mtime
        if self._fs.lists_afresh(node):
            return LISTING_AFRESH
        if self._listed.get(node) == changed:
            return LISTING_KEPT
        if len(self._listed) >= _LISTED_MAX:
            self._listed.clear()
        self._listed[node] = changed
        return LISTING_NEW

    def _readdir(self, node: int, unique: int, length: int) -> bytes:
        _, cookie, size = p.READ_IN.unpack_from(self._buffer, _HEADER)
        out: list[bytes] = []
        room = size
        for position, name, ino, kind in self._fs.listing(node, cookie, size // 32 + 2):
            record = pack_name(position, name, ino, kind)
            room -= len(record)
            if room < 0:
                break
            out.append(record)
        return b"".join(out)

    def _readdirplus(self, node: int, unique: int, length: int) -> bytes:
        _, cookie, size = p.READ_IN.unpack_from(self._buffer, _HEADER)
        fs, out, room = self._fs, [], size
        rows = fs.listing(node, cookie, size // 160 + 2)
        fs.nodes.get_ready(ino for _, _, ino, _ in rows if ino < VIRTUAL_BASE)
        for position, name, ino, kind in rows:
            record = pack_name(position, name, ino, kind)
            room -= len(record) + p.ENTRY.size
            if room < 0:
                break
            # An entry's name is listed without attributes: they would renew it, and a lookup of it is its heartbeat.
            if position <= DOTDOT or not fs.is_listed_whole(ino):
                out.append(NO_ENTRY + record)
                continue
            try:
                fs.found(ino)
                out.append(self._pack_entry(ino, fs.attributes(ino)) + record)
            except FsError:
                fs.forget(ino, 1)
        return b"".join(out)

    # --- attributes and bytes -----------------------------------------------------------------------------------------

    def _getattr(self, node: int, unique: int, length: int) -> bytes:
        return pack_attributes(node, self._fs.attributes(node))

    def _setattr(self, node: int, unique: int, length: int) -> bytes | None:
        fields = p.SETATTR_IN.unpack_from(self._buffer, _HEADER)
        valid = fields[0]
        size = fields[3] if valid & Fattr.SIZE else None
        self._fs.may_change(node, size=size, owner=bool(valid & (Fattr.MODE | Fattr.UID | Fattr.GID)))
        if size and not self._fs.is_quick_to_change(node):
            self._defer(unique, node, lambda: self._set_attributes(node, valid, fields))
            return None
        return self._set_attributes(node, valid, fields)

    def _set_attributes(self, node: int, valid: int, fields: tuple[int, ...]) -> bytes:
        now = time.time_ns()
        atime = mtime = None
        if valid & Fattr.ATIME:
            atime = now if valid & Fattr.ATIME_NOW else _moment(fields[5], fields[8])
        if valid & Fattr.MTIME:
            mtime = now if valid & Fattr.MTIME_NOW else _moment(fields[6], fields[9])
        record = self._fs.set_attributes(
            node,
            mode=fields[11] if valid & Fattr.MODE else None,
            uid=fields[13] if valid & Fattr.UID else None,
            gid=fields[14] if valid & Fattr.GID else None,
            size=fields[3] if valid & Fattr.SIZE else None,
            atime=atime,
            mtime=mtime,
        )
        return pack_attributes(node, record)

    def _open(self, node: int, unique: int, length: int) -> bytes | None:
        if not self._fs.judges_opens:
            self._reply_error(unique, errno.ENOSYS)
            return None
        uses_cache = self._fs.may_open(node, p.OPEN_IN.unpack_from(self._buffer, _HEADER)[0])
        return OPENED if uses_cache else OPENED_UNCACHED

    def _read(self, node: int, unique: int, length: int) -> bytes | None:
        _, offset, size = p.READ_IN.unpack_from(self._buffer, _HEADER)
        if offset + size > MAX_SIZE or size > MAX_REQUEST:
            raise RequestGarbled(f"cannot read {size} bytes at {offset}")
        if self._fs.is_quick_to_read(node, offset):
            return self._fs.read(node, offset, size)
        self._defer(unique, node, lambda: self._fs.files.read_parts(node, offset, size))
        return None

    def _write(self, node: int, unique: int, length: int) -> bytes | None:
        _, offset, size = p.WRITE_IN.unpack_from(self._buffer, _HEADER)
        if p.WRITE_DATA + size > length:
            raise RequestGarbled(f"{size} bytes to write are not in {length} bytes")
        data = self._buffer[p.WRITE_DATA : p.WRITE_DATA + size]
        if self._buffer[p.WRITE_FLAGS] & p.WRITE_CACHE:  # then the header says uid 0, which did not write it
            self._fs.uid = self._fs.gid = UNKNOWN
        if self._fs.is_quick_to_write(node):
            return p.WRITE_OUT.pack(self._fs.write(node, offset, data), 0)
        copy = bytes(data)
        self._defer(unique, node, lambda: p.WRITE_OUT.pack(self._fs.write(node, offset, copy), 0))
        return None

    def _fsync(self, node: int, unique: int, length: int) -> None:
        def sync() -> bytes:
            self._fs.sync(node)
            return b""

        self._defer(unique, node, sync)

    def _fallocate(self, node: int, unique: int, length: int) -> bytes | None:
        _, offset, size, mode, _ = p.FALLOCATE_IN.unpack_from(self._buffer, _HEADER)

        def allocate() -> bytes:
            self._fs.fallocate(node, mode, offset, size)
            return b""

        self._fs.may_change(node, size=None if mode & KEEP_SIZE else offset + size)
        if self._fs.is_quick_to_allocate(node, size):
            return allocate()
        self._defer(unique, node, allocate)
        return None

    # --- the filesystem as a whole ------------------------------------------------------------------------------------

    def _init(self, node: int, unique: int, length: int) -> bytes:
        major, minor, readahead, flags = p.INIT_IN.unpack_from(self._buffer, _HEADER)
        offered = flags
        if flags & p.Init.INIT_EXT and length >= _HEADER + 20:
            offered |= struct.unpack_from("<I", self._buffer, _HEADER + 16)[0] << 32
        if major < p.MAJOR:
            raise FsError(errno.EPROTO, f"the kernel speaks FUSE {major}.{minor}")
        if major > p.MAJOR:  # it asks again with ours
            return p.INIT_OUT.pack(p.MAJOR, p.MINOR, *[0] * 10)
        wanted = offered & self._capabilities
        if self._fs.links_differ:
            wanted &= ~p.Init.CACHE_SYMLINKS
        if self._fs.options.sharing.idmap:
            wanted |= offered & p.Init.ALLOW_IDMAP
        self._intake.agree(wanted)
        self._keeps = not wanted & p.Init.HAS_RESEND
        log.debug("kernel protocol %d.%d, capabilities %#x of %#x", major, minor, wanted, offered)
        return p.INIT_OUT.pack(
            p.MAJOR,
            min(minor, p.MINOR),
            max(readahead, READAHEAD),
            wanted & 0xFFFFFFFF,
            64,
            48,
            MAX_REQUEST,
            1,
            MAX_REQUEST // 4096,
            0,
            wanted >> 32,
            0,
        )

    def _statfs(self, node: int, unique: int, length: int) -> bytes:
        state = self._fs.statfs()
        return p.STATFS_OUT.pack(
            state.blocks,
            state.free,
            state.free,
            state.files,
            state.files_free,
            state.block_size,
            state.name_max,
            state.block_size,
            0,
        )

    def _interrupt(self, node: int, unique: int, length: int) -> None:
        """Its caller was killed: what has not begun need not be done. What has begun is answered as usual."""
        (target,) = p.INTERRUPT_IN.unpack_from(self._buffer, _HEADER)
        future = self._deferred.get(target)
        if future is not None and future.cancel():
            self._deferred.pop(target, None)
            self._reply_error(target, errno.EINTR)

    def _done(self, node: int, unique: int, length: int) -> bytes:
        return b""

    def _not_offered(self, node: int, unique: int, length: int) -> None:
        self._reply_error(unique, errno.ENOSYS)

    def _ignored(self, node: int, unique: int, length: int) -> None:
        pass

    # --- reading the request ------------------------------------------------------------------------------------------

    def _name(self, start: int, length: int) -> bytes:
        if self._buffer[length - 1]:
            raise RequestGarbled("a name without an end")
        return self._buffer[start : length - 1].tobytes()

    def _two_names(self, start: int, length: int) -> tuple[bytes, bytes]:
        names = self._name(start, length).split(b"\0")
        if len(names) != 2:
            raise RequestGarbled(f"{len(names)} names instead of two")
        return names[0], names[1]


_CAPABILITIES = (
    p.Init.ASYNC_READ
    | p.Init.BIG_WRITES
    | p.Init.DO_READDIRPLUS
    | p.Init.READDIRPLUS_AUTO
    | p.Init.PARALLEL_DIROPS
    | p.Init.MAX_PAGES
    | p.Init.CACHE_SYMLINKS
    | p.Init.INIT_EXT
    | p.Init.HAS_RESEND
)

_OF_BYTES = (Op.READ, Op.WRITE, Op.SETATTR, Op.FALLOCATE, Op.FSYNC)
"""What fails when a file's bytes are damaged; its node is that file."""

_LISTED_MAX = 16384


def _moment(seconds: int, nanoseconds: int) -> int:
    """Nanoseconds; what lies beyond the years 1677 to 2262 becomes the nearest that can be kept."""
    return max(-MAX_SIZE, min(MAX_SIZE, seconds * _NS + nanoseconds))


def _table() -> list[tuple[Handler, int]]:
    """By opcode: who answers it, and the length below which it cannot be answered."""
    engine, name = DirectEngine, 2
    answered: dict[Op, tuple[Handler, int]] = {
        Op.LOOKUP: (engine._lookup, name),
        Op.FORGET: (engine._forget, p.FORGET_IN.size),
        Op.GETATTR: (engine._getattr, 0),
        Op.SETATTR: (engine._setattr, p.SETATTR_IN.size),
        Op.READLINK: (engine._readlink, 0),
        Op.SYMLINK: (engine._symlink, 2 * name),
        Op.MKNOD: (engine._mknod, p.MKNOD_IN.size + name),
        Op.MKDIR: (engine._mkdir, p.MKDIR_IN.size + name),
        Op.UNLINK: (engine._unlink, name),
        Op.RMDIR: (engine._rmdir, name),
        Op.RENAME: (engine._rename, p.RENAME_IN.size + 2 * name),
        Op.LINK: (engine._link, p.LINK_IN.size + name),
        Op.OPEN: (engine._open, p.OPEN_IN.size),
        Op.READ: (engine._read, p.READ_IN.size),
        Op.WRITE: (engine._write, p.WRITE_DATA - _HEADER),
        Op.STATFS: (engine._statfs, 0),
        Op.RELEASE: (engine._done, 0),
        Op.FSYNC: (engine._fsync, 0),
        Op.INIT: (engine._init, p.INIT_IN.size),
        Op.OPENDIR: (engine._opendir, 0),
        Op.RELEASEDIR: (engine._done, 0),
        Op.READDIR: (engine._readdir, p.READ_IN.size),
        Op.FSYNCDIR: (engine._fsync, 0),
        Op.CREATE: (engine._create, p.CREATE_IN.size + name),
        Op.INTERRUPT: (engine._interrupt, p.INTERRUPT_IN.size),
        Op.DESTROY: (engine._done, 0),
        Op.BATCH_FORGET: (engine._batch_forget, p.BATCH_FORGET_IN.size),
        Op.FALLOCATE: (engine._fallocate, p.FALLOCATE_IN.size),
        Op.READDIRPLUS: (engine._readdirplus, p.READ_IN.size),
        Op.RENAME2: (engine._rename2, p.RENAME2_IN.size + 2 * name),
        Op.SYNCFS: (engine._fsync, 0),
        Op.NOTIFY_REPLY: (engine._ignored, 0),
    }
    table: list[tuple[Handler, int]] = [(engine._not_offered, 0)] * (max(Op) + 1)
    for op, (handler, body) in answered.items():
        table[op] = handler, _HEADER + body
    return table


_HANDLERS = _table()
_OPCODES = len(_HANDLERS)
