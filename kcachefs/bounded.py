"""A dict with a limit, for caches and memos that must not grow for ever. Lookups cost what a plain dict's do.

It forgets in the order of insertion, an eighth at a time. A strict LRU order would need work on every lookup, which is
not worth it here: a dropped value is simply looked up, computed or opened again.

Threads may share one as they may share a dict: to other threads, `get`, `pop` and assignment are each a single step.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


_set = dict.__setitem__


class BoundedDict(dict[K, V]):
    """Holds at most `limit` items; one more drops the oldest eighth, except values for which `may_drop` returns false.

    >>> squares = BoundedDict(8)
    >>> for number in range(9):
    ...     squares[number] = number**2
    >>> len(squares), 0 in squares, 8 in squares
    (8, False, True)
    """

    __slots__ = ("_limit", "_may_drop")

    def __init__(self, limit: int, may_drop: Callable[[V], bool] | None = None) -> None:
        super().__init__()
        self._limit = limit
        self._may_drop = may_drop

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._limit and key not in self:
            self._drop_oldest()
        _set(self, key, value)  # super() would take longer (benchmarks/README.md)

    def _drop_oldest(self) -> None:
        oldest, may_drop, drop = self._oldest(max(1, self._limit // 8)), self._may_drop, self.pop
        if may_drop is not None:
            oldest = [key for key in oldest if key in self and may_drop(self[key])]
        for key in oldest:
            drop(key, None)

    def _oldest(self, count: int) -> list[K]:
        while True:
            try:
                return list(islice(self, count))  # not a list of all keys: the dict may be large
            except RuntimeError:  # another thread changed the dict between these two steps
                continue
