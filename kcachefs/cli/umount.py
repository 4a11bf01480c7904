"""`kcachefs umount`: ends a mount."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from kcachefs.cli import target
from kcachefs.cli.printing import print_json
from kcachefs.cli.usage import a_path


def umount(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="A kcachefs mount; needed if there are several.",
            parser=a_path,
        ),
    ] = None,
    lazy: Annotated[
        bool, typer.Option("--lazy", help="Hide a mount that is in use now, and end it when its last user is gone.")
    ] = False,
    as_json: target.Json = False,
) -> None:
    """Unmount DIR and return once everything is on disk."""
    from kcachefs.mounts.ending import unmount
    from kcachefs.mounts.finding import to_unmount

    where = directory or to_unmount()
    unmount(where, lazy=lazy)
    if as_json:
        print_json({"mountpoint": os.path.realpath(where), "lazy": lazy})
