"""Tells the supervisor's own mount from a later one at the same place.

After `kcachefs umount` another supervisor may mount there while this one is still ending. The kernel reuses the numbers
that /proc shows for a mount and its device at once, so the later mount usually has the same ones. From Linux 6.8 on, a
mount also has a number that no other mount ever gets. On older kernels, only the record of the later mount can tell.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from kcachefs import libc
from kcachefs.engines import mounting
from kcachefs.errors import MountBusy

_FIRST_UNIQUE = 1 << 31
"""Unique numbers of mounts start here; numbers that are reused are lower."""


class OwnMount:
    """The mount at the mountpoint, as long as it is ours."""

    def __init__(self, mountpoint: Path, is_replaced: Callable[[], bool]) -> None:
        """`is_replaced`: whether a later supervisor has the record of the mountpoint."""
        self._mountpoint = mountpoint
        self._is_replaced = is_replaced
        self._identity: tuple[str, int] | None = None

    def note(self) -> None:
        """Remember the mount at the mountpoint, which was made just now."""
        self._identity = self._look() or ("gone already", 0)

    @property
    def is_there(self) -> bool:
        found = self._look()
        if found is None or (self._identity is not None and found != self._identity):
            return False
        return found[1] >= _FIRST_UNIQUE or not self._is_replaced()

    def take_away(self, *, lazy: bool = False) -> None:
        """Unmount it; if it is busy, or `lazy`, hide it until its last user is gone."""
        if self.is_there:
            try:
                mounting.unmount(self._mountpoint, lazy=lazy)
            except MountBusy:
                self.take_away(lazy=True)

    def _look(self) -> tuple[str, int] | None:
        try:
            number = libc.mount_id(os.fsencode(self._mountpoint))
        except OSError:  # somebody else's mount, or no folder any more
            return None
        found = mounting.mounted_at(self._mountpoint)
        return (found.device, number) if found is not None else None
