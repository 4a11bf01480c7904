"""`kcachefs stats`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs.cli import target
from kcachefs.config import format_size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kcachefs.core.report import Numbers, Statistics

_BAR = 30


def stats(
    mount: target.Mount = None,
    store: target.Store = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing them, until ^C.")] = False,
    as_json: target.Json = False,
) -> None:
    """Show what a cache holds and what it has been good for."""
    from rich.console import Console
    from rich.live import Live

    from kcachefs.core import report

    numbers = _ask(mount, store)
    if as_json:
        print(report.as_json(numbers).decode(), end="")
        return
    if not watch:
        Console().print(_drawn(numbers))
        return
    with Live(_drawn(numbers), screen=False, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(1.0)
                live.update(_drawn(_ask(mount, store)), refresh=True)
        except KeyboardInterrupt:
            pass


def _ask(mount: Path | None, store: Path | None) -> Statistics:
    from kcachefs.core.report import Statistics

    return target.call(mount, store, "stats", Statistics)


def _drawn(numbers: Statistics) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("namespace")
    for title in ("entries", "files", "size", "stored", "ratio", "hits", "misses", "evicted", "last use"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("hit rate", no_wrap=True)
    for name, row in sorted(numbers.namespaces.items(), key=lambda item: -item[1].stored_bytes):
        _add_row(table, name, row)
    table.add_section()
    _add_row(table, "total", numbers.total)
    beneath = numbers.store
    share = beneath.used_bytes / beneath.max_bytes if beneath.max_bytes else 0.0
    return Group(
        table,
        Text(""),
        Text(
            f"on disk  {_bar(share)} {format_size(beneath.used_bytes)} of {format_size(beneath.max_bytes)}, "
            f"{format_size(beneath.bytes_saved)} saved; {beneath.objects} objects, shared {beneath.dedup_ratio:g}x"
        ),
        Text(f"damaged  {beneath.damaged} objects set aside" if beneath.damaged else ""),
    )


def _add_row(table: object, name: str, row: Numbers) -> None:
    from rich.table import Table

    from kcachefs.core.report import age

    assert isinstance(table, Table)
    table.add_row(
        name,
        str(row.entries),
        str(row.files),
        format_size(row.plain_bytes),
        format_size(row.stored_bytes),
        f"{row.compression_ratio:.1f}x",
        str(row.hits),
        str(row.misses),
        str(row.evictions),
        age(row.last_used),
        f"{_bar(row.hit_rate, 10)} {row.hit_rate:4.0%}",
    )


def _bar(share: float, width: int = _BAR) -> str:
    full = round(min(1.0, max(0.0, share)) * width)
    return "█" * full + "░" * (width - full)
