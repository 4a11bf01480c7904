"""`kcachefs adopt`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs import config
from kcachefs.core.layouts import NAMESPACES
from kcachefs.errors import UsageError

if TYPE_CHECKING:
    from kcachefs.frameworks.adoption import Found, Tally

INTERRUPTED = 130


def adopt(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Caches, for example ~/.triton/cache.")],
    namespace: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Whose cache it is.", show_default="told by its place")
    ] = None,
    mount: Annotated[Path | None, typer.Option(metavar="DIR", help="The mount.", show_default="the only one")] = None,
) -> None:
    """Copy existing caches into a mount, entry by entry, times kept. The source is left as it is.

    Can be interrupted and run again: what is there already is not copied twice.
    """
    from kcachefs.frameworks import adoption, mounts

    if namespace is not None and namespace not in NAMESPACES:
        raise UsageError(f"--as {namespace}: there are {', '.join(NAMESPACES)}")
    where = mounts.find(mount)
    found: list[adoption.Found] = []
    for directory in directories:
        if not directory.is_dir():
            raise UsageError(f"{directory}: is no directory")
        if directory.resolve().is_relative_to(where):
            raise UsageError(f"{directory}: is in the mount already")
        found += adoption.find(directory, namespace or adoption.namespace_of(directory, os.environ))
    tally = adoption.Tally()
    try:
        _copy(found, where, tally)
    except KeyboardInterrupt:
        _say(tally, "interrupted; run it again to go on: ")
        sys.exit(INTERRUPTED)
    _say(tally, "")
    for path in tally.unreadable:
        print(f"kcachefs: {path}: cannot be read, and was left out", file=sys.stderr)
    if tally.unreadable:
        sys.exit(1)


def _copy(found: list[Found], where: Path, tally: Tally) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from kcachefs.frameworks import adoption

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("adopting", total=sum(one.bytes for one in found))
        for number, one in enumerate(found, 1):
            progress.update(task, description=f"entry {number:,} of {len(found):,}")
            adoption.adopt(one, where, tally, lambda count: progress.advance(task, count))


def _say(tally: Tally, before: str) -> None:
    size = config.format_size(tally.bytes)
    there = f", {tally.there:,} were there already" if tally.there else ""
    print(f"{before}{tally.adopted:,} entries adopted ({size}){there}")
