"""When a folder that several processes fill must be counted again, and when something in it must go."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Sequence

from kcachefs.errors import UsageError

BLOCK = 4096
# How far eviction goes below the bound, so that not every write at the bound has to scan; and what share of the bound
# one process may write before it counts again what the others have written.
LOW_WATER = 0.9
RECOUNT = 1 / 16
AHEAD_NS = 1_000_000_000
"""How far ahead of the clock an age may be. An age beyond that is from before the clock was set back."""


def brought_back(ages: Sequence[int], opened: int) -> dict[int, int]:
    """New ages for entries whose ages lie in the future, which would never grow old; by place in the order of ages.

    No such entry was used since the clock was set back. So they count as used before the folder was `opened`, in order.

    >>> opened = time.time_ns()
    >>> {place: age - opened for place, age in brought_back([opened - 9, 2 * opened, 3 * opened], opened).items()}
    {1: -2, 2: -1}
    """
    now = time.time_ns()
    base = min(opened, now) - len(ages)
    return {place: base + place for place, age in enumerate(ages) if age > now + AHEAD_NS}


def on_disk(size: int) -> int:
    """The space that a file of that size takes."""
    return -(-size // BLOCK) * BLOCK


def check_whole(name: str, given: object) -> None:
    """Raise unless `given` is a whole number: NaN, which no size exceeds, would bound nothing."""
    try:
        operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        pass
    else:
        if not isinstance(given, bool):
            return
    raise UsageError(f"{name} is {given!r}; give a whole number")


def check_limit(limit: int | None, name: str = "max_bytes") -> None:
    """Raise if no entry at all would fit; `name` is the parameter that set the bound."""
    if limit is None:
        return
    check_whole(name, limit)
    if limit <= 0:
        raise UsageError(f"{name} is {limit}; it must be positive, or None for no bound")
    if limit < BLOCK:
        raise UsageError(
            f"{name} is {limit}, but every entry takes at least {BLOCK} bytes of disk, so nothing could be kept; "
            "give more, no bound, or disk=False for memory alone"
        )


class Bound:
    """A size bound on a shared folder.

    Nobody keeps the total: each process adds what it writes to what it last counted. So the folder may exceed the
    bound, by at most a sixteenth of it for each other process.
    """

    def __init__(self, limit: int, evict: Callable[[str], int]) -> None:
        self.limit = limit
        self._evict = evict
        self._lock = threading.RLock()
        self._size: int | None = None
        self._since_count = 0

    def grew(self, size: int, newest: str) -> None:
        """Note that `newest`, of that size, was written. `evict(newest)` makes room beside it; returns what is left."""
        with self._lock:
            if self._size is not None:
                self._size += size
                self._since_count += size
                if self._size <= self.limit and self._since_count < self.limit * RECOUNT:
                    return
            self._size = self._evict(newest)
            self._since_count = 0

    def forget(self) -> None:
        """Count again at the next write. A forked child needs this too: there, a lock held by another thread would stay
        locked for ever."""
        self._lock = threading.RLock()
        self._size = None
