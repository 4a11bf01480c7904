"""The worker's side of a fleet: bisects the index at a miss, asks the agent for packs, and brings entries in.

`find` runs in the engine's thread. One thread listens to the agent, another brings entries in: those that a lookup
waits for at once, the rest of their packs in short turns that leave the interpreter free for requests.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from kcachefs.bounded import BoundedDict
from kcachefs.core import Filesystem
from kcachefs.core.arrivals import ArrivingEntry, ArrivingFile
from kcachefs.core.caller import Caller
from kcachefs.core.layouts import Kind
from kcachefs.core.layouts import place as layout_of
from kcachefs.core.remote import Delivery, Found, Place
from kcachefs.core.report import FleetNumbers
from kcachefs.errors import KcachefsError, PackError
from kcachefs.fleet import agent_protocol as protocol
from kcachefs.fleet.agent_protocol import HUNG, Alive, Fetch, IndexReady, Lost, Parcel, Refresh, Taken
from kcachefs.fleet.deliveries import SILENCE_SECONDS, Arrived, Deliveries
from kcachefs.fleet.key_index import FOLDER, KeyIndex, keys_of_name
from kcachefs.fleet.pack_records import PackReference
from kcachefs.fleet.parcels import OpenParcel

log = logging.getLogger(__name__)

REFRESH_SECONDS = 60.0
"""The age from which a miss has the index refreshed."""
SILENT_AGENT_SECONDS = 30.0
"""How long nothing is asked of an agent that hangs."""
UNREADABLE_SECONDS = 60.0
"""How long to wait before asking again for a pack when one of its parcels could not be opened here."""
HUNG_SECONDS = 5.0
"""An agent is replaced if it stays silent for this long after lookups gave up on it."""
PAUSE_TIMES, PAUSE_SECONDS = 50, 0.25
"""While requests come in, a pause follows each entry that nobody waits for. It is this many times as long as bringing
the entry in took, up to this many seconds: the engine's thread and the importing one share the interpreter."""
_REMEMBERED = 4096


class FleetClient:
    """One worker's connection to its fleet."""

    def __init__(self, agents: socket.socket, requests: Callable[[], int]) -> None:
        """`agents`: where the supervisor sends a descriptor for each agent; `requests` counts the kernel's requests."""
        self._fs: Filesystem | None = None
        """The filesystem that entries are brought into. `start` sets it, since it is made with this client as its
        remote tier."""
        self._agents = agents
        self._requests = requests
        self._channel: socket.socket | None = None
        self._index: KeyIndex | None = None
        self._deliveries = Deliveries()
        self._not_before: BoundedDict[tuple[str, str], float] = BoundedDict(_REMEMBERED)
        """When a pack that could not be had may be asked for again."""
        self._brought: BoundedDict[tuple[str, str], None] = BoundedDict(_REMEMBERED)
        """Packs that were brought in whole: if one comes again, only the entries asked for are brought in."""
        self._runs: BoundedDict[str, None] = BoundedDict(_REMEMBERED)
        """Runs that were fetched ahead."""
        self._closed_until = 0.0
        """Until this time nothing is asked, because the bucket or the agent failed."""
        self._has_missed = False
        self._silent_since: float | None = None
        """When lookups gave up on an agent that has said nothing since; None if there is no such agent."""
        self._alive = Alive(0.0, "", 0, 0, 0)
        self.numbers = FleetNumbers()
        self.taken: queue.SimpleQueue[Taken] = queue.SimpleQueue()
        """The agents' answers to offers, for the thread that makes the offers."""
        self.agents_seen = 0
        """How many agents there have been: a new one knows nothing of the offers made to the one before."""

    def start(self, fs: Filesystem) -> None:
        """Start bringing entries into `fs`. Before this call, `find` finds nothing."""
        self._fs = fs
        threading.Thread(target=self._listen, name="kcachefs-fleet", daemon=True).start()
        threading.Thread(target=self._import, name="kcachefs-import", daemon=True).start()

    # --- in the engine's thread ---------------------------------------------------------------------------------------

    def find(self, place: Place, caller: Caller) -> Delivery | Found:
        index, fs = self._index, self._fs
        if index is None or fs is None or self._channel is None:
            return Found.NOWHERE
        for key in keys_of_name(place[0], place[1:]):
            number = index.find(key)
            if number == FOLDER:
                return Found.HERE
            if number is not None:
                return Found.NOWHERE if _has_group(fs, place) else self._order(fs, index, key, caller)
        self._has_missed = True
        return Found.NOWHERE

    def _order(self, fs: Filesystem, index: KeyIndex, key: int, caller: Caller) -> Delivery | Found:
        now = time.monotonic()
        if now < self._closed_until:
            return Found.NOWHERE
        for reference in index.find_all(key):
            if now >= self._not_before.get(reference.place, 0.0) and not self._deliveries.is_absent(reference, key):
                break
        else:
            return Found.NOWHERE
        if not fs.arrivals.has_room(is_asked=True):
            return Found.NOWHERE
        lookup, is_new = self._deliveries.wait_for(reference, key, caller.pid)
        if is_new:
            ahead = reference.run not in self._runs
            self._runs[reference.run] = None
            if not self.send(Fetch(reference, ahead)):
                self._deliveries.lose(reference)
                return Found.NOWHERE
        return lookup

    def send(self, message: protocol.ToAgent, fd: int = -1) -> bool:
        channel = self._channel
        return channel is not None and protocol.send(channel, message, fd)

    @property
    def is_connected(self) -> bool:
        return self._channel is not None

    @property
    def is_closed(self) -> bool:
        """Whether nothing is asked for a while, because the bucket or the agent failed."""
        return time.monotonic() < self._closed_until

    # --- what is published, for the numbers ---------------------------------------------------------------------------

    def note_queue(self, entries: int) -> None:
        """Record how many entries wait to be published."""
        self.numbers.queue = entries

    def note_publishing(self, why: str) -> None:
        """Record why the last offer was not published; empty if it was."""
        self.numbers.publish_why = why

    # --- listening to the agent ---------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            try:
                _, fds, _, _ = socket.recv_fds(self._agents, 16, 1)
            except OSError:
                return
            if not fds:
                return  # the supervisor is gone, and nobody starts another agent
            with socket.socket(fileno=fds[0]) as channel:
                channel.setblocking(True)
                self._talk(channel)

    def _talk(self, channel: socket.socket) -> None:
        # An agent that reads nothing must not stop the engine: sending fails when the channel is full.
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, b"\0" * 8 + (1000).to_bytes(8, "little"))
        self._channel = channel
        self.agents_seen += 1
        self._silent_since = None
        try:
            while True:
                message, fd = protocol.receive_from_agent(channel)
                if message is None:
                    return
                try:
                    self._hear(message, fd)
                except (KcachefsError, OSError) as error:
                    log.error("the fleet's agent sent something unusable: %s", error)
                finally:
                    if fd >= 0:
                        os.close(fd)
        except Exception:
            log.exception("the fleet's agent cannot be understood")
        finally:
            self._channel = None
            self._deliveries.lose()
            log.info("the fleet's agent is gone; the mount goes on without it")

    def _hear(self, message: protocol.ToWorker, fd: int) -> None:
        self._silent_since = None
        if isinstance(message, Parcel):
            self._receive(message, fd)
        elif isinstance(message, Lost):
            self._lose(message.reference, message.seconds)
        elif isinstance(message, IndexReady):
            index = KeyIndex.open(Path(message.path))
            if index is not None:
                self._use(index)
        elif isinstance(message, Taken):
            self.taken.put(message)
        else:
            self._alive = message
            self._closed_until = time.monotonic() + message.open_for if message.open_for else 0.0
            self._deliveries.alive()

    def _receive(self, message: Parcel, fd: int) -> None:
        reference = message.reference
        try:
            if fd < 0:
                raise PackError("a parcel came without its descriptor: too many files are open here")
            parcel = OpenParcel(fd)
        except (KcachefsError, OSError):
            self._lose(reference, UNREADABLE_SECONDS)
            raise
        name = reference.place
        self._deliveries.arrive(reference, parcel, is_last=message.is_last, only_asked=name in self._brought)
        if message.is_last and time.monotonic() >= self._not_before.get(name, 0.0):
            self.numbers.packs += 1
            self._brought[name] = None

    def _lose(self, reference: PackReference, seconds: float) -> None:
        """Note that a pack does not come, at least not whole, and do not ask for it again for this many seconds."""
        self._not_before[reference.place] = time.monotonic() + seconds
        self._deliveries.lose(reference)
        self.numbers.given_up += 1

    def _use(self, index: KeyIndex) -> None:
        self._index = index
        if self._fs is not None and self._fs.elsewhere is not None:
            self._fs.elsewhere.look_again(
                lambda place: any(index.find(key) is not None for key in keys_of_name(place[0], place[1:]))
            )

    # --- bringing entries in ------------------------------------------------------------------------------------------

    def _import(self) -> None:
        turns = _Turns(self._requests)
        while not self._deliveries.is_closed:
            found = self._deliveries.next_arrived(1.0, turns.pause)
            self._look_after()
            if found is None:
                continue
            (arrived, is_asked), began, is_here = found, time.monotonic(), False
            try:
                is_here = self._bring(arrived, is_asked)
            except Exception as error:
                known = isinstance(error, KcachefsError | OSError)
                log.error("an entry of the fleet could not be brought in: %s", error, exc_info=not known)
            waited = self._deliveries.imported(arrived)
            if is_here and waited:
                self._count_hit(arrived, max(time.monotonic() - lookup.began for lookup in waited))
            turns.took(time.monotonic() - began)

    def _bring(self, arrived: Arrived, is_asked: bool) -> bool:
        fs, entry, parcel = self._fs, arrived.entry, arrived.parcel
        assert fs is not None
        assert fs.elsewhere is not None
        if not fs.arrivals.has_room(is_asked=is_asked):
            return False
        files = [
            ArrivingFile(tuple(os.fsencode(part) for part in file.name.split("/")), file.mode, file.mtime, content)
            for file in entry.files
            if (content := parcel.content(file)) is not None
        ]
        coming = ArrivingEntry(
            entry.namespace.encode(), tuple(map(os.fsencode, entry.path)), os.fsencode(entry.group), files
        )
        is_here = fs.arrivals.bring(coming, is_asked=is_asked, was_missed=fs.elsewhere.was_missed)
        self.numbers.entries += is_here
        self.numbers.bytes += sum(file.size for file in entry.files) if is_here else 0
        return is_here

    def _count_hit(self, arrived: Arrived, waited: float) -> None:
        pack = arrived.pack
        self.numbers.hits += 1
        self.numbers.waited_seconds += waited
        share = pack.reference.compile_ms / 1000 / max(1, len(pack.came))
        self.numbers.saved_seconds += max(0.0, share - waited)

    def _look_after(self) -> None:
        """Refresh an old index, and deal with a silent agent."""
        index = self._index
        if self._has_missed and index is not None and not 0 <= time.time() - index.loaded <= REFRESH_SECONDS:
            self._has_missed = False
            self.send(Refresh())
        if self._deliveries.silent():
            self._closed_until = time.monotonic() + SILENT_AGENT_SECONDS
            self._silent_since = self._silent_since or time.monotonic()
            self._deliveries.lose()
            log.error("the fleet's agent said nothing for %.0f s; it is not asked for a while", SILENCE_SECONDS)
        if self._silent_since is not None and time.monotonic() - self._silent_since > HUNG_SECONDS:
            self._silent_since = None
            with contextlib.suppress(OSError):  # without a supervisor nobody starts another
                self._agents.send(HUNG, socket.MSG_DONTWAIT)

    # --- the end, and what to tell people -----------------------------------------------------------------------------

    def close(self) -> None:
        self._deliveries.close()

    def report(self) -> FleetNumbers:
        """The numbers as they are now."""
        index, told = self._index, self._alive
        return msgspec.structs.replace(
            self.numbers,
            state="offline" if self._channel is None else "closed" if self.is_closed else "ready",
            why=told.why,
            index_age=max(0.0, time.time() - index.loaded) if index is not None else -1.0,
            index_keys=len(index) if index is not None else 0,
            index_packs=len(index.packs) if index is not None else 0,
            requests=told.requests,
            fetched_bytes=told.fetched_bytes,
            published=told.published,
        )


def _has_group(fs: Filesystem, place: Place) -> bool:
    """Whether other files of the group exist here: then the fleet has no more of them, or they are being made here."""
    spot = layout_of(place[0], place[1:], False)
    if spot.kind is not Kind.GROUP:
        return False
    folder = fs.arrivals.find_folder(place[:-1])
    return folder is not None and bool(fs.table.group(folder, spot.group))


class _Turns:
    """How much time goes to entries that nobody waits for: all of it while no requests come, little otherwise."""

    def __init__(self, requests: Callable[[], int]) -> None:
        self._requests = requests
        self._before = requests()
        self.pause = 0.0
        """How long to wait before the next entry that nobody waits for."""

    def took(self, seconds: float) -> None:
        """Note how long bringing in an entry took, and set the pause accordingly."""
        now, before = self._requests(), self._before
        self._before = now
        self.pause = min(PAUSE_SECONDS, PAUSE_TIMES * seconds) if now != before else 0.0
