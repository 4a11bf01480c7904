"""`kcachefs ls`: lists entries."""

from __future__ import annotations

from typing import Annotated

import typer

from kcachefs.cli import target
from kcachefs.cli.printing import console
from kcachefs.config import format_size
from kcachefs.printable import printable


def ls(
    namespace: Annotated[str, typer.Argument(help="Only this namespace: triton, inductor, …", show_default=False)] = "",
    sort: Annotated[str, typer.Option(help="Order: used, size, hits or age.")] = "used",
    mount: target.Mount = None,
    store: target.Store = None,
    as_json: target.Json = False,
) -> None:
    """List entries under names that people recognize."""
    import msgspec
    from rich.table import Table
    from rich.text import Text

    from kcachefs.core.administration import EntryInfo
    from kcachefs.core.report import age

    infos = target.call(mount, store, "ls", list[EntryInfo], namespace=namespace, sort=sort)
    if as_json:
        print(msgspec.json.encode(infos).decode())
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("entry", "name"):
        table.add_column(title, overflow="fold")
    for title in ("files", "size", "stored", "hits", "used"):
        table.add_column(title, justify="right", no_wrap=True)
    for info in infos:
        table.add_row(
            Text(printable(info.path) + (" [pinned]" if info.pinned else "")),
            Text("" if info.name == info.path else printable(info.name)),
            str(info.files),
            format_size(info.plain_bytes),
            format_size(info.stored_bytes),
            str(info.hits),
            age(info.used),
        )
    console().print(table if infos else "no entries")
