"""`kcachefs kernels`: lists compiled kernels with the GPU resources that they use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs.cli import target
from kcachefs.cli.explained import Folder, open_cache
from kcachefs.errors import UsageError

if TYPE_CHECKING:
    from kcachefs.insight.listing import KernelRow

SORTS: dict[str, Callable[[KernelRow], float]] = {
    "registers": lambda row: -(row.registers or 0),
    "shared": lambda row: -(row.shared or 0),
    "size": lambda row: -row.bytes,
    "hits": lambda row: -row.hits,
    "cost": lambda row: -(row.seconds or 0.0),
    "used": lambda row: -row.used,
}


def kernels(
    wanted: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only kernels whose name contains this.", show_default=False),
    ] = None,
    sort: Annotated[str, typer.Option(help=f"Order: {', '.join(SORTS)}.")] = "used",
    arch: Annotated[str | None, typer.Option(metavar="ARCH", help="Only for this GPU: sm_90, or 90.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only kernels of graphs whose model's path contains this.")
    ] = None,
    mount: target.Mount = None,
    store: target.Store = None,
    folder: Folder = None,
    as_json: target.Json = False,
) -> None:
    """List compiled kernels, the GPU resources that they use, and the source that they come from."""
    from kcachefs.cli.printing import print_json
    from kcachefs.insight.explaining import Explainer
    from kcachefs.insight.index import Index
    from kcachefs.insight.listing import list_kernels

    if sort not in SORTS:
        raise UsageError(f"--sort {sort}: unknown; choose one of {', '.join(SORTS)}")
    cache = open_cache(mount, store, folder)
    rows = list_kernels(Explainer(cache, Index(cache.place)))
    if wanted:
        rows = [row for row in rows if any(one in row.name for one in wanted)]
    if arch is not None:
        rows = [row for row in rows if row.arch.removeprefix("sm_") == arch.removeprefix("sm_")]
    if model is not None:
        rows = [row for row in rows if model in row.model]
    rows.sort(key=SORTS[sort])
    if as_json:
        print_json(rows)
        return
    _show(rows)


def _show(rows: list[KernelRow]) -> None:
    from kcachefs.cli.tables import Table, show
    from kcachefs.config import format_age, format_size
    from kcachefs.printable import printable

    if not rows:
        print("no kernels")
        return
    numbers = ("arch", "warps", "regs", "stack", "shared", "size", "hits", "cost", "used")
    table = Table(("kernel", "told apart by", "source"), numbers)
    for row in rows:
        table.add(
            printable(row.name),
            printable(row.differs),
            printable(row.source),
            row.arch,
            _shown(row.warps),
            _shown(row.registers),
            _shown(row.stack),
            _shown(row.shared),
            format_size(row.bytes),
            str(row.hits),
            "" if row.seconds is None else f"{row.seconds:.1f} s",
            format_age(row.used),
        )
    show(table)


def _shown(number: int | None) -> str:
    return "" if number is None else str(number)
