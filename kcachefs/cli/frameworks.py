"""`kcachefs frameworks`: lists the frameworks that kcachefs knows."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from kcachefs.printable import printable


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
    from kcachefs.cli.tables import Table, show

    table = Table(("framework", "installed", "variable", "cache now"), ())
    for one, version, now in rows:
        table.add(one.name, version or "", ", ".join(one.variables) or "none", printable(now))
    notes = [f"{one.name}: {one.note}" for one, version, _ in rows if one.note and (version or not one.obeys)]
    show(table, ["", *notes] if notes else [])
