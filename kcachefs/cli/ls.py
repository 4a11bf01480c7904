"""`kcachefs ls`: lists entries."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kcachefs.cli import target
from kcachefs.config import format_age, format_size
from kcachefs.printable import printable


def ls(
    wanted: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Only these: a namespace (triton), an entry, or a part of its name (softmax); * matches anything.",
            show_default=False,
        ),
    ] = None,
    sort: Annotated[str, typer.Option(help="Order: used, size, hits or age.")] = "used",
    limit: Annotated[
        int | None, typer.Option("-n", "--limit", metavar="N", min=1, help="Only the first N.", show_default="all")
    ] = None,
    mount: target.Mount = None,
    store: target.Store = None,
    as_json: target.Json = False,
) -> None:
    """List entries under names that people recognize."""
    from kcachefs.cli.printing import print_json
    from kcachefs.cli.tables import Table, show
    from kcachefs.core.entry_info import EntryInfo

    # An older daemon does not know the limit.
    bounds: dict[str, Any] = {} if limit is None else {"limit": limit}
    infos = target.call(mount, store, "ls", list[EntryInfo], patterns=wanted or [], sort=sort, **bounds)
    if as_json:
        print_json(infos, on_one_line=True)
        return
    if not infos:
        print("no entries")
        return
    table = Table(("entry", "name"), ("files", "size", "stored", "hits", "used"))
    for info in infos:
        table.add(
            printable(info.path) + (" [pinned]" if info.pinned else ""),
            "" if info.path.endswith(info.name) else printable(info.name),
            str(info.files),
            format_size(info.plain_bytes),
            format_size(info.stored_bytes),
            str(info.hits),
            format_age(info.used),
        )
    show(table)
