"""`kcachefs env`: prints the variables that point frameworks at a mount."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kcachefs.cli.usage import a_path, did_you_mean
from kcachefs.errors import UsageError

_FOR_OTHER_HOSTS = ("docker", "k8s")
"""Formats for containers, whose Python cannot be inspected from here."""


def env(
    mount: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The mount to point at.", show_default="the only one", parser=a_path),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only these frameworks, for example triton,inductor. Repeatable."),
    ] = None,
    bytecode: Annotated[
        str | None,
        typer.Option(help="Python's bytecode in the mount: auto (where it helps), on or off.", show_default="auto"),
    ] = None,
    python: Annotated[
        str, typer.Option(metavar="PY", help="The Python that the bytecode is for.", show_default="the first on PATH")
    ] = "",
    format: Annotated[str, typer.Option("--format", help="sh, fish, dotenv, docker, json or k8s.")] = "sh",
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
) -> None:
    """Print the variables that point every framework at a mount, and create their folders.

    In a shell: eval "$(kcachefs env)"
    """
    from kcachefs.frameworks import bytecode as pycs
    from kcachefs.frameworks import environment, headers, make_folders
    from kcachefs.frameworks.environment import select
    from kcachefs.frameworks.formats import FORMATS, render
    from kcachefs.frameworks.interpreters import named
    from kcachefs.mounts.finding import find
    from kcachefs.session.bytecode import wish

    if as_json and format not in ("sh", "json"):
        raise UsageError(f"--json: means --format json, so --format {format} contradicts it; leave out one of the two")
    if format not in FORMATS:
        raise UsageError(f"--format {format}: unknown{did_you_mean(format, FORMATS)}; there are {', '.join(FORMATS)}")
    select(only or ())  # report a wrong name before a missing mount
    command = named(python, os.environ)
    where = find(mount)
    wanted = wish(where, bytecode, only or ())
    if wanted == "auto" and format in _FOR_OTHER_HOSTS:
        wanted = "off"
    values = {
        **environment(where, only or (), of_this_python=format not in _FOR_OTHER_HOSTS),
        **pycs.variables(where, pycs.judge_command(command, os.environ, wanted)),
    }
    text = render(values, "json" if as_json else format, where)
    make_folders(where, only or ())
    if not only:
        headers.link(where)
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
