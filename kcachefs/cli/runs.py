"""`kcachefs runs`: lists the programs that used a cache, with how much each compiled and was spared."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from kcachefs.cli import target
from kcachefs.cli.printing import format_seconds, print_json
from kcachefs.config import format_age, format_size
from kcachefs.printable import printable


def runs(
    since: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only runs that used the cache within this time: 30d, 12h, 90m.")
    ] = None,
    mount: target.Mount = None,
    store: target.Store = None,
    as_json: target.Json = False,
) -> None:
    """List the programs that used a cache, how much each compiled, and how much compile time it was spared."""
    from kcachefs.cli.prune import parse_age
    from kcachefs.cli.tables import Table, show

    horizon = time.time() - parse_age(since) if since is not None else 0.0
    found = [run for run in target.insight(mount, store).runs(settle=True) if run.last_used >= horizon]
    if as_json:
        print_json(found, on_one_line=True)
        return
    if not found:
        print("no runs")
        return
    table = Table(("run", "command"), ("user", "began", "hits", "misses", "served", "compiled", "not repeated"))
    for run in found:
        table.add(
            str(run.run),
            printable(run.argv) or f"process {run.pid}",
            str(run.uid),
            format_age(run.started),
            str(run.hits),
            str(run.misses),
            format_size(run.bytes_served),
            _seconds(run.seconds_compiled, run.unknown_compiled, run.misses),
            _seconds(run.seconds_saved, run.unknown_saved, run.hits),
        )
    show(table)


def _seconds(known: float, unknown: int, of: int) -> str:
    """The seconds as text: with a plus sign if only partly known, a question mark if unknown."""
    if unknown and unknown >= of:
        return "?"
    return format_seconds(known) + ("+" if unknown else "")
