"""The first level: entries in memory, bounded by count and by bytes, dropped in LRU or FIFO order. Thread-safe."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Literal

from kcachefs.caches.record import Entry
from kcachefs.errors import UsageError

Policy = Literal["lru", "fifo"]


class Memory:
    """A bounded map of entries. An entry larger than the whole bound is not kept."""

    def __init__(self, max_entries: int, max_bytes: int, policy: Policy) -> None:
        if policy not in ("lru", "fifo"):
            raise UsageError(f"policy is {policy!r}; it can be 'lru' or 'fifo'")
        if max_entries < 0 or max_bytes < 0:
            raise UsageError("the bounds of the memory level must not be negative; 0 keeps nothing in memory")
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.bytes = 0
        self.evictions = 0
        self.hits = 0
        self._moves = policy == "lru"
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> Entry | None:
        """The entry, which under LRU becomes the youngest.

        Without the lock, which would cost as much again: each step is one operation of the dictionary, whole by
        itself, and the entry may be gone between the two. The count of hits may miss some that fall together.
        """
        entry = self._entries.get(key)
        if entry is not None:
            self.hits += 1
            if self._moves:
                try:  # a `with suppress` would cost more than all the rest
                    self._entries.move_to_end(key)
                except KeyError:
                    return entry
        return entry

    def put(self, key: bytes, entry: Entry) -> None:
        """Keep the entry, and drop the oldest until both bounds hold."""
        if not self.max_entries:
            return
        size = len(key) + len(entry.value)
        with self._lock:
            self._drop(key)
            if size > self.max_bytes:
                return
            self._entries[key] = entry
            self.bytes += size
            while len(self._entries) > self.max_entries or self.bytes > self.max_bytes:
                oldest, dropped = self._entries.popitem(last=False)
                self.bytes -= len(oldest) + len(dropped.value)
                self.evictions += 1

    def drop(self, key: bytes) -> bool:
        """Forget one entry; whether it was there."""
        with self._lock:
            return self._drop(key)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self.bytes = 0

    def items(self) -> list[tuple[bytes, Entry]]:
        """The keys and entries, oldest first."""
        with self._lock:
            return list(self._entries.items())

    def __len__(self) -> int:
        return len(self._entries)

    def after_fork(self) -> None:
        """In a forked child: another thread may have held the lock, and it does not exist here."""
        self._lock = threading.Lock()

    def _drop(self, key: bytes) -> bool:
        dropped = self._entries.pop(key, None)
        if dropped is None:
            return False
        self.bytes -= len(key) + len(dropped.value)
        return True
