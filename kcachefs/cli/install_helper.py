"""`kcachefs install-helper`: puts `mount.kcachefs` where mount(8) looks for it."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Annotated

import typer

from kcachefs.cli import target
from kcachefs.cli.printing import print_json
from kcachefs.cli.usage import a_path
from kcachefs.errors import MountDenied, MountError

NAME = "mount.kcachefs"


def install_helper(
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="Where mount(8) looks for helpers.", parser=a_path)
    ] = Path("/sbin"),
    remove: Annotated[bool, typer.Option("--remove", help="Take the link away again.")] = False,
    as_json: target.Json = False,
) -> None:
    """Link mount.kcachefs into /sbin, so that fstab and `mount -t kcachefs` work. Needs root."""
    helper, link = _helper(), folder / NAME
    try:
        if link.is_symlink():
            if link.readlink().name != NAME:
                raise MountError(f"{link}: leads to {link.readlink()}, which is not ours; remove it first")
            link.unlink()  # our own link, or one of an installation that is gone
        if not remove:
            link.symlink_to(helper)
    except FileExistsError:
        raise MountError(f"{link}: is there already and is not a link; remove it first") from None
    except FileNotFoundError:
        raise MountError(f"{folder}: is not a directory; choose another one with --folder") from None
    except PermissionError:
        raise MountDenied(f"{link}: no permission to change it; as root: ln -sf {helper} {link}") from None
    if as_json:
        print_json({"link": str(link), "helper": str(helper), "removed": remove})
    else:
        print(f"removed {link}" if remove else f"{link} leads to {helper}")


def _helper() -> Path:
    """The helper that was installed with this command, beside the interpreter or where the command itself is."""
    for place in (Path(sys.argv[0]).absolute().parent, Path(sysconfig.get_path("scripts"))):
        if os.access(place / NAME, os.X_OK):
            return place / NAME
    raise MountError(f"{NAME}: is not installed in {sysconfig.get_path('scripts')}; install kcachefs with pip")
