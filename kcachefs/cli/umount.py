"""`kcachefs umount`."""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs.errors import MountBusy, MountError

if TYPE_CHECKING:
    from kcachefs.engines.mounting import Mounted

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
        if daemon and not lazy and _elsewhere(found):
            raise MountBusy  # the kernel would take this one away, and the daemon go on
        mounting.unmount(mountpoint, lazy=lazy)
    except MountBusy:
        raise MountBusy(f"{mountpoint}: is in use by {_users(found)}; close that, or use --lazy") from None
    headers.unlink(mountpoint)
    if not lazy:
        for process in daemon:
            select.select([process], [], [])  # a pidfd is readable once the process has ended


def _users(found: Mounted) -> str:
    from kcachefs.engines import mounting

    users = [*_elsewhere(found), *mounting.users_of(Path(found.mountpoint))]
    more = f" and {len(users) - SHOWN} more" if len(users) > SHOWN else ""
    return "; ".join(users[:SHOWN]) + more or "something that cannot be seen from here"


def _elsewhere(found: Mounted) -> list[str]:
    """Other places where it, or a part of it, is bound; one below it keeps the kernel from unmounting anyway."""
    from kcachefs.engines import mounting

    inside = f"{found.mountpoint}/"
    return [
        f"a mount: {one.mountpoint}"
        for one in mounting.mounts()
        if one.device == found.device and not f"{one.mountpoint}/".startswith(inside)
    ]
