"""`kcachefs umount`: ends a mount."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from kcachefs.cli import target
from kcachefs.cli.printing import print_json


def umount(
    directory: target.Directory = None,
    lazy: Annotated[
        bool, typer.Option("--lazy", help="Detach a mount that is in use at once; it ends when its last user is gone.")
    ] = False,
    as_json: target.Json = False,
) -> None:
    """Unmount DIR and return once everything is on disk.

    Exit code 3 if not everything could be written.
    """
    from kcachefs.mounts.ending import unmount
    from kcachefs.mounts.finding import to_unmount

    where = Path(os.path.realpath(directory or to_unmount()))
    unmount(where, lazy=lazy)
    if as_json:
        print_json({"mountpoint": str(where), "lazy": lazy})
