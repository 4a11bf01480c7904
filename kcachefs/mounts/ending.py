"""Ends a mount: unmounts it and waits until its daemon has written everything to disk."""

from __future__ import annotations

import os
import shlex
import signal
import time
from pathlib import Path

from kcachefs.daemon import registry, serving
from kcachefs.daemon.registry import MountState
from kcachefs.engines import mounting
from kcachefs.engines.mounting import Mounted
from kcachefs.errors import MountBusy, MountError, StoreError
from kcachefs.frameworks import headers

SHOWN = 5
"""How many users of a busy mount an error names; the others are only counted."""
PASSING_SECONDS = 0.5
"""How long we wait for a busy mount: `df`, a monitoring agent or another user's doctor only look, and soon leave."""
UNSEEN_SECONDS = 3.0
"""How long we wait for a busy mount while no process can be seen to use it."""
PASSING_PAUSE = 0.003


def unmount(directory: Path, *, lazy: bool = False, patient: bool = True) -> None:
    """Unmount and return once everything is on disk.

    Copies of the mount in other mount namespaces (a container's, a service's) are cut off: they get ENOTCONN.
    If we cannot see the daemon, as in a container with a PID namespace of its own, only our own copy goes.
    A lazy unmount hides the mount and returns at once; the daemon stops when the last user is gone. If not `patient`,
    the unmount fails even if a process only looks at the mount. Changes the working directory to /, because a process
    inside the mount would keep it busy.
    """
    mountpoint = Path(os.path.realpath(directory))
    os.chdir("/")
    found = mounting.mounted_at(mountpoint)
    if found is None or found.fstype != mounting.FSTYPE:
        raise MountError(f"{mountpoint}: {_why_not_here(mountpoint)}")
    state = registry.read(str(mountpoint))
    with registry.daemon_of(str(mountpoint)) as daemon:
        if daemon and not lazy and (places := _bound_elsewhere(found)):
            # The kernel would take this mount away, and the daemon would keep serving the bound copies.
            raise _busy(mountpoint, places)
        _take_away(found, lazy=lazy, patient=patient)
        headers.unlink(mountpoint)
        if not lazy:
            # The kernel tells the daemon that the mount is gone, but not while another namespace has a copy of it.
            for process in daemon:
                serving.send(process, signal.SIGTERM)
            for process in daemon:
                serving.ended(process)
    if daemon and not lazy and state is not None:
        _raise_failure(state)


def _raise_failure(before: MountState) -> None:
    """Raise the reason why the daemon could not write everything, if it left one: nothing else reports it."""
    left = registry.read(before.mountpoint)
    if left is not None and left.failure and left.started == before.started:
        registry.remove(before.mountpoint)
        raise StoreError(
            f"{before.mountpoint}: is unmounted, but not everything is on disk: {left.failure}"
            + (f"; see {left.log}" if left.log else "")
        )


def _why_not_here(mountpoint: Path) -> str:
    state = registry.read(str(mountpoint))
    if state is None or not state.alive:
        return "is not a kcachefs mount; see: kcachefs status"
    pid = next(filter(None, state.processes()), None)
    if pid is None:
        return "is not mounted here, and is served in another PID namespace, such as a container's; unmount it there"
    return (
        f"is not mounted here, but process {pid} serves it: in another mount namespace (run there: "
        f"nsenter -t {pid} -m kcachefs umount {shlex.quote(str(mountpoint))}), or until its last user is gone"
    )


def _take_away(found: Mounted, *, lazy: bool, patient: bool) -> None:
    mountpoint, begun = Path(found.mountpoint), time.monotonic()
    deadline = begun + PASSING_SECONDS
    while True:
        try:
            return mounting.unmount(mountpoint, lazy=lazy)
        except MountBusy:
            if not patient:
                raise
        except MountError:
            if mounting.mounted_at(mountpoint) != found:
                return None  # somebody else has just unmounted it, and the caller still has to wait for the daemon
            raise
        now = time.monotonic()
        if now > deadline:
            users = [*_bound_elsewhere(found), *mounting.users_of(mountpoint)]
            if users or now > begun + UNSEEN_SECONDS:
                raise _busy(mountpoint, users)
            deadline = now + PASSING_SECONDS  # a process that walks the tree is invisible while it changes folders
        time.sleep(PASSING_PAUSE)


def _busy(mountpoint: Path, users: list[str]) -> MountBusy:
    more = f" and {len(users) - SHOWN} more" if len(users) > SHOWN else ""
    named = "; ".join(users[:SHOWN]) + more or "something that cannot be seen from here"
    return MountBusy(f"{mountpoint}: is in use by {named}; close that, or use --lazy")


def _bound_elsewhere(found: Mounted) -> list[str]:
    """Other places where the mount, or a part of it, is bound. The kernel itself refuses if one is below the mount."""
    inside = f"{found.mountpoint}/"
    return [
        f"a mount: {one.mountpoint}"
        for one in mounting.mounts()
        if one.device == found.device and not f"{one.mountpoint}/".startswith(inside)
    ]
