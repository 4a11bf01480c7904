"""Samples of a mount's history, kept so that only new ones are requested, and combined into series."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from kcachefs.core.insight_info import Event, Sample, SampleRow
from kcachefs.live.view import RANGES, Mark, Series

STEPS = {"6h": 60, "14d": 3600, "2y": 2 * 86400}
"""Seconds per point, by the name of the range: about 360 points each."""
SAMPLE_SECONDS = 10
_FORGOTTEN_AFTER = 5 * 3600.0
"""If nobody has asked for longer than this, we start again: a mount keeps samples of 10 seconds for only 6 hours, and
the longer samples that replace them would overlap the ones we have."""
_MARKED = ("evicted", "damaged", "failover", "reloaded", "reset")
_MARK_WORDS = {
    "evicted": "evicted",
    "damaged": "found damaged",
    "failover": "worker replaced after a failure",
    "reloaded": "worker reloaded",
    "reset": "counters reset",
}

AskHistory = Callable[[float], list[Sample]]


class Sum(msgspec.Struct):
    """The totals of the rows of samples."""

    hits: int = 0
    misses: int = 0
    bytes_served: int = 0
    evictions: int = 0
    remade: int = 0
    seconds_compiled: float = 0.0
    seconds_saved: float = 0.0

    def add(self, row: SampleRow) -> None:
        self.hits += row.hits
        self.misses += row.misses
        self.bytes_served += row.bytes_served
        self.evictions += row.evictions
        self.remade += row.remade
        self.seconds_compiled += row.seconds_compiled
        self.seconds_saved += row.seconds_saved


class KeptSamples:
    """The samples of one range."""

    def __init__(self, name: str, ask: AskHistory) -> None:
        self.name = name
        self._ask = ask
        self._samples: dict[float, Sample] = {}
        self._asked = 0.0

    def refresh(self, now: float) -> None:
        """Request new samples. The newest sample may still grow, so it is requested again."""
        horizon = now - RANGES[self.name]
        if 0 <= now - self._asked < _FORGOTTEN_AFTER:
            since = max(horizon, self._asked - 2 * SAMPLE_SECONDS)
        else:
            self._samples, since = {}, horizon
        for sample in self._ask(since):
            self._samples[sample.start] = sample
        self._asked = now
        for start in [one for one in self._samples if one + self._samples[one].seconds <= horizon]:
            del self._samples[start]

    def since(self, when: float) -> Iterable[Sample]:
        """The samples since then, chosen as `kcachefs stats --since` does: including the sample that began before."""
        return (one for one in self._samples.values() if one.start + one.seconds > when)

    def series(self, now: float, events: Iterable[Event]) -> Series:
        step = STEPS[self.name]
        count = RANGES[self.name] // step
        start = (int(now) // step - count + 1) * step
        sums = [Sum() for _ in range(count)]
        used: list[int | None] = [None] * count
        for when in sorted(self._samples):
            at = int(when - start) // step
            if 0 <= at < count:
                sample = self._samples[when]
                for row in sample.rows:
                    sums[at].add(row)
                used[at] = sample.used_bytes or used[at]
        return Series(
            range=self.name,
            start=start,
            step=step,
            hits=[one.hits for one in sums],
            misses=[one.misses for one in sums],
            bytes_served=[one.bytes_served for one in sums],
            evictions=[one.evictions for one in sums],
            remade=[one.remade for one in sums],
            seconds_saved=[round(one.seconds_saved, 2) for one in sums],
            seconds_compiled=[round(one.seconds_compiled, 2) for one in sums],
            used_bytes=used,
            marks=_marks(events, start, step, count),
        )


def _marks(events: Iterable[Event], start: float, step: int, steps: int) -> list[Mark]:
    """One mark for each kind and step."""
    counts: dict[tuple[int, str], int] = {}
    for one in events:
        if start <= one.when < start + step * steps and one.kind in _MARKED:
            key = int(one.when - start) // step, one.kind
            counts[key] = counts.get(key, 0) + 1
    return [
        Mark(when=start + at * step, kind=kind, count=count, words=_words(kind, count))
        for (at, kind), count in sorted(counts.items())
    ]


def _words(kind: str, count: int) -> str:
    if kind in ("evicted", "damaged"):
        return f"{count} {'entry' if count == 1 else 'entries'} {_MARK_WORDS[kind]}"
    return _MARK_WORDS[kind] + (f", {count} times" if count > 1 else "")
