"""`kcachefs frameworks`: lists the frameworks that kcachefs knows."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from kcachefs.cli.printing import console


def frameworks(
    installed: Annotated[bool, typer.Option("--installed", help="Only frameworks that are installed here.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the frameworks that kcachefs knows and where each keeps its cache now."""
    from kcachefs.frameworks import FRAMEWORKS
    from kcachefs.frameworks.environment import installed_version, where_now

    rows = [(one, installed_version(one), where_now(one, os.environ)) for one in FRAMEWORKS]
    if installed:
        rows = [row for row in rows if row[1] is not None]
    if as_json:
        import dataclasses
        import json

        records = [
            {**dataclasses.asdict(one), "obeys": one.obeys, "installed": version, "now": now}
            for one, version, now in rows
        ]
        print(json.dumps({"frameworks": records}, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_edge=False)
    for heading in ("framework", "installed", "variable", "cache now"):
        table.add_column(heading, overflow="fold")
    for one, version, now in rows:
        table.add_row(one.name, version or "", "\n".join(one.variables) or "[yellow]none[/yellow]", Text(now))
    screen = console()
    screen.print(table)
    for one, version, _ in rows:
        if one.note and (version or not one.obeys):
            screen.print(f"{one.name}: {one.note}", style="yellow", markup=False)
