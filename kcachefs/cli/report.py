"""`kcachefs report`: writes what the page of `kcachefs web` shows into one file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs.cli import target
from kcachefs.cli.usage import a_path
from kcachefs.errors import UsageError

if TYPE_CHECKING:
    from kcachefs.live.watching import Watch


_STANDARD_OUTPUT = Path("/dev/stdout")


def report(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The file to write; - prints it.", parser=a_path)
    ] = Path("report.html"),
    since: Annotated[str, typer.Option("--since", metavar="AGE", help="How far back to look: 7d, 12h, 90m.")] = "7d",
    mount: target.Mount = None,
    store: target.Store = None,
    as_json: target.Json = False,
) -> None:
    """Write what `kcachefs web` shows as one HTML file, to send to a colleague or to keep.

    The file loads nothing from elsewhere. It holds names, command lines and sources of kernels that you may see.
    """
    from kcachefs.cli.explained import moment
    from kcachefs.cli.printing import format_seconds, print_json
    from kcachefs.config import format_size

    began, is_printed = moment(since), output in (Path("-"), _STANDARD_OUTPUT)
    if is_printed and as_json:
        raise UsageError("--json: would be mixed with the page; write that to a file, or leave out --json")
    output = _STANDARD_OUTPUT if is_printed else output
    size = write(output, _watch(mount, store, began), began, f"in the last {format_seconds(time.time() - began)}")
    if as_json:
        print_json({"path": str(output.absolute()), "bytes": size})
    elif not is_printed:
        print(f"{output}: {format_size(size)}")


def write(output: Path, watch: Watch, since: float, words: str, *, title: str = "", run: int | None = None) -> int:
    """Write a report, whole or not at all; returns its size."""
    from kcachefs.live.web.report import make_report
    from kcachefs.whole_file import whole_file

    with whole_file(output) as file:
        data = make_report(watch, since, words, title=title, run=run)
        file.write(data)
    return len(data)


def write_for_run(output: Path, mount: Path, began: float, command: str) -> int:
    """Write a report on a command that began then."""
    from kcachefs.mounts.insight_reports import InsightReports

    runs = [one for one in InsightReports.of(mount).runs(settle=True) if one.started >= began - 1.0]
    run = max((one.run for one in runs if one.misses), default=None)
    title = f"Run: {command}"
    return write(output, _watch(mount, None, began), began, "during the run", title=title, run=run)


def _watch(mount: Path | None, store: Path | None, since: float) -> Watch:
    """The chosen mount or store, even another user's mount or a store at rest."""
    from kcachefs.cli.explained import place_of
    from kcachefs.core.report import Statistics
    from kcachefs.daemon import registry
    from kcachefs.live.watching import Watch

    place = place_of(mount, store)
    mounted = registry.read(place) is not None
    others = not mounted and mount is not None and os.path.ismount(mount)
    return Watch(
        place,
        target.insight(mount, store),
        lambda: target.call(mount, store, "stats", Statistics, stays_open=True, settle=True),
        own=not others,
        at_rest=not mounted and not others,
        since=since,
    )
