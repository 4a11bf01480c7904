"""`kcachefs umount`: ends a mount."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def umount(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A kcachefs mount; needed if there are several.")
    ] = None,
    lazy: Annotated[
        bool, typer.Option("--lazy", help="Hide a mount that is in use now, and end it when its last user is gone.")
    ] = False,
) -> None:
    """Unmount DIR and return once everything is on disk."""
    from kcachefs.mounts.ending import unmount
    from kcachefs.mounts.finding import the_only_one

    unmount(directory or the_only_one(), lazy=lazy)
