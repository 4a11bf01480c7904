"""How long requests take, counted by powers of two of a nanosecond, so that counting one costs next to nothing."""

from __future__ import annotations

import itertools

import msgspec

BOUNDS = (13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 26, 28, 30, 32)
"""The upper bounds of a histogram's buckets, as powers of two of a nanosecond: from 8 µs to 4 s."""
_CELLS = 64
"""More bits than any duration has."""


class Latency(msgspec.Struct, frozen=True):
    """How long the requests of one kind took since the worker started."""

    counts: list[int]
    """How many took up to each of `BOUNDS` and longer than the one before it; last, how many took longer than all."""
    seconds: float
    """The total time of these requests."""


class RequestTimes:
    """The times of one kind of request. One thread counts; another that reads at that moment may miss one."""

    __slots__ = ("cells", "nanoseconds")

    def __init__(self) -> None:
        self.cells = [0] * _CELLS
        """How many requests took a number of nanoseconds of N bits, by N."""
        self.nanoseconds = 0

    def note(self, nanoseconds: int) -> None:
        self.cells[nanoseconds.bit_length()] += 1
        self.nanoseconds += nanoseconds

    def add(self, other: RequestTimes) -> None:
        self.cells = [one + more for one, more in zip(self.cells, other.cells, strict=True)]
        self.nanoseconds += other.nanoseconds

    def as_latency(self) -> Latency:
        below = [sum(self.cells[: bits + 1]) for bits in BOUNDS] + [sum(self.cells)]
        counts = [below[0], *(above - under for under, above in itertools.pairwise(below))]
        return Latency(counts, self.nanoseconds / 1e9)
