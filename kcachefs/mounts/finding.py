"""Finds the mount that a command or a program refers to."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
from pathlib import Path

from kcachefs import config
from kcachefs.daemon import registry
from kcachefs.daemon.registry import MountState
from kcachefs.engines import mounting
from kcachefs.engines.mounting import Mounted
from kcachefs.errors import MountDenied, MountError, UsageError


def find(directory: Path | None) -> Path:
    """The mount at `directory`, else the one that $KCACHEFS_MOUNT names, else the only one that this user has."""
    wanted = directory or config.configured_mount()
    if wanted is not None:
        found = mount_at(wanted)
        if found is None:
            raise nothing_at(wanted, configured=directory is None)
        return found
    return the_only_one()


def nothing_at(wanted: Path, *, configured: bool) -> MountError:
    """The error for a place with no kcachefs mounted; `configured`: $KCACHEFS_MOUNT names it, and may be stale."""
    again = f"kcachefs mount {shlex.quote(str(wanted))}"
    if is_mounted(wanted):
        named = " (named by KCACHEFS_MOUNT)" if configured else ""
        return MountError(f"{wanted}{named}: something else is mounted there; see: findmnt {shlex.quote(str(wanted))}")
    if configured:
        return MountError(
            f"{wanted} (named by KCACHEFS_MOUNT): no kcachefs is mounted there; mount it with: {again}, "
            "or forget it with: unset KCACHEFS_MOUNT"
        )
    return MountError(f"{wanted}: no kcachefs is mounted there; mount one with: {again}")


def usable_here() -> list[MountState]:
    """The mounts of this user that answer here.

    A mount that is still served may be in another mount namespace, such as a container's, or be unmounted and kept only
    for its last user. Programs would then fill the bare directory.
    """
    return [state for state in registry.all_mounts() if answers(Path(state.mountpoint))]


def the_only_one() -> Path:
    """The one mount that this user has."""
    mounts = [state.mountpoint for state in usable_here()]
    if not mounts:
        hidden = [state.mountpoint for state in registry.all_mounts()]
        elsewhere = f" here ({', '.join(hidden)}: in another mount namespace, or hidden)" if hidden else ""
        raise MountError(f"nothing is mounted{elsewhere}; {_mount_of_the_system()}make a mount with: kcachefs mount")
    if len(mounts) > 1:
        raise MountError(f"there are {len(mounts)} mounts ({', '.join(mounts)}); choose one with --mount DIR")
    return Path(mounts[0])


def to_unmount() -> Path:
    """The mount for `umount` without a directory: $KCACHEFS_MOUNT, else this user's only mount, dead or alive."""
    configured = config.configured_mount()
    mounts = [state.mountpoint for state in (*registry.all_mounts(), *registry.dead_mounts())]
    if configured is not None:
        if os.path.realpath(configured) not in mounts and not is_mounted(configured):
            raise nothing_at(configured, configured=True)
        return configured
    if not mounts:
        raise MountError("nothing of yours is mounted; see: kcachefs status")
    if len(mounts) > 1:
        commands = " or ".join(f"kcachefs umount {shlex.quote(one)}" for one in mounts)
        raise MountError(f"there are {len(mounts)} mounts; choose one: {commands}")
    return Path(mounts[0])


def _mount_of_the_system() -> str:
    """A hint about the mount that root made; using it is the user's decision, because others may write to it."""
    found = mounting.mounted_at(config.SYSTEM_MOUNT)
    if found is None or found.fstype != mounting.FSTYPE:
        return ""
    return f"use the system's with --mount {config.SYSTEM_MOUNT}, or "


def not_ours(mountpoint: Path, what: str) -> MountDenied:
    """The error for a mount that is not in this user's list of mounts."""
    found = mounting.mounted_at(mountpoint)
    if found is not None and found.owner == os.getuid():
        return MountDenied(
            f"{mountpoint}: is your mount, but its daemon has no record in {config.runtime_directory()}; "
            "run this where it was mounted, with the same KCACHEFS_RUNTIME_DIR"
        )
    return MountDenied(f"{mountpoint}: is somebody else's mount; only its owner may {what} there")


def unlisted() -> list[Mounted]:
    """Mounts that this user's commands would use but that are not in their list, such as one bound into a container."""
    places = {config.configured_mount()}
    with contextlib.suppress(UsageError):  # a user without a home
        places.add(config.default_mount())
    known = {state.mountpoint for state in (*registry.all_mounts(), *registry.dead_mounts())}
    found = (mounting.mounted_at(Path(os.path.realpath(place))) for place in places if place is not None)
    return [one for one in found if one and one.fstype == mounting.FSTYPE and one.mountpoint not in known]


def is_mounted(directory: Path) -> bool:
    """Whether anything is mounted there, no matter whose it is and whether it answers."""
    return any(mounting.mounted_at(Path(form(directory))) for form in (os.path.abspath, os.path.realpath))


def mount_at(directory: Path) -> Path | None:
    """The mountpoint of the kcachefs at this directory, or None; raises MountError if the mount does not answer."""
    path = Path(os.path.abspath(directory))
    for candidate in (path, Path(os.path.realpath(path))):
        found = mounting.mounted_at(candidate)
        if found is not None and found.fstype == mounting.FSTYPE:
            try:
                os.statvfs(candidate)
            except OSError as error:
                raise MountError(f"{candidate}: the mount does not answer ({error.strerror}); mount it again") from None
            return candidate
    return None


DEAD = (errno.ENOTCONN, errno.ECONNABORTED)
"""The errors with which the kernel answers for a mount whose daemon is gone."""


def answers(directory: Path) -> bool:
    """Whether a kcachefs is mounted there and answers."""
    try:
        return mount_at(directory) is not None
    except MountError:
        return False
