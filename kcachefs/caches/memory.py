"""The first level: things in memory by key, bounded by count and by bytes, dropped in LRU or FIFO order. Thread-safe.

What is also on the disk is believed for a minute at most. The first use after that asks whether the disk still has it,
which keeps it young there, and shows what another process has deleted or replaced. Memories of one process that stand
before the same folder tell each other at once.
"""

from __future__ import annotations

import os
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
    """A bounded map. What is larger than the whole bound is not kept.

    `is_current(key, stamp)` tells whether the disk still has what was kept with that stamp. `uses` gathers when things
    were last used, in nanoseconds of the monotonic clock, for whoever writes that to the disk.
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
        self._lock = threading.Lock()

    def get(self, key: bytes) -> V | None:
        """What is kept, which under LRU becomes the youngest.

        Takes no lock, which would cost as much again: each step is one operation of the dictionary, whole by itself,
        and what was found may be gone between two of them. The count of hits may miss some that fall together.
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
        """Keep a value of that size, and drop the oldest until both bounds hold; whether it is kept.

        `stamp` tells what the disk has for it; without one the value is nowhere else, and is never doubted.
        """
        with self._lock:
            self._drop(key)
            if not self.max_entries or (self.max_bytes is not None and size > self.max_bytes):
                return False
            self._kept[key] = _Kept(value, size, stamp)
            self.bytes += size
            while len(self._kept) > self.max_entries or (self.max_bytes is not None and self.bytes > self.max_bytes):
                _, dropped = self._kept.popitem(last=False)
                self.bytes -= dropped.size
                self.evictions += 1
            return True

    def drop(self, key: bytes) -> bool:
        """Forget one value; whether it was there."""
        with self._lock:
            return self._drop(key)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()
            self.bytes = 0

    def items(self) -> list[tuple[bytes, V]]:
        """The keys and values, oldest first."""
        with self._lock:
            return [(key, kept.value) for key, kept in self._kept.items()]

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: bytes) -> bool:
        return key in self._kept

    def after_fork(self) -> None:
        """In a forked child: another thread may have held the lock, and it does not exist here."""
        self._lock = threading.Lock()

    def _believe(self, key: bytes, kept: _Kept[V], now: int) -> bool:
        """Ask the disk, and believe what is kept for another minute; or drop it."""
        assert kept.stamp is not None
        if self._is_current is None or self._is_current(key, kept.stamp):
            kept.believed_until = now + STALE_SECONDS * 1_000_000_000
            return True
        with self._lock:
            if self._kept.get(key) is kept:
                self._drop(key)
        return False

    def _drop(self, key: bytes) -> bool:
        dropped = self._kept.pop(key, None)
        if dropped is None:
            return False
        self.bytes -= dropped.size
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

_before: dict[str, weakref.WeakSet[Memory[Any]]] = {}
_before_lock = threading.Lock()


def stand_before(folder: str, memory: Memory[V]) -> None:
    """From now on `memory` hears of what others of this process change in `folder`."""
    with _before_lock:
        _before.setdefault(folder, weakref.WeakSet()).add(memory)


def tell_others(folder: str, besides: Memory[V], key: bytes | None) -> None:
    """An entry of `folder` has changed or gone, or all of them: other memories must not serve what they keep."""
    memories = _before.get(folder)
    if memories is None or len(memories) < 2:
        return
    with _before_lock:
        others = [memory for memory in memories if memory is not besides]
    for memory in others:
        if key is None:
            memory.clear()
        else:
            memory.drop(key)


def _after_fork() -> None:
    global _before_lock
    _before_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
