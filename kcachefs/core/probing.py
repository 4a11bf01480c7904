"""Probing: makes the kernel let go of what nobody uses, so that what it still knows then is open, mapped or worked in.

The kernel remembers names for as long as it likes, and with each name an inode. Told that the name of a folder is gone,
it drops that name and all below it that nobody uses. What is in use stays, with its own name, in a folder that no path
leads to any more. There the name would outlive its use, and with it the inode, and nobody could tell the kernel to drop
the folder again. So after half of the time each name is told by itself of what is still known: it goes with the last
use.

For the same reason the kernel must not remember a miss in such a folder (`Nodes.is_cut_off`): it would keep the folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kcachefs.core.nodes import Nodes
from kcachefs.core.walk import Member, Name

PROBE_SECONDS = 0.5
"""How long the kernel is given to let go of what nobody uses."""


class Probed(NamedTuple):
    """An entry, or something else that goes as a whole."""

    entry: int
    """Its number, 0 if it is no entry."""
    names: list[Name]
    """Where it is."""
    inodes: set[int]
    """What the kernel knows of it."""
    members: Callable[[], Iterable[Member]]
    """All of it."""


class Prober:
    """Asks the kernel of one filesystem what is in use. No lock may be held."""

    def __init__(self, nodes: Nodes, name_gone: Callable[[int, bytes], None]) -> None:
        self._nodes = nodes
        self._name_gone = name_gone

    def probe(self, things: list[Probed], is_held: Callable[[int], bool]) -> bool:
        """Whether anything is still held after the kernel had time to let go of it."""
        begun, has_told_each = time.monotonic(), False
        for thing in things:
            if thing.entry:
                self._nodes.cut_off.add(thing.entry)
            for parent, name in thing.names:
                self._name_gone(parent, name)
        while any(held := [any(map(is_held, thing.inodes)) for thing in things]):
            seconds = time.monotonic() - begun
            if seconds >= PROBE_SECONDS:
                return True
            if seconds >= PROBE_SECONDS / 2 and not has_told_each:
                has_told_each = True
                self._tell_each([thing for thing, one in zip(things, held, strict=True) if one], is_held)
            time.sleep(0.002)
        return False

    def _tell_each(self, things: list[Probed], is_held: Callable[[int], bool]) -> None:
        for thing in things:
            for ino, parent, name in thing.members():
                if ino in thing.inodes and is_held(ino):
                    self._name_gone(parent, name)
