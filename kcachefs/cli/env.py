"""`kcachefs env`: prints the variables that point frameworks at a mount."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def env(
    mount: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The mount to point at.", show_default="the only one")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only these frameworks, for example triton,inductor. Repeatable."),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="sh, fish, dotenv, docker, json or k8s.")] = "sh",
) -> None:
    """Print the variables that point every framework at a mount, and create their folders.

    In a shell: eval "$(kcachefs env)"
    """
    from kcachefs.frameworks import environment, headers, make_folders
    from kcachefs.frameworks.formats import render
    from kcachefs.mounts.finding import find

    where = find(mount)
    text = render(environment(where, only or ()), format, where)
    make_folders(where, only or ())
    if not only:
        headers.link(where)
    sys.stdout.buffer.write(text)
