"""A remote tier as the core sees it: asked when a name is missing here, before the kernel is told so.

The daemon provides the real one. It is asked only for names that can lead to an entry, or to a folder that holds
entries: never for a lock, a temporary name, or anything inside an entry.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import Protocol

from kcachefs.bounded import BoundedDict
from kcachefs.core.arrivals import Arrivals
from kcachefs.core.caller import Caller
from kcachefs.core.parts import Parts
from kcachefs.core.report import FleetNumbers
from kcachefs.store.inode_numbers import VIRTUAL_BASE

MISS_SECONDS = 10
"""How long the kernel may remember a miss: another host may publish what is missing at any time."""
_REMEMBERED = 65536

Place = tuple[bytes, ...]
"""A namespace's name and a path in it."""


class Delivery(Protocol):
    """An entry on its way here, which one lookup waits for."""

    def wait(self) -> None:
        """Return once the entry is here, or once waiting for it is no longer worth it. Not in the engine's thread."""

    def interrupt(self) -> None:
        """The asking process got a signal: have `wait` return soon if that ends it, or if a person wants it to end."""

    def abandon(self) -> None:
        """Nobody needs the answer: have `wait` return at once. Any thread."""

    @property
    def is_abandoned(self) -> bool: ...


class Found(enum.Enum):
    """The answer to a question, when there is nothing to wait for."""

    HERE = enum.auto()
    """The name is that of a folder that holds entries, which exists here now: look again."""
    NOWHERE = enum.auto()
    """The name does not exist, or cannot be fetched now: the miss is final."""


class Remote(Protocol):
    """Says what can be brought in. `find` is called in the engine's thread: it makes no system call."""

    def find(self, place: Place, caller: Caller) -> Delivery | Found:
        """The delivery to wait for, or why there is none."""

    def report(self) -> FleetNumbers:
        """The numbers as they are now. Any thread."""


class Elsewhere:
    """Turns a miss of one filesystem into a question to the remote tier."""

    def __init__(
        self, parts: Parts, arrivals: Arrivals, remote: Remote, name_gone: Callable[[int, bytes], None]
    ) -> None:
        self._nodes = parts.nodes
        self._namespaces = parts.namespaces
        self._roots = parts.namespaces.roots
        self._arrivals = arrivals
        self._remote = remote
        self._name_gone = name_gone
        self._missed: BoundedDict[Place, float] = BoundedDict(_REMEMBERED)
        """When the kernel was last told that a name is missing, by place."""

    def missed(self, caller: Caller, parent: int, name: bytes) -> Delivery | Found:
        """A name is missing: the delivery to wait for, or why there is none. In the engine's thread."""
        if parent >= VIRTUAL_BASE or parent in self._roots or parent == self._namespaces.tenants:
            return Found.NOWHERE
        folder = self._nodes.get(parent)
        if folder.entry:
            return Found.NOWHERE
        namespace, path = self._namespaces.path(parent, folder)
        place = (self._nodes.get(namespace).target, *path, name)
        found = self._remote.find(place, caller)
        if found is Found.NOWHERE:
            self._missed[place] = time.monotonic()
        elif found is Found.HERE:
            self._arrivals.make_folder(place)
        return found

    def look_again(self, is_there: Callable[[Place], bool]) -> None:
        """The remote tier has more than before: have the kernel ask again for names that were missing. Any thread."""
        horizon = time.monotonic() - MISS_SECONDS - 1
        for place, when in list(self._missed.items()):
            if when > horizon and is_there(place):
                self._missed.pop(place, None)
                folder = self._arrivals.find_folder(place[:-1])
                if folder is not None:
                    self._name_gone(folder, place[-1])

    def was_missed(self, place: Place) -> bool:
        """Whether the kernel may still remember that this name is missing. Any thread."""
        when = self._missed.pop(place, None)
        return when is not None and time.monotonic() - when < MISS_SECONDS + 1
