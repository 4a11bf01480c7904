"""Single flight: of all that want one key at once, in any thread of any process, one computes and the others wait.

Among threads it is an event; among processes a flock on a file named by the key, which the kernel drops when its holder
dies, so a crashed process never blocks the others. Two rules keep it free of deadlock. A thread that would wait for
itself through a ring of waiting threads computes instead. And a thread that is already computing something never waits
for another process: it computes too, which is twice the work but never a standstill.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from kcachefs.errors import CacheRecursion

_LOCK = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC

# Descriptors of the locks held or waited for here. A forked child inherits them, and with them the locks: it would keep
# others waiting after this process has died.
_open_locks: set[int] = set()


@dataclass(eq=False)
class Flight:
    """One computation under way in this process."""

    owner: int
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: Exception | None = None


class Flights:
    """The computations under way in this process, by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[bytes, Flight] = {}
        self._waits: dict[int, Flight] = {}

    def join(self, key: bytes) -> tuple[Flight, bool]:
        """The flight of `key`, and whether this thread is to compute it."""
        me = threading.get_ident()
        with self._lock:
            flight = self._flights.get(key)
            if flight is None:
                flight = self._flights[key] = Flight(me)
                return flight, True
            if flight.owner == me:
                raise CacheRecursion(f"computing {key!r} asks the cache for that same key; compute it another way")
            if self._closes_a_ring(flight, me):
                return Flight(me), True
            self._waits[me] = flight
        try:
            flight.done.wait()
        finally:
            with self._lock:
                self._waits.pop(me, None)
        return flight, False

    def finish(self, key: bytes, flight: Flight) -> None:
        """The computation has ended, well or badly; those who wait go on."""
        with self._lock:
            if self._flights.get(key) is flight:
                del self._flights[key]
        flight.done.set()

    @property
    def waiting(self) -> int:
        """How many threads wait for another to compute."""
        return len(self._waits)

    def is_computing(self, flight: Flight) -> bool:
        """Whether this thread was computing something else when it began this flight."""
        with self._lock:
            return any(other.owner == flight.owner and other is not flight for other in self._flights.values())

    def after_fork(self) -> None:
        """In a forked child: the threads that computed and waited do not exist here."""
        self.__init__()  # type: ignore[misc]

    def _closes_a_ring(self, flight: Flight, me: int) -> bool:
        seen: Flight | None = flight
        while seen is not None:
            if seen.owner == me:
                return True
            seen = self._waits.get(seen.owner)
        return False


@contextlib.contextmanager
def process_lock(folder: str, key: bytes, wait: bool) -> Iterator[bool]:
    """Hold the lock of `key` among processes; yields whether it is held.

    The file is removed while it is still locked, so the folder does not fill up; who then gets the lock of a file that
    has lost its name tries again with the new one.
    """
    path = folder + blake3(key).hexdigest()
    file = _acquire(path, wait)
    try:
        yield file is not None
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)
            _close(file)


def _acquire(path: str, wait: bool) -> int | None:
    while True:
        try:
            file = os.open(path, _LOCK, 0o666)
        except OSError:  # no folder, no permission, no space: then each process computes for itself
            return None
        _open_locks.add(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.fstat(file).st_ino == os.stat(path).st_ino:
                return file
        except FileNotFoundError:
            pass
        except OSError:
            _close(file)
            return None
        except BaseException:
            _close(file)
            raise
        _close(file)


def _close(file: int) -> None:
    _open_locks.discard(file)
    os.close(file)


def _close_inherited() -> None:
    for file in _open_locks:
        with contextlib.suppress(OSError):
            os.close(file)
    _open_locks.clear()


os.register_at_fork(after_in_child=_close_inherited)
