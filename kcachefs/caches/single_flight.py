"""Single flight: when many ask for a missing key at once, in any thread, task or process, one computes for all.

Within a process the others wait for the *flight* to end. Between processes they wait for a flock on a file named after
the key, which the kernel drops when its holder dies, so a crashed process never blocks anyone.

Computations may ask for other keys, of this cache or of another, so waiting must never close a ring:

- A computation that would wait for itself through other waiting computations computes that key as well.
- A computation never waits for another process, neither itself nor through a thread that does. It computes the key as
  well: twice the work, but never a standstill.

A context variable says which computations the caller is part of. Tasks and `asyncio.to_thread` inherit it; threads and
pools of threads do not. So a thread that has waited for a while looks at the stacks (`waiting_threads.py`): does the
computation wait for this very thread? Or, if the thread waits for another process: does any computation of its own
process wait for the thread? What the stacks show is certain, so nobody computes twice only because a computation takes
long.

A task may be dropped without being run to its end. The garbage collector then closes its coroutines, in whichever
thread and context the collector runs, between any two steps. So a computation that ends removes its own flight by
reference, not by the content of the context, and never waits for a lock that the same thread may hold. A signal handler
may raise there too. So every step of a call is noted before it begins, and the steps are undone one by one; undoing one
twice does no harm.
"""

from __future__ import annotations

import contextlib
import enum
import os
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Generic, TypeVar

from kcachefs import event_loops
from kcachefs.caches.process_lock import Attempt, ProcessLock
from kcachefs.caches.waiting_threads import awaited_threads
from kcachefs.errors import CacheRecursion

T = TypeVar("T")

_POLL_SECONDS = (0.001, 0.05)
"""How long to wait before looking whether another process has released a lock: at first, and at most."""
_LOOK_SECONDS = (0.1, 10.0)
"""How long a thread waits before it looks whether a computation waits for it: at first, and at most."""

# One lock for all caches: a ring of waiting computations may run through several of them.
_lock = threading.RLock()
_inside: ContextVar[tuple[Flight[Any], ...]] = ContextVar("kcachefs computations", default=())
_waiting: dict[int, Flight[Any]] = {}
"""The flight that a thread waits for, by the thread."""
_computing: set[Flight[Any]] = set()
"""The flights of all caches that have begun."""


class SingleFlight(Generic[T]):
    """The computations under way in this process, by key. The callers of `run` decide what is found for a key."""

    def __init__(self) -> None:
        self.waited: int = 0
        self._waiters: set[Flight[T]] = set()
        self._under_way: dict[bytes, Flight[T]] = {}

    @property
    def waiting(self) -> int:
        """How many threads and tasks wait for another to compute."""
        return len(self._waiters)

    def run(self, key: bytes, find: Callable[[], T | None], make: Callable[[], T], lock: str | None) -> T:
        """What `find` returns; if that is None, what `make` returns, which `find` must find from then on.

        `lock` is the path of the file by which processes exclude each other. If `make` raises, so does this call, in
        every thread and task that waited for it.
        """
        mine, process_lock = Flight[T](_inside.get()), ProcessLock(lock)
        try:
            while (ahead := self._join(key, mine)) is not None:
                waited = _wait(key, ahead)
                self._leave(mine)
                if waited is Waited.IN_A_RING:
                    mine.has_computing_waiter = True
                    break
                if (result := _result(ahead)) is not None:
                    return result[0]
            return self._fly(mine, find, make, process_lock)
        finally:
            try:
                self._finish(key, mine, process_lock)
            finally:  # again, because a signal handler may raise in the middle of that too
                self._finish(key, mine, process_lock)

    async def run_async(
        self, key: bytes, find: Callable[[], T | None], make: Callable[[], Awaitable[T]], lock: str | None
    ) -> T:
        """`run` for a task: it waits without blocking the event loop."""
        mine, process_lock = Flight[T](_inside.get()), ProcessLock(lock)
        mine.is_task = True
        try:
            while (ahead := self._join(key, mine)) is not None:
                await event_loops.until(ahead.when_ended)
                self._leave(mine)
                if (result := _result(ahead)) is not None:
                    return result[0]
            return await self._fly_async(mine, find, make, process_lock)
        finally:
            try:
                self._finish(key, mine, process_lock)
            finally:  # again, because a signal handler may raise in the middle of that too
                self._finish(key, mine, process_lock)

    def after_fork(self) -> None:
        """In a forked child: the threads that computed and waited do not exist here."""
        self._waiters = set()
        self._under_way = {}

    def _join(self, key: bytes, mine: Flight[T]) -> Flight[T] | None:
        """The flight of `key` that the caller must wait for and then leave; None if it is to compute `mine`."""
        with _lock:
            flight = self._under_way.get(key)
            if flight is None:
                self._under_way[key] = mine
                return None
            inside = mine.inside
            if flight in inside:
                raise _recursion(key)
            if inside and any(ahead in inside or ahead.awaits_process for ahead in _ahead(flight)):
                return None
            for outer in inside:
                outer.waits_for[mine] = flight
            flight.has_computing_waiter = flight.has_computing_waiter or bool(inside)
            self._waiters.add(mine)
            self.waited += 1
            return flight

    def _leave(self, mine: Flight[T]) -> None:
        with _lock:
            self._waiters.discard(mine)
            for outer in mine.inside:
                outer.waits_for.pop(mine, None)

    def _fly(
        self, flight: Flight[T], find: Callable[[], T | None], make: Callable[[], T], process_lock: ProcessLock
    ) -> T:
        try:
            _begin(flight)
            found, pauses = find(), _Pauses()
            while found is None and process_lock.attempt() is Attempt.BUSY and _may_await_process(flight, pauses):
                time.sleep(pauses.next())
                found = find()
            flight.awaits_process = False
            found = find() if found is None else found  # whoever held the lock before has stored the value
            flight.result = (make() if found is None else found,)
        except Exception as error:
            flight.error, flight.traceback = error, error.__traceback__
            raise
        return flight.result[0]

    async def _fly_async(
        self,
        flight: Flight[T],
        find: Callable[[], T | None],
        make: Callable[[], Awaitable[T]],
        process_lock: ProcessLock,
    ) -> T:
        try:
            _begin(flight)
            found, pauses = find(), _Pauses()
            while found is None and process_lock.attempt() is Attempt.BUSY and _may_await_process(flight, pauses):
                await event_loops.sleep(pauses.next())
                found = find()
            flight.awaits_process = False
            found = find() if found is None else found
            flight.result = (await make() if found is None else found,)
        except Exception as error:
            flight.error, flight.traceback = error, error.__traceback__
            raise
        return flight.result[0]

    def _finish(self, key: bytes, flight: Flight[T], process_lock: ProcessLock) -> None:
        """Undo what a call has begun, as far as that is not undone yet."""
        try:
            process_lock.release()
            # The context is not reset by token: a dropped task ends in another context, and has nothing to leave there.
            inside = _inside.get()
            if flight in inside:
                _inside.set(tuple(outer for outer in inside if outer is not flight))
        finally:
            with _lock:
                self._leave(flight)
                _computing.discard(flight)
                if self._under_way.get(key) is flight:
                    del self._under_way[key]
                flight.has_ended = True
            flight.tell_that_it_ended()


class Flight(Generic[T]):
    """One computation under way. Its fields are guarded by the module's lock."""

    def __init__(self, inside: tuple[Flight[Any], ...] = ()) -> None:
        self.thread: int = threading.get_ident()
        """The thread that computes, or runs the task that does."""
        self.inside: tuple[Flight[Any], ...] = inside
        """The computations that this one is part of."""
        self.is_task: bool = False
        self.has_ended: bool = False
        self.result: tuple[T] | None = None
        self.error: Exception | None = None
        self.traceback: TracebackType | None = None
        """The traceback with which the error left the computation; every further raise adds to the error's own."""
        self.waits_for: dict[Flight[Any], Flight[Any]] = {}
        """Flights that parts of this computation wait for, by the flights that those parts would make instead."""
        self.awaits_process: bool = False
        """Whether it waits for another process to finish."""
        self.has_computing_waiter: bool = False
        """Whether another computation has waited for this one or, if this is the second computation of its key, for the
        first. Then this one must not begin to wait for a process."""
        self._callbacks: list[Callable[[], None]] = []

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the flight has ended, from whichever thread ends it; at once if it has ended already.

        If that thread is interrupted during the call, `callback` is called twice.
        """
        with _lock:
            if not self.has_ended:
                self._callbacks.append(callback)
                return
        callback()

    def tell_that_it_ended(self) -> None:
        while self._callbacks:
            self._callbacks[-1]()
            del self._callbacks[-1:]


class _Pauses:
    """How long to wait before looking again whether another process has released a lock."""

    def __init__(self) -> None:
        self._next = _POLL_SECONDS[0]
        self._since_look = 0.0
        self._until_look = _LOOK_SECONDS[0]

    def next(self) -> float:
        pause, self._next = self._next, min(2 * self._next, _POLL_SECONDS[1])
        self._since_look += pause
        return pause

    def is_time_to_look(self) -> bool:
        """Whether it is time to see who waits for this thread."""
        if self._since_look < self._until_look:
            return False
        self._since_look, self._until_look = 0.0, min(2 * self._until_look, _LOOK_SECONDS[1])
        return True


class Waited(enum.Enum):
    """How waiting for a flight ended."""

    TO_THE_END = enum.auto()
    IN_A_RING = enum.auto()
    """Other computations wait for this thread, and the flight waits for them."""


def _wait(key: bytes, flight: Flight[Any]) -> Waited:
    """Wait until a flight has ended or cannot end before this thread goes on."""
    me, pause = threading.get_ident(), _LOOK_SECONDS[0]
    # Not an event: that is set under a lock of its own, which this thread may hold when it collects garbage.
    until_ended = threading.Lock()
    until_ended.acquire()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # it was called twice
            until_ended.release()

    flight.when_ended(wake)
    before = _waiting.get(me)  # the flight of a wait that a signal handler has interrupted
    _waiting[me] = flight
    try:
        while not until_ended.acquire(timeout=pause):
            pause = min(2 * pause, _LOOK_SECONDS[1])
            awaited = awaited_threads()  # not under the lock: it may drop a last reference
            with _lock:
                if flight.has_ended:
                    break
                # A thread that runs tasks may wait for this one on behalf of another task than the one that computes.
                if not flight.is_task and me in _reached(flight, awaited, through_flights=False):
                    raise _recursion(key)
                if me in _reached(flight, awaited, through_flights=True):
                    return Waited.IN_A_RING
    finally:
        if before is None:
            _waiting.pop(me, None)
        else:
            _waiting[me] = before
    return Waited.TO_THE_END


def _reached(flight: Flight[Any], awaited: dict[int, set[int]], *, through_flights: bool) -> set[int]:
    """The threads that must go on before a flight can end; with `through_flights`, also those of flights it needs."""
    found: set[int] = set()
    pending = {flight.thread}
    if through_flights:
        pending.update(one.thread for one in _ahead(flight))
    while pending:
        one = pending.pop()
        found.add(one)
        pending |= awaited.get(one, set())
        if through_flights and one in _waiting:
            pending.update(ahead.thread for ahead in _ahead(_waiting[one]))
        pending -= found
    return found


def _recursion(key: bytes) -> CacheRecursion:
    return CacheRecursion(f"computing {key!r} asks the cache for that same key; compute it another way")


def _result(flight: Flight[T]) -> tuple[T] | None:
    """The result of a flight that has ended; None where its thread was interrupted, which is no answer for others."""
    if flight.error is not None:
        raise flight.error.with_traceback(flight.traceback)
    return flight.result


def _ahead(flight: Flight[Any]) -> list[Flight[Any]]:
    """A flight, and all that it waits for directly or indirectly."""
    found: list[Flight[Any]] = []
    pending = [flight]
    while pending:
        one = pending.pop()
        if one not in found:
            found.append(one)
            pending += one.waits_for.values()
    return found


def _begin(flight: Flight[Any]) -> None:
    with _lock:
        _computing.add(flight)
    _inside.set((*_inside.get(), flight))


def _may_await_process(flight: Flight[Any], pauses: _Pauses) -> bool:
    """Whether this flight may wait for another process, or go on doing so; if so it is marked as waiting."""
    awaited = awaited_threads() if pauses.is_time_to_look() else None
    with _lock:
        if len(_inside.get()) > 1 or flight.has_computing_waiter:
            return False
        if awaited is not None and _is_awaited(flight, awaited):
            return False
        flight.awaits_process = True
        return True


def _is_awaited(flight: Flight[Any], awaited: dict[int, set[int]]) -> bool:
    """Whether another computation cannot go on before this thread does."""
    others = [one for one in _computing if one is not flight]
    if flight.is_task:  # which leaves the other tasks of its thread free to go on
        others = [one for one in others if one.thread != flight.thread]
    return any(flight.thread in _reached(one, awaited, through_flights=True) for one in others)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    _waiting.clear()
    _computing.clear()


os.register_at_fork(after_in_child=_after_fork)
