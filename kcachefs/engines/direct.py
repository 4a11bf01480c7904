"""The direct engine: speaks the kernel's FUSE protocol on /dev/fuse, in one blocking loop and without a library.

Most reads never get here. The reasons, each confirmed by measurement:

- The first OPEN gets ENOSYS. From then on the kernel sends no OPEN and no RELEASE, and keeps the page cache across
  opens. READ and WRITE carry the inode, so no handle is needed. Under a policy that has to know who opens a file for
  writing, each OPEN is a message; the page cache is kept all the same.
- The kernel caches whole listings. OPENDIR remains a message: without it, a listing that began before a change could
  fill the cache from which a later listing goes on reading. So the first OPENDIR after a change makes the kernel drop
  what it cached; anything cached later is at least as new as that change.
- The first FLUSH and GETXATTR get ENOSYS, and the kernel sends no more of them.
- A miss is an entry with inode 0 and a timeout, which the kernel remembers. It would not remember ENOENT.
- ATOMIC_O_TRUNC is not negotiated, so O_TRUNC arrives as a SETATTR: an OPEN that is never sent would lose it.

Every change comes through this kernel, so names and attributes are valid for an hour. Changes that no request makes
(eviction, damage) are announced through the Notifier, from its own thread.

`serve` runs in one thread, and only that thread reads the device. `handlers.py` says what each request does. The
request is authorized in this thread, and slow work goes to a small pool, which replies once it is done. An unexpected
exception in a handler costs a log line and an error reply, never an exit.

A worker that takes over begins with the requests that its predecessor took and did not answer: the kernel sends them
again, or the request buffer has them. For a change of names that was made already, the reply gives the result of that
change. Other requests can be carried out again: a write has a fixed place in its file, and its caller still waits.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from kcachefs.bounded import BoundedDict
from kcachefs.core import Filesystem
from kcachefs.core.caller import Caller
from kcachefs.core.files import is_damage
from kcachefs.core.remote import Delivery
from kcachefs.engines import protocol as p
from kcachefs.engines.busy_polling import BusyPolling
from kcachefs.engines.direct_kernel import DirectKernel
from kcachefs.engines.handlers import HANDLERS, OPCODES, is_about_bytes, pack_found
from kcachefs.engines.pool import Pool
from kcachefs.engines.protocol import RESENT, Op
from kcachefs.engines.replies import OPENED
from kcachefs.engines.request_buffer import RequestBuffer
from kcachefs.engines.unused_inodes import UnusedInodes
from kcachefs.errors import FsError, KcachefsError, RequestGarbled, errno_of

log = logging.getLogger(__name__)

_SLOW_THREADS = min(8, max(2, os.cpu_count() or 2))
"""Decoding releases the GIL, so the data read ahead of a sequential reader is decoded in parallel."""
_WAITING_THREADS = 32
"""Writes that wait for room have threads of their own, so that reads do not wait behind them."""
_FETCHING_THREADS = 64
"""Lookups that wait for a remote tier: the many processes of one start ask for the same names at once."""
_HELD_MAX = 128 << 20
"""Bytes that one user's writes may hold in memory while they wait for room."""
_USERS_MAX = 256
_LISTING_TIMES_MAX = 16384
_HEADER = p.IN_HEADER.size
_read_header = p.IN_HEADER.unpack_from
_reply_header = p.OUT_HEADER.pack


class DirectEngine:
    """Serves one filesystem on an open /dev/fuse descriptor."""

    name = "direct"

    def __init__(
        self,
        fs: Filesystem,
        device: int,
        kernel: DirectKernel | None = None,
        requests: RequestBuffer | None = None,
        *,
        resumed: bool = False,
        resend: bool = True,
    ) -> None:
        """`resumed`: it takes over from a worker that died. Without `resend`, the kernel is not asked to send again."""
        self.fs = fs
        self.capabilities: int = p.CAPABILITIES if resend else p.CAPABILITIES & ~p.Init.HAS_RESEND
        self.header: tuple[int, ...] = ()
        """The header of the request at hand."""
        self.listing_times: dict[int, int] = BoundedDict(_LISTING_TIMES_MAX)
        """The mtime that each directory had when it was last opened."""
        self.unused = UnusedInodes(fs)
        self._device = device
        self._resumed = resumed
        self._kernel = kernel or DirectKernel(device)
        self._requests = requests or RequestBuffer.private()
        self.buffer = self._requests.buffer
        self._pool = Pool(_SLOW_THREADS, thread_name_prefix="kcachefs-slow")
        self._waiting = Pool(_WAITING_THREADS, thread_name_prefix="kcachefs-wait")
        self._fetching = Pool(_FETCHING_THREADS, thread_name_prefix="kcachefs-fetch")
        self._deliveries: dict[int, Delivery] = {}
        """By request: the delivery that a lookup waits for."""
        self._deferred: dict[int, Future[None]] = {}
        self._held: BoundedDict[int, dict[int, int]] = BoundedDict(_USERS_MAX, lambda held: not held)
        """By user and request: how many bytes a write holds in memory while it waits for room."""
        self._complained: set[int] = set()
        self._poison: set[int] = set()
        """Requests that workers died of: they get EIO."""
        self._handling = False
        """Whether `serve`'s thread is carrying out a request."""
        self._keeps_requests = not self._requests.capabilities & p.Init.HAS_RESEND
        """Whether requests are kept in the buffer, because the kernel cannot send them again."""
        self._counts = self._kernel.counts
        self._timed = 0
        """The opcode of the request at hand, if `serve` measures its time; 0 if another thread does, or nobody."""
        self._polling = BusyPolling(device, fs.prepare_read, self.unused)

    def serve(self) -> None:
        """Answer requests until the filesystem is unmounted."""
        self._kernel.notifier.start()
        if self._resumed:
            self._take_over()
        device, buffers, requests = self._device, [self.buffer], self._requests
        poll, came, deferred = self._polling.poll, self._polling.request_came, self._deferred
        times, came_at, self._timed = self._kernel.times, time.monotonic_ns(), 0
        try:
            while True:
                # Polling needs both times anyway, and the reply has been sent: counting delays nobody.
                took = poll(is_alone=not deferred) - came_at
                of_kind = times[self._timed]
                of_kind.cells[took.bit_length()] += 1
                of_kind.nanoseconds += took
                self._timed = 0
                try:
                    length = os.readv(device, buffers)
                except OSError as error:
                    if error.errno == errno.ENODEV:
                        return
                    if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                        continue
                    raise
                came_at = came()
                self._handling = True
                self.handle(length)
                self._handling = False
                if self._keeps_requests:
                    requests.answered()
        finally:
            self.close()

    def _take_over(self) -> None:
        """Deal with the requests that the last worker took and did not answer."""
        self._poison = self._requests.blame_last_request()
        if not self._keeps_requests:
            self._kernel.notifier.resend()
            return
        left = list(self._requests.left())  # before the request in the buffer may take a slot itself
        if length := self._requests.unanswered():
            self.handle(length, resent=True)
            self._requests.answered()
        for slot, request, answer in left:
            if answer is not None:
                self._reply(p.IN_HEADER.unpack_from(request)[2], answer)
            else:
                self.feed(request, resent=True)
                self._requests.answered()
            self._requests.release(slot)

    def stop(self) -> None:
        """Do nothing: the thread that serves waits in the kernel, cannot be woken, and ends with the process."""

    def request_at_hand(self) -> object:
        """The request at hand, None while `serve` waits. Asked every second: the same one for long means a hang."""
        self._polling.adapt()
        return self.header if self._handling or self._polling.is_at_work else None

    def close(self) -> None:
        """Answer what is still deferred, and stop."""
        for delivery in list(self._deliveries.values()):
            delivery.abandon()
        self._fetching.shutdown(wait=True, cancel_futures=True)
        self._waiting.shutdown(wait=True)
        self._pool.shutdown(wait=True)
        self._kernel.notifier.stop()
        self._requests.close()

    def feed(self, request: bytes, *, resent: bool = False) -> None:
        """Handle one request as if the kernel had sent it."""
        self.buffer[: len(request)] = request
        self.handle(len(request), resent=resent)

    def handle(self, length: int, *, resent: bool = False) -> None:
        """Answer the request of that length in the buffer."""
        if length < _HEADER:
            log.warning("a request of %d bytes is shorter than its header", length)
            return
        self.header = _read_header(self.buffer)
        said, opcode, unique, ino, _, _, _, _, _ = self.header
        if said != length:
            log.warning("opcode %d: the request says it has %d bytes and has %d", opcode, said, length)
            self.reply_error(unique, errno.EIO)
            return
        if opcode >= OPCODES:
            self._unknown(opcode, unique)
            return
        handler, shortest = HANDLERS[opcode]
        try:
            if (unique >= RESENT or resent) and self._answer_again(opcode, unique):
                return
            self._counts[opcode] += 1
            self._timed = opcode
            if length < shortest:
                raise RequestGarbled(f"{length} bytes are too few")
            body = handler(self, ino, unique, length)
        except Exception as error:
            self._fail(error, opcode, unique, ino)
            return
        if body is not None:
            self._reply(unique, body)

    def caller(self) -> Caller:
        """Who makes the request at hand."""
        header = self.header
        return Caller(header[4], header[5], header[6], header[2])

    def _answer_again(self, opcode: int, unique: int) -> bool:
        """Answer a request that must not be carried out again: a change of names already made, or poison."""
        number = unique & ~RESENT
        self.header = (*self.header[:2], number, *self.header[3:])  # as the worker that died saw it
        self._requests.note_tried(number)
        ino = self.fs.answer_of(number)
        if ino is None:
            return number in self._poison and self._refuse_poison(opcode, unique)
        body = b""
        if ino:
            self.fs.hold(ino)  # first: an inode that the kernel holds is not evicted
            try:
                body = pack_found(self.fs, ino)
            except FsError:
                self.fs.forget(ino, 1)
                return False  # it was removed since
            if opcode == Op.CREATE:
                body += OPENED
        self._reply(unique, body)
        return True

    def _refuse_poison(self, opcode: int, unique: int) -> bool:
        """Answer EIO to a request that killed every worker that tried it."""
        _, _, number, ino, uid, _, pid, _, _ = self.header
        text = "request %d (opcode %d on inode %d, of user %d, process %d) killed every worker that tried it: EIO"
        log.error(text, number, opcode, ino, uid, pid)
        self.reply_error(unique, errno.EIO)
        return True

    def negotiated(self, capabilities: int) -> None:
        """Keep the capabilities agreed on with the kernel, for this worker and the next."""
        self._requests.keep_capabilities(capabilities)
        self._keeps_requests = not capabilities & p.Init.HAS_RESEND

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

    def reply_error(self, unique: int, number: int) -> None:
        try:
            os.write(self._device, _reply_header(16, -number, unique))
        except OSError as error:
            self._unsent(error)

    def _unsent(self, error: OSError) -> None:
        # ENOENT: the caller was interrupted and is gone. ENODEV: the mount is gone.
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            log.error("the kernel refused a reply: %s", error)

    def _fail(self, error: Exception, opcode: int, unique: int, ino: int) -> None:
        if is_damage(error) and is_about_bytes(opcode):
            # Finding all names of the file may take long. The reply comes afterwards: a retry then finds the file gone.
            with contextlib.suppress(RuntimeError):  # there may be no more threads
                self._pool.submit(self._condemn, ino, unique, error)
                return
        if isinstance(error, RequestGarbled):
            log.warning("opcode %d on inode %d: the request cannot be read: %s", opcode, ino, error)
        elif not isinstance(error, FsError):
            story = None if isinstance(error, (KcachefsError, OSError)) else error  # the disk's fault, not a bug
            log.error("opcode %d on inode %d: the request failed: %s", opcode, ino, error, exc_info=story)
        self.reply_error(unique, errno_of(error))

    def _condemn(self, ino: int, unique: int, error: Exception) -> None:
        try:
            self.fs.condemn(ino, error)
        finally:
            self.reply_error(unique, errno.EIO)

    def _unknown(self, opcode: int, unique: int) -> None:
        if opcode not in self._complained and len(self._complained) < 256:
            self._complained.add(opcode)
            log.info("opcode %d is unknown and answered ENOSYS", opcode)
        self.reply_error(unique, errno.ENOSYS)

    # --- slow requests ------------------------------------------------------------------------------------------------

    def defer(
        self,
        unique: int,
        ino: int,
        action: Callable[[], bytes | Sequence[bytes | memoryview]],
        *,
        waits: bool = False,
        holds: int = 0,
    ) -> None:
        """Call `action` and reply, in another thread; `waits`: it may wait for room, holding `holds` bytes."""
        opcode, uid = self.header[1], self.header[4]
        held = self._held[uid] = self._held.get(uid) or {}
        if holds and sum(list(held.values())) + holds > _HELD_MAX:
            raise FsError(errno.ENOSPC, "this user already has too much data waiting for room")
        slot = self._requests.put_aside(self.header[0]) if self._keeps_requests else -1

        def run() -> None:
            try:
                body = action()
            except Exception as error:
                self._fail(error, opcode, unique, ino)
            else:
                if not isinstance(body, bytes):
                    self._reply_parts(unique, body)
                    return
                if slot >= 0:
                    self._requests.carried_out(slot, body)
                self._reply(unique, body)

        if self._keeps_requests and slot < 0:  # no slot is free to keep this request for the next worker
            if waits:
                raise FsError(errno.ENOSPC, "too many requests wait already")
            run()
            return
        if not waits:  # a long wait for room is no sign of harm
            self._requests.note_deferred(unique, begins=True)
        if holds:
            held[unique] = holds
        self._timed, pool = 0, self._waiting if waits else self._pool
        self._deferred[unique] = pool.carry_out(run, lambda took: self._finished(unique, slot, held, opcode, took))

    def wait_for(self, unique: int, ino: int, delivery: Delivery, action: Callable[[], bytes]) -> None:
        """Wait in another thread for a delivery from a remote tier, then call `action` there and reply."""
        opcode = self.header[1]
        slot = self._requests.put_aside(self.header[0]) if self._keeps_requests else -1
        if self._keeps_requests and slot < 0:  # no slot is free to keep this request for the next worker
            delivery.abandon()
            raise FsError(errno.ENOENT)

        def run() -> None:
            try:
                delivery.wait()
                if delivery.is_abandoned:
                    raise FsError(errno.ENOENT)  # not a miss, which the kernel would remember for other callers
                body = action()
            except Exception as error:
                self._fail(error, opcode, unique, ino)
            else:
                self._reply(unique, body)

        self._timed, self._deliveries[unique] = 0, delivery
        try:
            self._fetching.carry_out(run, lambda took: self._finished(unique, slot, {}, opcode, took))
        except RuntimeError:
            delivery.abandon()
            raise

    def _finished(self, unique: int, slot: int, held: dict[int, int], opcode: int, took: int) -> None:
        self._kernel.note_deferred(opcode, took)
        held.pop(unique, None)
        self._deliveries.pop(unique, None)
        self._deferred.pop(unique, None)
        self._requests.note_deferred(unique, begins=False)
        if slot >= 0:
            self._requests.release(slot)

    def interrupt(self, unique: int) -> None:
        """Its caller got a signal: cancel the request unless it has begun; then it is answered as usual."""
        delivery = self._deliveries.get(unique)
        if delivery is not None:
            delivery.interrupt()
            return
        if (future := self._deferred.get(unique)) is not None and future.cancel():
            self._deferred.pop(unique, None)
            self.reply_error(unique, errno.EINTR)
