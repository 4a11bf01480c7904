"""When a folder that several processes fill must be counted again, and when something in it must go."""

from __future__ import annotations

import threading
from collections.abc import Callable

BLOCK = 4096
# How far eviction goes below the bound, so that not every write at the bound has to scan; and what share of the bound
# one process may write before it counts again what the others have written.
LOW_WATER = 0.9
RECOUNT = 1 / 16


def on_disk(size: int) -> int:
    """What a file of that size takes."""
    return -(-size // BLOCK) * BLOCK


class Bound:
    """A size bound on a shared folder.

    Nobody keeps the total: each process adds what it writes to what it last counted. So the bound may be passed by what
    the other processes have written since, at most a sixteenth of it each.
    """

    def __init__(self, limit: int, evict: Callable[[int], int]) -> None:
        self.limit = limit
        self._evict = evict
        self._lock = threading.Lock()
        self._size: int | None = None
        self._since_count = 0

    def grew(self, size: int) -> None:
        """So much has been written; `evict(limit)` counts, removes what is too much, and tells what is left."""
        with self._lock:
            if self._size is not None:
                self._size += size
                self._since_count += size
                if self._size <= self.limit and self._since_count < self.limit * RECOUNT:
                    return
            self._size = self._evict(self.limit)
            self._since_count = 0

    def forget(self) -> None:
        """Count at the next write; also in a forked child, where another thread's lock would be held for ever."""
        self._lock = threading.Lock()
        self._size = None
