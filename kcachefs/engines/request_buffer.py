"""The request buffer: memory that the supervisor holds, so that a request outlives the worker that took it.

The kernel copies every request into the one buffer here. A kernel that can send requests again (Linux 6.9 and later) is
asked to do so, and nothing more is needed. With an older kernel, the next worker looks here: at the request in the
buffer, and at the requests that were put aside to be answered later. Each request is removed once it is answered. A
request that was put aside and carried out is marked so before its reply is sent: carried out a second time, it could
undo later changes.

The buffer also records which requests workers died of. A request that kills every worker would be sent again for ever,
and its caller and everybody else would wait with it: after `DEATHS_MAX` deaths it gets EIO instead.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import struct
from collections.abc import Iterator
from typing import NamedTuple

from kcachefs.engines.protocol import RESENT
from kcachefs.errors import MountError

PAGE = mmap.PAGESIZE
REQUEST_MAX = (1 << 20) + PAGE
"""The largest request: a write of 1 MiB, and its header."""
_MADV_POPULATE_WRITE = 23
SLOTS = 32
"""How many requests can be put aside at a time. Only slots in use take memory."""

DEATHS_MAX, DEFERRED_DEATHS_MAX = 3, 6
"""Deaths after which a request is not tried again: deaths while `serve` carried it out, and deaths while it was
deferred. The limit for deferred requests is higher: several are pending at once, and a long fsync is pending at every
death, whatever the cause. The first limit is not two: on a busy machine two kills from outside can hit the same request
before a worker gets to answer it."""

_AGREED = struct.Struct("<Q")  # capabilities agreed on with the kernel
_SUSPECT = struct.Struct("<QII")  # request number, deaths while it was carried out, deaths while it was deferred
_BLAMED = 8
_SUSPECTS, _SUSPECTS_MAX = 64, 32
_DEFERRED, _DEFERRED_MAX = 1024, 64
_NUMBER = struct.Struct("<Q")
_SLOT = struct.Struct("<II")  # length of the request put aside, length of its answer plus one once it is carried out
_ANSWER_MAX = PAGE - _SLOT.size
_SLOT_SIZE = PAGE + REQUEST_MAX
_FIRST_SLOT = PAGE + REQUEST_MAX
_SIZE = _FIRST_SLOT + SLOTS * _SLOT_SIZE


class Taken(NamedTuple):
    """A request that a dead worker left in a slot, and its answer if it was carried out."""

    slot: int
    request: bytes
    answer: bytes | None


def make_memory() -> int:
    """Make a buffer's memory; returns its descriptor, which the supervisor holds and every worker inherits."""
    memory = os.memfd_create("kcachefs-requests", os.MFD_CLOEXEC)
    try:
        os.ftruncate(memory, _SIZE)
    except OSError as error:
        os.close(memory)
        if error.errno != errno.EFBIG:
            raise
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        raise MountError(
            f"a file may have at most {limit:,} bytes here, but a mount needs {_SIZE:,}; raise the limit (ulimit -f)"
        ) from None
    return memory


class RequestBuffer:
    """The requests of one mount that are not answered yet."""

    def __init__(self, memory: int) -> None:
        self._memory = mmap.mmap(memory, _SIZE)
        self.buffer = memoryview(self._memory)[PAGE : PAGE + REQUEST_MAX]
        self._free = [number for number in range(SLOTS) if not self._slot(number)[0]]
        self._map_buffer()

    def _map_buffer(self) -> None:
        """Map every page of the buffer before the kernel copies a request into it.

        The kernel maps a missing page when its copy reaches that page, but not once the worker has been killed: then
        the copy fails, and the kernel itself fails the request with EIO. No worker ever saw that request, and nobody
        can send it again.
        """
        try:
            self._memory.madvise(_MADV_POPULATE_WRITE, PAGE, REQUEST_MAX)
        except OSError as error:
            if error.errno == errno.EINVAL:  # before Linux 5.14
                for at in range(PAGE, PAGE + REQUEST_MAX, PAGE):
                    _ = self._memory[at]

    @classmethod
    def private(cls) -> RequestBuffer:
        """A buffer in memory of its own, for an engine that no other takes over from."""
        memory = make_memory()
        try:
            return cls(memory)
        finally:
            os.close(memory)

    def close(self) -> None:
        self.buffer.release()
        # A caught exception keeps a view of its request until the exception is garbage-collected.
        with contextlib.suppress(BufferError):
            self._memory.close()

    # --- capabilities agreed on with the kernel -----------------------------------------------------------------------

    def keep_capabilities(self, capabilities: int) -> None:
        _AGREED.pack_into(self._memory, 0, capabilities)

    @property
    def capabilities(self) -> int:
        """The capabilities; 0 before they were agreed on."""
        capabilities: int = _AGREED.unpack_from(self._memory, 0)[0]
        return capabilities

    # --- requests that workers died of --------------------------------------------------------------------------------

    def note_deferred(self, unique: int, *, begins: bool) -> None:
        """Note that a request goes to another thread, or comes back from it."""
        old, new = (0, unique) if begins else (unique, 0)
        for at in range(_DEFERRED, _DEFERRED + 8 * _DEFERRED_MAX, 8):
            if _NUMBER.unpack_from(self._memory, at)[0] == old:
                _NUMBER.pack_into(self._memory, at, new)
                return

    def note_tried(self, number: int) -> None:
        """Note that a request sent again is about to be tried again: it may be blamed once more."""
        if _NUMBER.unpack_from(self._memory, _BLAMED)[0] == number:
            _NUMBER.pack_into(self._memory, _BLAMED, 0)

    def blame_last_request(self) -> set[int]:
        """Count a death against the requests at hand; returns those that must not be tried again."""
        at_hand = int.from_bytes(self.buffer[8:16], "little") & ~RESENT
        if at_hand == _NUMBER.unpack_from(self._memory, _BLAMED)[0]:
            at_hand = 0  # the last worker died before it tried anything
        else:
            _NUMBER.pack_into(self._memory, _BLAMED, at_hand)
        deferred = set()
        for at in range(_DEFERRED, _DEFERRED + 8 * _DEFERRED_MAX, 8):
            deferred.add(_NUMBER.unpack_from(self._memory, at)[0] & ~RESENT)
            _NUMBER.pack_into(self._memory, at, 0)
        counts = {number: (deaths, others) for number, deaths, others in self._suspects() if number}
        for number in {at_hand, *deferred} - {0}:
            deaths, others = counts.pop(number, (0, 0))
            counts[number] = (deaths + (number == at_hand), others + (number in deferred))
        newest = list(counts.items())[-_SUSPECTS_MAX:]
        for index, (number, (deaths, others)) in enumerate(newest):
            _SUSPECT.pack_into(self._memory, _SUSPECTS + index * _SUSPECT.size, number, deaths, others)
        return {n for n, (deaths, others) in newest if deaths >= DEATHS_MAX or others >= DEFERRED_DEATHS_MAX}

    def _suspects(self) -> Iterator[tuple[int, int, int]]:
        for index in range(_SUSPECTS_MAX):
            yield _SUSPECT.unpack_from(self._memory, _SUSPECTS + index * _SUSPECT.size)

    # --- requests that were taken -------------------------------------------------------------------------------------

    def answered(self) -> None:
        """Note that the request in the buffer is answered, or put aside."""
        self._memory[PAGE : PAGE + 4] = b"\0\0\0\0"

    def unanswered(self) -> int:
        """The length of the request in the buffer, 0 if there is none. Meaningless where `answered` is not called."""
        length = int.from_bytes(self.buffer[:4], "little")
        return length if length <= REQUEST_MAX else 0

    def put_aside(self, length: int) -> int:
        """Keep the request in the buffer, to be answered later; returns its slot, or -1 when none is free."""
        if not self._free:
            return -1
        slot = self._free.pop()
        start = _place(slot)
        self._memory[start + PAGE : start + PAGE + length] = self.buffer[:length]
        _SLOT.pack_into(self._memory, start, length, 0)
        return slot

    def carried_out(self, slot: int, answer: bytes) -> None:
        """Keep a reply that is about to be sent. A long one is not kept: it is from a read, which can be repeated."""
        if len(answer) <= _ANSWER_MAX:
            start = _place(slot)
            self._memory[start + _SLOT.size : start + _SLOT.size + len(answer)] = answer
            struct.pack_into("<I", self._memory, start + 4, len(answer) + 1)

    def release(self, slot: int) -> None:
        """Free the slot of a request whose reply was sent."""
        start = _place(slot)
        length = self._slot(slot)[0]
        _SLOT.pack_into(self._memory, start, 0, 0)
        if length > PAGE:
            self._memory.madvise(mmap.MADV_REMOVE, start + PAGE, REQUEST_MAX)
        self._free.append(slot)

    def left(self) -> Iterator[Taken]:
        """The requests that a dead worker put aside and did not answer. The caller releases each slot afterwards."""
        for slot in range(SLOTS):
            length, answer_length = self._slot(slot)
            if length:
                start = _place(slot)
                answer = (
                    self._memory[start + _SLOT.size : start + _SLOT.size + answer_length - 1] if answer_length else None
                )
                yield Taken(slot, self._memory[start + PAGE : start + PAGE + length], answer)

    def _slot(self, number: int) -> tuple[int, int]:
        length, answer_length = _SLOT.unpack_from(self._memory, _place(number))
        return length, answer_length


def _place(slot: int) -> int:
    return _FIRST_SLOT + slot * _SLOT_SIZE
