"""`kcachefs umount`."""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Annotated

import typer

from kcachefs.errors import MountBusy, MountError


def umount(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A kcachefs mount.")],
    lazy: Annotated[
        bool, typer.Option("--lazy", help="Hide it now, though it is in use; it ends when it is let go.")
    ] = False,
) -> None:
    """Unmount DIR; returns when everything is on disk."""
    from kcachefs.daemon import registry
    from kcachefs.engines import mounting
    from kcachefs.frameworks import headers

    mountpoint = Path(os.path.abspath(directory))
    if mounting.mounted_at(mountpoint) is None:
        mountpoint = mountpoint.resolve()
    found = mounting.mounted_at(mountpoint)
    if found is None or found.fstype != mounting.FSTYPE:
        raise MountError(f"{mountpoint}: is no kcachefs mount; see: kcachefs status")
    state = registry.read(str(mountpoint))
    try:
        mounting.unmount(mountpoint, lazy=lazy)
    except MountBusy:
        users = mounting.users_of(mountpoint)
        who = "; ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
        raise MountBusy(
            f"{mountpoint}: is in use by {who or 'something that cannot be seen from here'}; close it, or use --lazy"
        ) from None
    headers.unlink(mountpoint)
    if state is not None and not lazy:
        wait_for_exit(state.supervisor_pid)


def wait_for_exit(pid: int) -> None:
    """Return when the process is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([handle], [], [])
    finally:
        os.close(handle)
