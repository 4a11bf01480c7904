"""`kcachefs stats`: shows what a cache holds and how well it works."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from kcachefs.cli import past, target
from kcachefs.cli.printing import console, counted, print_json
from kcachefs.cli.tables import Table, bar, screen_width, show
from kcachefs.config import format_age, format_size
from kcachefs.errors import MountError, UsageError
from kcachefs.printable import printable

if TYPE_CHECKING:
    from rich.text import Text

    from kcachefs.core.report import Numbers, Statistics

_BAR = 30
_WIDE = 120
_COLUMNS: tuple[str, ...] = (
    "entries",
    "files",
    "size",
    "stored",
    "ratio",
    "hits",
    "misses",
    "served",
    "evicted",
    "last use",
    "hit rate",
)
_NARROW_COLUMNS = ("entries", "size", "stored", "hits", "misses", "last use", "hit rate")


def stats(
    mount: target.Mount = None,
    store: target.Store = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every second until Ctrl-C; with --json, print a line each time.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Show what happened within this time instead: 7d, 12h, 90m."),
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="WHAT", help="Show the numbers of --since by namespace, user or run.")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Count hits, misses and evictions from 0 again.")] = False,
    as_json: target.Json = False,
) -> None:
    """Show what a cache holds and how well it works."""
    from rich.live import Live

    if watch and (since is not None or by is not None):
        raise UsageError("--watch: shows current numbers only; leave it out, or --since and --by")
    if reset:
        target.call(mount, store, "reset", float)
    numbers = _ask(mount, store, settle=not watch)
    if since is not None or by is not None:
        _show_past(numbers, mount, store, since, by, as_json)
        return
    if as_json and watch:
        _print_forever(numbers, mount, store)
    if as_json:
        print_json(numbers)
        return
    if not watch:
        show(_table(numbers), [*_summary(numbers), *_recent(numbers, mount, store)])
        return
    with Live(_screen(numbers), console=console(), auto_refresh=False) as live:
        try:
            while True:
                time.sleep(1.0)
                live.update(_screen(_ask(mount, store)), refresh=True)
        except KeyboardInterrupt:
            pass


def _recent(numbers: Statistics, mount: Path | None, store: Path | None) -> list[str]:
    """What the last days saved, and whether the quota is large enough; empty if the daemon is too old to report it."""
    with contextlib.suppress(MountError):
        return past.summary(past.look_back(mount, store, past.began(numbers, None)), is_exceeded=_is_exceeded(numbers))
    return []


def _is_exceeded(numbers: Statistics) -> bool:
    return numbers.store.used_bytes > numbers.store.max_bytes


def _show_past(
    numbers: Statistics, mount: Path | None, store: Path | None, since: str | None, by: str | None, as_json: bool
) -> None:
    from kcachefs.cli.prune import parse_age

    if by is not None and by not in past.BY:
        raise UsageError(f"--by {by}: unknown; choose one of {', '.join(past.BY)}")
    start = past.began(numbers, parse_age(since)) if since is not None else numbers.since
    found = past.look_back(mount, store, start, by or past.BY[0])
    if as_json:
        print_json(found)
    else:
        show(past.table(found), ["", *past.summary(found, is_exceeded=_is_exceeded(numbers))])


def _print_forever(numbers: Statistics, mount: Path | None, store: Path | None) -> NoReturn:
    """Print one line of JSON a second, until Ctrl-C or until nobody reads it."""
    import json

    from kcachefs.core import report

    try:
        while True:
            print(json.dumps(json.loads(report.as_json(numbers))), flush=True)
            time.sleep(1.0)
            numbers = _ask(mount, store)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _ask(mount: Path | None, store: Path | None, *, settle: bool = False) -> Statistics:
    """The numbers; with `settle`, recent writes and uses are counted first."""
    from kcachefs.core.report import Statistics

    return target.call(mount, store, "stats", Statistics, settle=settle)


def _screen(numbers: Statistics) -> Text:
    from rich.text import Text

    return Text("\n".join((*_table(numbers).lines(screen_width()), *_summary(numbers))))


def _table(numbers: Statistics) -> Table:
    """Every number in a pipe and on a wide screen; the important ones where they do not fit side by side."""
    rows = sorted(numbers.namespaces.items(), key=lambda item: -item[1].stored_bytes)
    shown = _COLUMNS
    if sys.stdout.isatty() and screen_width() < _WIDE:
        shown = _NARROW_COLUMNS
    table = Table(("namespace",), shown)
    for name, row in (*rows, ("total", numbers.total)):
        cells = _cells(row)
        table.add(printable(name), *(cells[title] for title in shown))
    return table


def _summary(numbers: Statistics) -> list[str]:
    below = numbers.store
    share = below.used_bytes / below.max_bytes if below.max_bytes else 0.0
    lines = [
        "",
        f"on disk  {bar(share, _BAR)} {format_size(below.used_bytes)} of {format_size(below.max_bytes)}, "
        f"{format_size(below.bytes_saved)} saved; {counted(below.objects, 'object')}, shared {below.dedup_ratio:g}x",
    ]
    if below.overhead_bytes:  # known only to those who see the whole mount
        payload, overhead, slack = map(format_size, (below.payload_bytes, below.overhead_bytes, below.slack_bytes))
        lines.append(f"of that  {payload} payload, {overhead} overhead, {slack} slack")
    if below.damaged:
        lines.append(f"damaged  {counted(below.damaged, 'object')} set aside")
    if below.trouble:
        lines.append(f"trouble  nothing can be written to the store: {printable(below.trouble)}")
    return lines


def _cells(row: Numbers) -> dict[str, str]:

    return {
        "entries": str(row.entries),
        "files": str(row.files),
        "size": format_size(row.plain_bytes),
        "stored": format_size(row.stored_bytes),
        "ratio": f"{row.compression_ratio:.1f}x",
        "hits": str(row.hits),
        "misses": str(row.misses),
        "served": format_size(row.bytes_served),
        "evicted": str(row.evictions),
        "last use": format_age(row.last_used),
        "hit rate": f"{bar(row.hit_rate, 5)} {row.hit_rate:4.0%}",
    }
