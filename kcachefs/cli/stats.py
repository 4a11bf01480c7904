"""`kcachefs stats`: shows what a cache holds and how well it works."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs.cli import target
from kcachefs.config import format_size
from kcachefs.errors import UsageError
from kcachefs.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kcachefs.core.report import Numbers, Statistics

_BAR = 30
_WIDE = 120
_COLUMNS = ("entries", "files", "size", "stored", "ratio", "hits", "misses", "served", "evicted", "last use")
_NARROW_COLUMNS = ("entries", "size", "stored", "hits", "misses", "last use")


def stats(
    mount: target.Mount = None,
    store: target.Store = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")] = False,
    as_json: target.Json = False,
) -> None:
    """Show what a cache holds and how well it works."""
    from rich.console import Console
    from rich.live import Live

    from kcachefs.core import report

    if watch and as_json:
        raise UsageError("--watch: does not work with --json; leave out one of the two")
    numbers = _ask(mount, store, settle=not watch)
    if as_json:
        print(report.as_json(numbers).decode(), end="")
        return
    console = Console()
    wide = console.width >= _WIDE
    if not watch:
        console.print(_render(numbers, wide))
        return
    with Live(_render(numbers, wide), console=console, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(1.0)
                live.update(_render(_ask(mount, store), wide), refresh=True)
        except KeyboardInterrupt:
            pass


def _ask(mount: Path | None, store: Path | None, *, settle: bool = False) -> Statistics:
    """The numbers; with `settle` what was written or used until now is counted first."""
    from kcachefs.core.report import Statistics

    return target.call(mount, store, "stats", Statistics, settle=settle)


def _render(numbers: Statistics, wide: bool) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("namespace", no_wrap=True)
    for title in _COLUMNS if wide else _NARROW_COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("hit rate", no_wrap=True)
    for name, row in sorted(numbers.namespaces.items(), key=lambda item: -item[1].stored_bytes):
        table.add_row(Text(printable(name)), *_cells(row, wide))
    table.add_section()
    table.add_row("total", *_cells(numbers.total, wide))
    below = numbers.store
    share = below.used_bytes / below.max_bytes if below.max_bytes else 0.0
    return Group(
        table,
        Text(""),
        Text(
            f"on disk  {_bar(share)} {format_size(below.used_bytes)} of {format_size(below.max_bytes)}, "
            f"{format_size(below.bytes_saved)} saved; {below.objects} objects, shared {below.dedup_ratio:g}x"
        ),
        Text(f"damaged  {below.damaged} objects set aside" if below.damaged else ""),
    )


def _cells(row: Numbers, wide: bool) -> list[str]:
    from kcachefs.core.report import age

    cells = {
        "entries": str(row.entries),
        "files": str(row.files),
        "size": format_size(row.plain_bytes),
        "stored": format_size(row.stored_bytes),
        "ratio": f"{row.compression_ratio:.1f}x",
        "hits": str(row.hits),
        "misses": str(row.misses),
        "served": format_size(row.bytes_served),
        "evicted": str(row.evictions),
        "last use": age(row.last_used),
    }
    shown = [cells[title] for title in (_COLUMNS if wide else _NARROW_COLUMNS)]
    return [*shown, f"{_bar(row.hit_rate, 10 if wide else 5)} {row.hit_rate:4.0%}"]


def _bar(share: float, width: int = _BAR) -> str:
    full = round(min(1.0, max(0.0, share)) * width)
    return "█" * full + "░" * (width - full)
