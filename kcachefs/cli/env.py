"""`kcachefs env`: prints the variables that point frameworks at a mount."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kcachefs.cli.usage import did_you_mean
from kcachefs.errors import UsageError


def env(
    mount: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The mount to point at.", show_default="the only one")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only these frameworks, for example triton,inductor. Repeatable."),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="sh, fish, dotenv, docker, json or k8s.")] = "sh",
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
) -> None:
    """Print the variables that point every framework at a mount, and create their folders.

    In a shell: eval "$(kcachefs env)"
    """
    from kcachefs.frameworks import environment, headers, make_folders
    from kcachefs.frameworks.environment import select
    from kcachefs.frameworks.formats import FORMATS, render
    from kcachefs.mounts.finding import find

    if as_json and format not in ("sh", "json"):
        raise UsageError(f"--json: means --format json, so --format {format} contradicts it; leave out one of the two")
    if format not in FORMATS:
        raise UsageError(f"--format {format}: unknown{did_you_mean(format, FORMATS)}; there are {', '.join(FORMATS)}")
    select(only or ())  # a wrong name is told before a missing mount
    where = find(mount)
    text = render(environment(where, only or ()), "json" if as_json else format, where)
    make_folders(where, only or ())
    if not only:
        headers.link(where)
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
