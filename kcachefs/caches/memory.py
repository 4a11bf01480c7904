"""The first level: things in memory by key, bounded by count and by bytes, dropped in LRU or FIFO order. Thread-safe.

A value that is also on the disk is trusted for a minute at most. The first use after that asks whether the disk still
has it. This keeps the entry young there, and shows whether another process has deleted or replaced it. Memories of one
process before the same folder tell each other of changes at once.

The values may be a program's own objects, whose `__del__` may use the same cache. So values are dropped only after the
lock is released. The thread that holds the lock can take it again: a signal handler, or a `__del__` that the garbage
collector calls, may run between any two steps. So each step counts exactly what it takes out or adds.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from kcachefs.caches.bound import check_whole
from kcachefs.errors import UsageError

V = TypeVar("V")
Policy = Literal["lru", "fifo"]

STALE_SECONDS = 60
"""How long memory may serve what another process has deleted or replaced, and how often a use is noted on the disk."""


class Memory(Generic[V]):
    """A bounded map. A value larger than the whole bound is not kept.

    `is_current(key, stamp)` tells whether the disk still has what was kept with that stamp. `uses` gathers when things
    were last used, in nanoseconds of the monotonic clock, for the folder to record on the disk.
    """

    def __init__(
        self,
        max_entries: int,
        max_bytes: int | None,
        policy: Policy,
        is_current: Callable[[bytes, bytes], bool] | None = None,
        uses: dict[bytes, int] | None = None,
    ) -> None:
        if policy not in ("lru", "fifo"):
            raise UsageError(f"policy is {policy!r}; it can be 'lru' or 'fifo'")
        check_whole("memory_entries", max_entries)
        if max_bytes is not None:
            check_whole("memory_bytes", max_bytes)
        if max_entries < 0 or (max_bytes is not None and max_bytes < 0):
            raise UsageError("the bounds of the memory level must not be negative; 0 keeps nothing in memory")
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.bytes: int = 0
        self.evictions: int = 0
        self.hits: int = 0
        self._moves = policy == "lru"
        self._is_current = is_current
        self._uses = uses
        self._kept: OrderedDict[bytes, _Kept[V]] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: bytes) -> V | None:
        """The value kept under a key, which under LRU becomes the youngest.

        Takes no lock, which would cost as much again: each step is one atomic operation of the dictionary, and a value
        that was found may be gone before the next step. The count of hits may miss some that coincide.
        """
        kept = self._kept.get(key)
        if kept is None:
            return None
        if kept.stamp is not None:
            now = time.monotonic_ns()
            if self._uses is not None:
                self._uses[key] = now
            if not kept.believed_until > now and not self._believe(key, kept, now):
                return None
        self.hits += 1
        if self._moves:
            try:  # a `with suppress` would cost more than all the rest
                self._kept.move_to_end(key)
            except KeyError:
                return kept.value
        return kept.value

    def get_stamped(self, key: bytes) -> tuple[V, bytes | None] | None:
        """`get`, with the stamp that it was put with."""
        kept = self._kept.get(key)
        value = self.get(key)
        return None if value is None or kept is None else (value, kept.stamp)

    def put(self, key: bytes, value: V, size: int, stamp: bytes | None = None) -> bool:
        """Keep a value of that size, and drop the oldest until both bounds are met; returns whether it is kept.

        `stamp` tells what the disk has for it; without one the value is nowhere else, and is never checked.
        """
        dropped: list[_Kept[V]] = []  # freed with this frame, after the lock is released
        is_kept = self.max_entries > 0 and (self.max_bytes is None or size <= self.max_bytes)
        kept = _Kept(value, size, stamp)
        with self._lock:
            self._take(key, dropped)
            if not is_kept:
                return False
            while self._kept.setdefault(key, kept) is not kept:
                self._take(key, dropped)
            self.bytes += size
            while len(self._kept) > self.max_entries or (self.max_bytes is not None and self.bytes > self.max_bytes):
                if not self._take_oldest(dropped):
                    break
                self.evictions += 1
            return True

    def drop(self, key: bytes) -> bool:
        """Forget one value; returns whether there was one."""
        dropped: list[_Kept[V]] = []
        with self._lock:
            return self._take(key, dropped)

    def clear(self) -> None:
        """Forget everything."""
        dropped: list[_Kept[V]] = []
        with self._lock:
            while self._take_oldest(dropped):
                pass

    def items(self) -> list[tuple[bytes, V]]:
        """The keys and values, oldest first."""
        with self._lock:
            kept = self._kept.copy()  # one step: `get` moves things while others walk
        return [(key, one.value) for key, one in kept.items()]

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: bytes) -> bool:
        return key in self._kept

    def after_fork(self) -> None:
        """In a forked child: a thread that does not exist here may have held the lock."""
        self._lock = threading.RLock()

    def _believe(self, key: bytes, kept: _Kept[V], now: int) -> bool:
        """Ask the disk, and trust the value for another minute; or drop it."""
        assert kept.stamp is not None
        if self._is_current is None or self._is_current(key, kept.stamp):
            kept.believed_until = now + STALE_SECONDS * 1_000_000_000
            return True
        with self._lock:
            if self._kept.get(key) is kept:
                self._take(key, [])  # the caller still holds the value
        return False

    def _take(self, key: bytes, taken: list[_Kept[V]]) -> bool:
        one = self._kept.pop(key, None)
        if one is None:
            return False
        self.bytes -= one.size
        taken.append(one)
        return True

    def _take_oldest(self, taken: list[_Kept[V]]) -> bool:
        try:
            _, one = self._kept.popitem(last=False)
        except KeyError:
            return False
        self.bytes -= one.size
        taken.append(one)
        return True


class _Kept(Generic[V]):
    """One value. The first use after it was kept is noted on the disk at once, later ones every minute."""

    __slots__ = ("believed_until", "size", "stamp", "value")

    def __init__(self, value: V, size: int, stamp: bytes | None) -> None:
        self.value = value
        self.size = size
        self.stamp = stamp
        self.believed_until = 0


# --- memories before one folder --------------------------------------------------------------------------------------

_before: dict[str, weakref.WeakValueDictionary[int, Memory[Any]]] = {}
"""The memories before each folder, by folder and then by `id`. There is no lock: each change is one step, and loops
copy the memories in one step. A folder that has lost all its memories is forgotten when the next memory comes."""


def stand_before(folder: str, memory: Memory[V]) -> None:
    """From now on `memory` hears of what others of this process change in `folder`."""
    memories = _put_before(folder, memory)
    while _before.get(folder) is not memories:  # it was forgotten at that moment
        memories = _put_before(folder, memory)
    for other in list(_before):
        if not _before.get(other, memories):
            forgotten = _before.pop(other, None)
            for late in list(forgotten.values()) if forgotten else ():
                _put_before(other, late)


def _put_before(folder: str, memory: Memory[V]) -> weakref.WeakValueDictionary[int, Memory[Any]]:
    memories = _before.setdefault(folder, weakref.WeakValueDictionary())
    memories[id(memory)] = memory
    return memories


def tell_others(folder: str, besides: Memory[V], key: bytes | None) -> None:
    """An entry of `folder` has changed or gone, or all of them: other memories must not serve what they keep."""
    memories = _before.get(folder)
    if memories is None or len(memories) < 2:
        return
    for reference in memories.valuerefs():
        memory = reference()
        if memory is None or memory is besides:
            continue
        if key is None:
            memory.clear()
        else:
            memory.drop(key)
