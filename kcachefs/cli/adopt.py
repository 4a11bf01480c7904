"""`kcachefs adopt`: copies existing caches into a mount."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs import config
from kcachefs.cli import target
from kcachefs.cli.printing import INTERRUPTED, bar, brought_in, complain, print_json
from kcachefs.cli.usage import a_path, did_you_mean
from kcachefs.core.layouts import NAMESPACES
from kcachefs.errors import UsageError
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.frameworks.adoption import SourceEntry, Tally


def adopt(
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Existing caches, for example ~/.triton/cache.", parser=a_path),
    ],
    namespace: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="The namespace it belongs to.",
            show_default="recognized by location or content",
        ),
    ] = None,
    mount: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The mount to copy into.", show_default="the only one", parser=a_path),
    ] = None,
    as_json: target.Json = False,
) -> None:
    """Copy existing caches into a mount, entry by entry, keeping their times. The source is left as it is.

    You can interrupt this and run it again: entries that are in the mount already are not copied twice.
    """
    from kcachefs.frameworks import adoption
    from kcachefs.mounts.finding import find

    if namespace is not None and namespace not in NAMESPACES:
        hint = did_you_mean(namespace, NAMESPACES) or f"; choose one of {', '.join(NAMESPACES)}"
        raise UsageError(f"--as {namespace}: no such namespace{hint}")
    for directory in directories:
        if not directory.is_dir():
            raise UsageError(f"{directory}: is not a directory")
    where = find(mount)
    tally = adoption.Tally()
    found: list[adoption.SourceEntry] = []
    for directory in directories:
        if directory.resolve().is_relative_to(where):
            raise UsageError(f"{directory}: is already in the mount")
        caches = {directory: namespace} if namespace else adoption.caches_in(directory, os.environ)
        for cache, kind in caches.items():
            found += adoption.find(cache, kind, tally.skipped.append)
    try:
        _copy(found, where, tally)
    except KeyboardInterrupt:
        _report(tally, as_json, interrupted=True)
        sys.exit(INTERRUPTED)
    _report(tally, as_json, tally.gone())
    if tally.skipped:
        sys.exit(1)


def _copy(found: list[SourceEntry], where: Path, tally: Tally) -> None:
    from kcachefs.frameworks import adoption

    with bar("adopting", sum(one.bytes for one in found)) as advance:
        for number, one in enumerate(found, 1):
            advance(0, f"entry {number:,} of {len(found):,}")
            adoption.adopt(one, where, tally, advance)


def _report(tally: Tally, as_json: bool, gone: int = 0, *, interrupted: bool = False) -> None:
    if as_json:
        skipped = [printable(line) for line in tally.skipped]
        counts = {"adopted": tally.adopted, "present": tally.present, "bytes": tally.bytes, "evicted": gone}
        print_json({**counts, "skipped": skipped, "interrupted": interrupted})
        return
    size = config.format_size(tally.bytes)
    print(brought_in(tally.adopted, "adopted", size, tally.present, gone, interrupted=interrupted))
    if not interrupted:
        for line in tally.skipped:
            complain(f"kcachefs: {printable(line)}")
