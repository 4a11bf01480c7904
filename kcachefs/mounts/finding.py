"""Finds the mount that a command or a program means."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kcachefs import config
from kcachefs.daemon import registry
from kcachefs.engines import mounting
from kcachefs.errors import MountError


def find(directory: Path | None) -> Path:
    """The mount at `directory`, else the one that $KCACHEFS_MOUNT names, else the only one there is."""
    wanted = directory or config.configured_mount()
    if wanted is not None:
        found = mount_at(wanted)
        if found is None:
            raise MountError(f"{wanted}: no kcachefs is mounted there; mount one with: kcachefs mount {wanted}")
        return found
    return the_only_one()


def the_only_one() -> Path:
    """The one mount that this user has."""
    mounts = [Path(state.mountpoint) for state in registry.all_mounts()]
    if not mounts:
        raise MountError("nothing is mounted; make a mount with: kcachefs mount")
    if len(mounts) > 1:
        raise MountError(f"there are {len(mounts)} mounts ({', '.join(map(str, mounts))}); choose one with --mount DIR")
    return mounts[0]


def mount_at(directory: Path) -> Path | None:
    """The mountpoint of the kcachefs at this directory, or None; raises MountError if it does not answer."""
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
"""What the kernel answers for a mount whose daemon is gone."""


def answers(directory: Path) -> bool:
    """Whether a kcachefs is mounted there and answers."""
    try:
        return mount_at(directory) is not None
    except MountError:
        return False
