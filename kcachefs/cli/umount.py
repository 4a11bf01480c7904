"""`kcachefs umount`."""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Annotated

import typer

from kcachefs.errors import MountBusy, MountError

SHOWN = 5
"""Users of a busy mount that are named; the others are counted."""


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

    mountpoint = Path(os.path.realpath(directory))
    os.chdir("/")  # or we would be the ones who use it
    found = mounting.mounted_at(mountpoint)
    if found is None or found.fstype != mounting.FSTYPE:
        raise MountError(f"{mountpoint}: is no kcachefs mount; see: kcachefs status")
    state = registry.read(str(mountpoint))
    processes = [state.supervisor_pid, state.worker_pid] if state is not None else []
    daemon = [os.pidfd_open(pid) for pid in processes if registry.is_alive(pid)]
    try:
        mounting.unmount(mountpoint, lazy=lazy)
    except MountBusy:
        raise MountBusy(f"{mountpoint}: is in use by {_users(mountpoint)}; close that, or use --lazy") from None
    headers.unlink(mountpoint)
    if not lazy:
        for process in daemon:
            select.select([process], [], [])  # a pidfd is readable once the process has ended


def _users(mountpoint: Path) -> str:
    from kcachefs.engines import mounting

    users = mounting.users_of(mountpoint)
    more = f" and {len(users) - SHOWN} more" if len(users) > SHOWN else ""
    return "; ".join(users[:SHOWN]) + more or "something that cannot be seen from here"
