"""The past in `kcachefs stats`: sums by namespace, user or run, and whether the quota is large enough."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kcachefs.cli import target
from kcachefs.cli.printing import counted, format_seconds
from kcachefs.cli.tables import Table
from kcachefs.config import format_size
from kcachefs.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kcachefs.core.insight_info import RunInfo, Sample, SampleRow
    from kcachefs.core.report import Statistics

BY = ("namespace", "user", "run")
USUAL_SECONDS = 7 * 86400.0
"""How far `stats` looks back by default."""


class PastRow(msgspec.Struct, kw_only=True):
    """The activity in a namespace, by a user or during a run."""

    name: str
    hits: int = 0
    misses: int = 0
    bytes_served: int = 0
    evictions: int = 0
    remade: int = 0
    seconds_compiled: float = 0.0
    seconds_saved: float = 0.0


class Past(msgspec.Struct, kw_only=True):
    """The activity since a moment."""

    since: float
    by: str
    rows: list[PastRow]
    total: PastRow


def look_back(mount: Path | None, store: Path | None, since: float, by: str = "namespace") -> Past:
    """The activity since then, in seconds since 1970."""
    insight = target.insight(mount, store)
    if by == "run":
        rows = [_of_run(run) for run in insight.runs(settle=True) if run.last_used >= since]
    else:
        rows = _summed(insight.history(since), _user if by == "user" else lambda row: row.namespace)
    total = PastRow(name="total")
    for row in rows:
        _add(total, row)
    return Past(since=since, by=by, rows=rows, total=total)


def began(numbers: Statistics, age: float | None) -> float:
    """The moment to look back to: that long ago, else when the numbers were reset, else a week ago."""
    return max(numbers.since, time.time() - (age if age is not None else USUAL_SECONDS))


def table(past: Past) -> Table:
    titles = ("hits", "misses", "served", "evicted", "compiled again", "compiled", "not repeated")
    made = Table((past.by,), titles)
    for row in (*past.rows, past.total):
        made.add(
            printable(row.name),
            str(row.hits),
            str(row.misses),
            format_size(row.bytes_served),
            str(row.evictions) if past.by != "run" else "",
            str(row.remade) if past.by != "run" else "",
            format_seconds(row.seconds_compiled),
            format_seconds(row.seconds_saved),
        )
    return made


def summary(past: Past, *, is_exceeded: bool) -> list[str]:
    """The savings in words, and whether the quota is too small. `is_exceeded`: the store exceeds the quota now."""
    total, lines = past.total, []
    span = f" in {format_seconds(time.time() - past.since)}" if past.since else ""
    if total.seconds_saved >= 0.1:
        saved = format_seconds(total.seconds_saved)
        lines.append(f"saved    {saved} of compiling not repeated{span} (added up over parallel compilers)")
    if total.evictions and past.by != "run":
        gone = counted(total.evictions, "entry", "entries")
        again = f"{total.remade} compiled again after being evicted to make room"
        verdict = "the store takes more than the quota" if is_exceeded else "the quota is large enough"
        if total.remade:
            verdict = "a larger quota would have kept them"
        lines.append(f"evicted  {gone}{span}, {again}: {verdict}")
    return lines


def _user(row: SampleRow) -> str:
    import pwd

    if row.namespace == "(others)":
        return row.namespace
    try:
        return pwd.getpwuid(row.uid).pw_name
    except KeyError:
        return str(row.uid)


def _of_run(run: RunInfo) -> PastRow:
    return PastRow(
        name=f"{run.run} {run.argv or run.pid}",
        hits=run.hits,
        misses=run.misses,
        bytes_served=run.bytes_served,
        seconds_compiled=run.seconds_compiled,
        seconds_saved=run.seconds_saved,
    )


def _summed(samples: Iterable[Sample], name_of: Callable[[SampleRow], str]) -> list[PastRow]:
    found: dict[str, PastRow] = {}
    for sample in samples:
        for row in sample.rows:
            name = name_of(row)
            _add(found.setdefault(name, PastRow(name=name)), row)
    return sorted(found.values(), key=lambda row: row.name)


def _add(total: PastRow, row: PastRow | SampleRow) -> None:
    for field in ("hits", "misses", "bytes_served", "evictions", "remade", "seconds_compiled", "seconds_saved"):
        setattr(total, field, getattr(total, field) + getattr(row, field))
