"""Probing: makes the kernel drop the inodes that nobody uses. Those that it still knows then are in use.

In use means open, mapped, or a working directory. The kernel remembers names for as long as it likes, and with each
name an inode. When we notify it that a folder's name is gone, it drops that name and all names below it that nobody
uses. A file in use stays, under its own name, in a folder that no path leads to any more. There the name would outlive
its use and keep the inode, and nobody could make the kernel drop the folder again. So after half of the time we send a
notification for each file that the kernel still knows: its name then goes with its last use. A folder's own name gets
such a notification only in a later probe, and only once no file below is in use: otherwise a process that works there
would find that its working directory has no path.

For the same reason the kernel must not remember a miss in such a folder (`Nodes.is_cut_off`): the miss would keep the
folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kcachefs.core.nodes import Nodes
from kcachefs.core.walk import Member, Name
from kcachefs.errors import FsError

PROBE_SECONDS = 0.5
"""How long the kernel is given to drop what nobody uses."""


class Probed(NamedTuple):
    """An entry, or something else that goes as a whole."""

    keys: set[int]
    """Its numbers in `Nodes.cut_off`: the number of the entry, or every inode of something that is no entry."""
    names: list[Name]
    """The names that lead to it."""
    inodes: set[int]
    """Those of its inodes that the kernel knows."""
    members: Callable[[], Iterable[Member]]
    """Finds everything in it."""


class Prober:
    """Asks the kernel of one filesystem what is in use. No lock may be held."""

    def __init__(self, nodes: Nodes, name_gone: Callable[[int, bytes], None]) -> None:
        self._nodes = nodes
        self._name_gone = name_gone

    def probe(self, things: list[Probed], is_known: Callable[[int], bool]) -> bool:
        """Whether the kernel still knows any of it after it had time to forget it."""
        since, has_told_each, cut_off = time.monotonic(), False, self._nodes.cut_off
        again = [not thing.keys.isdisjoint(cut_off) for thing in things]
        for thing in things:
            cut_off |= thing.keys
            for parent, name in thing.names:
                self._name_gone(parent, name)
        while any(still := [any(map(is_known, thing.inodes)) for thing in things]):
            if time.monotonic() - since >= PROBE_SECONDS / 2:  # the first check of many inodes may take longer
                if has_told_each:
                    return True
                for thing, is_left, was_cut_off in zip(things, still, again, strict=True):
                    if is_left:
                        self._tell_each(thing, is_known, was_cut_off)
                since, has_told_each = time.monotonic(), True
            time.sleep(0.002)
        return False

    def _tell_each(self, thing: Probed, is_known: Callable[[int], bool], was_cut_off: bool) -> None:
        known = [member for member in thing.members() if member[0] in thing.inodes and is_known(member[0])]
        files = [member for member in known if not self._is_folder(member[0])]
        for _, parent, name in files or (known if was_cut_off else ()):
            self._name_gone(parent, name)

    def _is_folder(self, ino: int) -> bool:
        try:
            return self._nodes.get(ino).is_dir
        except FsError:  # it is gone
            return False
