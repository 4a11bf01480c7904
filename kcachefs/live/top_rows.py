"""What `kcachefs top` shows, as tables of text: one function per panel, from the records of `view.py`. Draws nothing.

Names come from files that anybody may have written, so every text goes through `printable`.
"""

from __future__ import annotations

import functools
import itertools
import os
import pwd
import time
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from kcachefs.config import format_age, format_size
from kcachefs.live.view import Causes, Glance, Headline, Kernels, MountRow, Series
from kcachefs.printable import printable

PANELS = ("namespaces", "runs", "misses", "kernels", "events", "mounts")
SPANS = {"1 h": ("6h", 60), "6 h": ("6h", 360), "14 d": ("14d", 336)}
"""By the name of a span: the range of the series that covers it, and the number of its points."""
_SPARKS = "▁▂▃▄▅▆▇█"
_ASCII_SPARKS = "_.-=+*%#"
_GAP = 2
"""Columns between two cells."""
_LEAST_TEXT = 8


class Column(NamedTuple):
    """One column. `wide`: only shown where there is room for everything."""

    title: str
    is_number: bool = False
    wide: bool = False


class Row(NamedTuple):
    """One row: its key, its cells, and the value by which each column sorts it."""

    key: str
    cells: tuple[str, ...]
    values: tuple[float | str, ...]
    uid: int | None = None
    namespace: str | None = None


class Panel(NamedTuple):
    """A table, the column that it is sorted by at first, and what to say if it is empty."""

    columns: tuple[Column, ...]
    rows: list[Row]
    order: int
    empty: str


class Filter(NamedTuple):
    """Which rows to show."""

    search: str = ""
    uid: int | None = None
    namespace: str | None = None

    def words(self) -> str:
        """The filter in words; empty if everything passes."""
        parts = [
            f"user {user_name(self.uid)}" if self.uid is not None else "",
            f"namespace {printable(self.namespace)}" if self.namespace is not None else "",
            f"“{printable(self.search)}”" if self.search else "",
        ]
        return ", ".join(filter(None, parts))

    def passes(self, row: Row) -> bool:
        return (
            (self.uid is None or row.uid is None or row.uid == self.uid)
            and (self.namespace is None or row.namespace is None or row.namespace == self.namespace)
            and (not self.search or any(self.search.casefold() in cell.casefold() for cell in (row.key, *row.cells)))
        )


def chosen(panel: Panel, wanted: Filter, order: int, descending: bool) -> list[Row]:
    """The rows that pass, in the order of a column."""
    rows = [row for row in panel.rows if wanted.passes(row)]
    return sorted(rows, key=lambda row: row.values[order], reverse=descending)


# --- panels -----------------------------------------------------------------------------------------------------------


def namespaces(glance: Glance) -> Panel:
    columns = (
        Column("namespace"),
        Column("entries", True),
        Column("stored", True),
        Column("ratio", True, True),
        Column("hits", True),
        Column("misses", True),
        Column("rate", True),
        Column("served", True),
        Column("evicted", True, True),
        Column("used", True),
    )
    rows = []
    for name, row in glance.namespaces.items():
        values = (
            *(name, row.entries, row.stored_bytes, row.compression_ratio, row.hits, row.misses, row.hit_rate),
            *(row.bytes_served, row.evictions, row.last_used),
        )
        cells = (
            *(printable(name), f"{row.entries:,}", format_size(row.stored_bytes), f"{row.compression_ratio:.1f}x"),
            *(f"{row.hits:,}", f"{row.misses:,}", f"{row.hit_rate:.0%}", format_size(row.bytes_served)),
            *(f"{row.evictions:,}", format_age(row.last_used)),
        )
        rows.append(Row(name, cells, values, namespace=name))
    return Panel(columns, rows, 2, "Nothing cached yet. Point a program at it: kcachefs run -- python train.py")


def runs(glance: Glance) -> Panel:
    columns = (
        Column("run", True),
        Column("command"),
        Column("user"),
        Column("hits", True),
        Column("misses", True),
        Column("saved", True),
        Column("compiled", True),
        Column("served", True, True),
        Column("used", True),
    )
    rows = []
    for run in glance.runs:
        command = run.argv or f"process {run.pid}"
        values = (
            *(run.run, command, user_name(run.uid), run.hits, run.misses),
            *(run.seconds_saved, run.seconds_compiled, run.bytes_served, run.last_used),
        )
        cells = (
            *(str(run.run), printable(_short_command(command)), user_name(run.uid), f"{run.hits:,}"),
            *(f"{run.misses:,}", _cost(run.seconds_saved, run.unknown_saved)),
            _cost(run.seconds_compiled, run.unknown_compiled),
            *(format_size(run.bytes_served), format_age(run.last_used)),
        )
        rows.append(Row(str(run.run), cells, values, uid=run.uid))
    return Panel(columns, rows, 0, "No program has used it yet.")


def misses(causes: Causes | None) -> Panel:
    columns = (
        Column("entries", True),
        Column("why it was compiled"),
        Column("what", wide=True),
        Column("seconds", True),
    )
    rows = []
    for number, cause in enumerate(causes.rows if causes is not None else ()):
        words = printable(cause.words) if cause.certain else f"likely: {printable(cause.words)}"
        cells = (f"{cause.entries:,}", words, printable(cause.counts), _seconds(cause.seconds))
        values = (cause.entries, cause.words, cause.counts, cause.seconds or 0.0)
        places = {path.partition("/")[0] for path in cause.paths}
        rows.append(Row(str(number), cells, values, namespace=places.pop() if len(places) == 1 else None))
    return Panel(columns, rows, 0, "There is no compilation to explain.")


def kernels(found: Kernels | None, pinned: Collection[str] = ()) -> Panel:
    columns = (
        Column("kernel"),
        Column("told apart by", wide=True),
        Column("arch"),
        Column("warps", True),
        Column("regs", True),
        Column("shared", True),
        Column("size", True),
        Column("hits", True),
        Column("cost", True),
        Column("used", True),
    )
    rows = []
    for row in found.rows if found is not None else ():
        name = printable(row.name) + (" (pinned)" if row.path in pinned else "")
        values = (
            *(row.name, row.differs, row.arch, row.warps or 0, row.registers or 0, row.shared or 0, row.bytes),
            *(row.hits, row.seconds or 0.0, row.used),
        )
        cells = (
            *(name, printable(row.differs), printable(row.arch), _known(row.warps), _known(row.registers)),
            *(_known(row.shared), format_size(row.bytes), f"{row.hits:,}", _seconds(row.seconds), format_age(row.used)),
        )
        rows.append(Row(row.path, cells, values, row.uid, row.path.partition("/")[0]))
    return Panel(columns, rows, 9, "No compiled kernel of Triton's here yet.")


def events(glance: Glance) -> Panel:
    columns = (
        Column("when", True),
        Column("what"),
        Column("entry"),
        Column("detail"),
        Column("user", wide=True),
    )
    rows = []
    for event in glance.events:
        user = user_name(event.uid) if event.path else ""
        cells = (format_age(event.when), event.kind, printable(event.path), printable(event.detail), user)
        values = (event.when, event.kind, event.path, event.detail, user)
        place = event.path.partition("/")[0] if event.path else None
        rows.append(Row(str(event.number), cells, values, event.uid if event.path else None, place))
    return Panel(columns, rows, 0, "Nothing happened yet: no eviction, no damage, no failover.")


def mounts(found: Iterable[MountRow]) -> Panel:
    columns = (
        Column("mount"),
        Column("state"),
        Column("used", True),
        Column("quota", True),
        Column("hit rate", True),
        Column("restarts", True),
        Column("policy", wide=True),
        Column("version", wide=True),
    )
    rows = []
    for one in found:
        used = "" if one.used_bytes is None else format_size(one.used_bytes)
        quota = "" if one.max_bytes is None else format_size(one.max_bytes)
        rate = "" if one.hit_rate is None else f"{one.hit_rate:.0%}"
        cells = (
            *(printable(one.mountpoint), one.state, used, quota, rate, str(one.restarts) if one.own else ""),
            *(one.policy, one.version),
        )
        values = (
            *(one.mountpoint, one.state, one.used_bytes or 0, one.max_bytes or 0, one.hit_rate or 0.0, one.restarts),
            *(one.policy, one.version),
        )
        rows.append(Row(one.mountpoint, cells, values))
    return Panel(columns, rows, 0, "No mounts.")


# --- the lines above --------------------------------------------------------------------------------------------------


def saved_words(headline: Headline) -> str:
    """What the last week saved."""
    if headline.total is None:
        return ""
    return f"{duration(headline.week.seconds_saved)} not repeated this week"


def state_words(headline: Headline, now: float) -> str:
    """The mount's state, and since when it has been so."""
    if headline.state in ("silent", "dead"):
        heard = f", last heard {duration(max(0.0, now - headline.heard))} ago" if headline.heard else ""
        return ("does not answer" if headline.state == "silent" else "dead") + heard
    words = [headline.state if headline.whole else f"{headline.state}: your own entries only"]
    if headline.started:
        words.append(f"up {duration(max(0.0, now - headline.started), exact=False)}")
    return " · ".join(filter(None, [*words, headline.policy]))


def total_words(headline: Headline, width: int = 1000) -> str:
    """The totals, as many as fit."""
    total = headline.total
    if total is None:
        return "no numbers yet"
    parts = [
        counted(total.entries, "entry", "entries"),
        f"hit rate {total.hit_rate:.0%}",
        counted(total.hits, "hit", "hits"),
        counted(total.misses, "miss", "misses"),
        f"{format_size(headline.bytes_saved)} of disk saved",
    ]
    while len(parts) > 1 and len(" · ".join(parts)) > width:
        parts.pop()
    return " · ".join(parts)


class Spark(NamedTuple):
    """One line of a series: its name, its points, and their total."""

    name: str
    points: list[float]
    sum: str


def sparks(series: Series, span: str) -> list[Spark]:
    """Hits, misses and bytes served within one of `SPANS`."""
    count = SPANS[span][1]
    hits, missed, served = series.hits[-count:], series.misses[-count:], series.bytes_served[-count:]
    return [
        Spark("hits", list(map(float, hits)), f"{sum(hits):,}"),
        Spark("misses", list(map(float, missed)), f"{sum(missed):,}"),
        Spark("served", list(map(float, served)), format_size(sum(served))),
    ]


def sparkline(points: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """The points as characters; each character shows the largest of its points.

    >>> sparkline([0, 0, 1, 8, 4, 0], 6), sparkline([0, 0, 1, 8], 2, ascii_only=True)
    ('▁▁▂█▅▁', '_#')
    """
    signs = _ASCII_SPARKS if ascii_only else _SPARKS
    width = min(width, len(points))
    edges = [number * len(points) // width for number in range(width + 1)] if width else []
    largest = [max(points[one:other]) for one, other in itertools.pairwise(edges)]
    top = max(largest, default=0.0)
    steps = len(signs) - 1
    return "".join(signs[0 if not one else max(1, round(one / top * steps))] for one in largest)


def duration(seconds: float, *, exact: bool = True) -> str:
    """How long, as people say it.

    >>> duration(0), duration(3.25), duration(303), duration(15120), duration(90000), duration(303, exact=False)
    ('0 s', '3.2 s', '5 min 3 s', '4 h 12 min', '1 d 1 h', '5 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if exact and seconds else f"{seconds:.0f} s"
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= length:
            rest = int(seconds % length) // part
            return f"{int(seconds) // length} {unit}" + (f" {rest} {smaller}" if exact and rest else "")
    raise AssertionError("a minute or more is one of these")


def clock(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))


@functools.lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    try:
        return printable(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return str(uid)


def _short_command(argv: str) -> str:
    """A command line without the program's folders, which are the same in every row."""
    program, _, rest = argv.partition(" ")
    return f"{os.path.basename(program) or program} {rest}".strip()


def counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _cost(seconds: float, unknown: int) -> str:
    """A cost as far as it is known; a question mark if it is not known at all."""
    return "?" if unknown and not seconds else duration(seconds)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def _known(number: int | None) -> str:
    return "" if number is None else str(number)


# --- fitting a table into a screen ------------------------------------------------------------------------------------


def widths(panel: Panel, shown: Sequence[int], rows: Sequence[Row], width: int) -> list[int]:
    """The width of each column that is shown: numbers get what they need, and texts share the rest."""
    needed = [max([cell_len(panel.columns[at].title) + 1, *(cell_len(row.cells[at]) for row in rows)]) for at in shown]
    texts = [place for place, at in enumerate(shown) if not panel.columns[at].is_number]
    left = width - _GAP * len(shown) - sum(one for place, one in enumerate(needed) if place not in texts)
    for place in sorted(texts, key=lambda place: needed[place]):
        share = max(_LEAST_TEXT, left // len([one for one in texts if needed[one] >= needed[place]] or [0]))
        taken = min(needed[place], share)
        needed[place] = taken
        texts = [one for one in texts if one != place]
        left -= taken
    return needed


def cut(text: str, width: int) -> str:
    """The text in that many columns, cut at the end if it does not fit.

    >>> cut("softmax_kernel", 10), cut("add", 10)
    ('softmax_k…', 'add')
    """
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, width - 1).rstrip()}…" if width > 0 else ""


def cut_front(path: str, width: int) -> str:
    """The text in that many columns, cut at the front: the end is the part that tells paths apart."""
    if cell_len(path) <= width:
        return path
    kept = width - 1
    for at in range(max(0, len(path) - kept), len(path)):
        if cell_len(path[at:]) <= kept:
            return f"…{path[at:]}"
    return "…" if width > 0 else ""
