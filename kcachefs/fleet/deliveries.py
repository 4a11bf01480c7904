"""Deliveries: packs on their way to a worker, and the lookups that wait for entries of theirs.

One lock guards everything here. It is only ever held for a moment, because the engine's thread takes it too.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from kcachefs.bounded import BoundedDict
from kcachefs.fleet.key_index import key_of_names
from kcachefs.fleet.pack_records import PackReference
from kcachefs.fleet.parcels import OpenParcel, ParcelEntry

SILENCE_SECONDS = 2.0
"""An agent that says nothing for this long while it fetches is taken to hang: nobody waits for it any longer."""
_GLANCE = 0.25
_ABSENT = 65536
_PARTING = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM}
"""Signals that are sent to end a process, whether or not it wants to end."""


class WaitingLookup:
    """A lookup that waits for an entry. `core/remote.py` says what an engine does with it."""

    def __init__(self, pack: Underway, pid: int) -> None:
        self._pack = pack
        self._pid = pid
        self._changed = threading.Event()
        self._is_done = self._has_signal = self.is_abandoned = False
        self.began = time.monotonic()

    def wait(self) -> None:
        while not self._is_done and not self.is_abandoned:
            self._changed.wait(_GLANCE)
            self._changed.clear()
            if self._has_signal and is_parting(self._pid):
                self.is_abandoned = True
            elif time.monotonic() - max(self.began, self._pack.last_news) > SILENCE_SECONDS:
                self._pack.is_silent = True
                return

    def finish(self) -> None:
        """End the wait: the entry has arrived, or will not come."""
        self._is_done = True
        self._changed.set()

    def interrupt(self) -> None:
        self._has_signal = True
        self._changed.set()

    def abandon(self) -> None:
        self.is_abandoned = True
        self._changed.set()


class Arrived(NamedTuple):
    """An entry that has arrived, but is not in the store yet."""

    key: int
    entry: ParcelEntry
    parcel: OpenParcel
    pack: Underway


class Underway:
    """A pack that was asked for, or comes unasked. Only `Deliveries` changes it."""

    def __init__(self, reference: PackReference) -> None:
        self.reference = reference
        self.waiting: dict[int, list[WaitingLookup]] = {}
        """Lookups by the key of the entry."""
        self.arrived: dict[int, Arrived] = {}
        self.importing: set[int] = set()
        self.is_complete = False
        """Whether no more parcels are awaited: the last one has arrived, or the pack was lost."""
        self.came: set[int] = set()
        """The keys of all entries that have arrived so far."""
        self.last_news = time.monotonic()
        self.is_silent = False
        """Whether lookups gave up because the agent hangs."""

    @property
    def is_over(self) -> bool:
        return self.is_complete and not self.arrived and not self.importing


class Deliveries:
    """The packs that are under way to one worker. Safe in any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._packs: dict[tuple[str, str], Underway] = {}
        self._asked: deque[tuple[Underway, int]] = deque()
        self._rest: deque[tuple[Underway, int]] = deque()
        self._absent: BoundedDict[tuple[tuple[str, str], int], None] = BoundedDict(_ABSENT)
        """Packs that arrived whole, but without an entry that their record names; each with the entry's key."""
        self.is_closed = False

    def is_absent(self, reference: PackReference, key: int) -> bool:
        """Whether a pack turned out not to hold an entry that its record names."""
        return (reference.place, key) in self._absent

    def wait_for(self, reference: PackReference, key: int, pid: int) -> tuple[WaitingLookup, bool]:
        """Let a lookup wait for an entry; also returns whether the entry's pack has to be requested."""
        with self._changed:
            pack = self._packs.get(reference.place)
            is_new = pack is None
            if pack is None:
                pack = self._packs[reference.place] = Underway(reference)
            lookup = WaitingLookup(pack, pid)
            if key in pack.arrived:
                self._asked.append((pack, key))
                self._changed.notify()
            elif pack.is_complete and key not in pack.importing:
                lookup.finish()  # it is here already, or the index was wrong
                return lookup, False
            pack.waiting.setdefault(key, []).append(lookup)
            return lookup, is_new

    def alive(self) -> None:
        """Note that the agent said something."""
        now = time.monotonic()
        with self._changed:
            for pack in self._packs.values():
                pack.last_news = now

    def arrive(self, reference: PackReference, parcel: OpenParcel, *, is_last: bool, only_asked: bool) -> None:
        """Take in entries of a pack that have arrived. With `only_asked`, those that nobody waits for are dropped."""
        # Hash the keys before taking the lock: there may be thousands, and the engine's thread must not wait for that.
        came = [(entry_key(entry), entry, parcel) for entry in parcel.entries]
        with self._changed:
            pack = self._packs.setdefault(reference.place, Underway(reference))
            pack.last_news = time.monotonic()
            pack.came |= {key for key, _, _ in came}
            for key, entry, whole in came:
                is_asked = key in pack.waiting
                if is_asked or not only_asked:
                    pack.arrived[key] = Arrived(key, entry, whole, pack)
                    (self._asked if is_asked else self._rest).append((pack, key))
            pack.is_complete = pack.is_complete or is_last
            for key in [key for key in pack.waiting if pack.is_complete and key not in pack.arrived]:
                if key not in pack.importing:
                    if key not in pack.came:
                        self._absent[reference.place, key] = None
                    _finish(pack.waiting.pop(key))
            self._forget_if_over(pack)
            self._changed.notify()

    def next_arrived(self, seconds: float, rest_after: float = 0.0) -> tuple[Arrived, bool] | None:
        """The next entry to bring in, and whether somebody waits for it; None if none came for `seconds`.

        An entry that nobody waits for is returned only `rest_after` seconds from now.
        """
        rest_at = time.monotonic() + rest_after
        with self._changed:
            while not self.is_closed:
                pause = rest_at - time.monotonic()
                for queue, is_asked in ((self._asked, True), (self._rest, False)):
                    while queue and (is_asked or pause <= 0):
                        pack, key = queue.popleft()
                        if (arrived := pack.arrived.pop(key, None)) is not None:
                            pack.importing.add(key)
                            return arrived, is_asked
                if not self._changed.wait(pause if self._rest else seconds) and not self._rest:
                    return None
        return None

    def imported(self, arrived: Arrived) -> list[WaitingLookup]:
        """Note that an entry is in the store, or could not be brought in; returns the lookups that waited for it."""
        pack = arrived.pack
        with self._changed:
            pack.importing.discard(arrived.key)
            waited = pack.waiting.pop(arrived.key, [])
            _finish(waited)
            self._forget_if_over(pack)
        return waited

    def lose(self, reference: PackReference | None = None) -> None:
        """Note that a pack will not come, or with None that no pack will. Entries that have arrived are still brought
        in."""
        with self._changed:
            packs = list(self._packs.values()) if reference is None else [self._packs.get(reference.place)]
            for pack in filter(None, packs):
                pack.is_complete = True
                for key in [key for key in pack.waiting if key not in pack.arrived and key not in pack.importing]:
                    _finish(pack.waiting.pop(key))
                self._forget_if_over(pack)

    def silent(self) -> bool:
        """Whether lookups have given up on the agent since the last call."""
        with self._changed:
            found = [pack for pack in self._packs.values() if pack.is_silent]
            for pack in found:
                pack.is_silent = False
        return bool(found)

    def close(self) -> None:
        """End every wait."""
        with self._changed:
            self.is_closed = True
            for pack in self._packs.values():
                for waiting in pack.waiting.values():
                    _finish(waiting)
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._packs)

    def _forget_if_over(self, pack: Underway) -> None:
        if pack.is_over and self._packs.get(pack.reference.place) is pack:
            del self._packs[pack.reference.place]


def entry_key(entry: ParcelEntry) -> int:
    """The key of an entry in an index."""
    return key_of_names(entry.namespace, entry.path, entry.group)


def is_parting(pid: int) -> bool:
    """Whether a thread has a pending signal that is sent to end it; True, too, if we see no process of that number."""
    with contextlib.suppress(OSError, ValueError):
        pending = 0
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("SigPnd:", "ShdPnd:")):
                pending |= int(line.split()[1], 16)
        return any(pending >> (number - 1) & 1 for number in _PARTING)
    return True


def _finish(lookups: list[WaitingLookup]) -> None:
    for lookup in lookups:
        lookup.finish()
