"""What a mount publishes: entries that were compiled here and have rested, offered to the agent in batches.

A batch is what one start compiled: everything up to a while in which nothing new was sealed. The queue is a file of the
store, so it survives restarts; a batch leaves it once the agent says that the bucket has it. Writers never wait for
any of this, and reading an entry in order to offer it does not count as use.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from kcachefs.core import Filesystem
from kcachefs.errors import FsError, KcachefsError
from kcachefs.fleet import parcels
from kcachefs.fleet.agent_protocol import Offer, Taken, Used
from kcachefs.fleet.client import FleetClient
from kcachefs.fleet.finding import FoundEntry, find_at
from kcachefs.fleet.key_index import key_of_names
from kcachefs.fleet.options import FleetOptions
from kcachefs.fleet.parcels import ParcelEntry, ParcelFile
from kcachefs.fleet.rules import THING_MAX
from kcachefs.fleet.views import StoreView
from kcachefs.frameworks.copying import Skipped
from kcachefs.printable import printable
from kcachefs.store.descriptor import replace_file
from kcachefs.store.inode_numbers import GROUP_BASE
from kcachefs.store.records import TENANTS, Content, Inode

log = logging.getLogger(__name__)

QUIET_SECONDS = 30.0
"""The entries of a start are offered once none of them has been sealed for this long."""
PATIENCE_SECONDS = 300.0
"""A start that keeps compiling is offered in parts after this long."""
QUEUE_MAX = 20_000
"""The most entries that wait; further ones are not published."""
BATCH_BYTES = 64 << 20
RETRY_SECONDS, RETRY_MOST_SECONDS = 60.0, 900.0
RENEW_FIRST_SECONDS, RENEW_SECONDS = 600.0, 6 * 3600.0
"""When the agent is first told which entries were used, and how often after that."""
USED_NS = 3 * 86400 * 1_000_000_000
"""Entries used within this time are published again before the bucket deletes them."""
EARLIER_NS = 3600 * 1_000_000_000
USED_MAX, USED_AT_ONCE = 50_000, 4000
PAUSE_MOST_NS = 10_000_000_000
"""Of a longer pause between two files, only this much counts as compiling."""


class _Content(NamedTuple):
    """A file of an entry, as it is offered."""

    name: str
    mode: int
    mtime: int
    content: bytes


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where an entry stands."""

    namespace: str
    path: tuple[str, ...]
    group: str


class Batch(msgspec.Struct, kw_only=True):
    """Entries that are offered together."""

    name: str
    run: str
    compile_ms: int
    entries: list[Place]
    tries: int = 0


class Offers:
    """The queue of one mount. One thread at a time calls `turn` and `finish`."""

    def __init__(self, fs: Filesystem, client: FleetClient, options: FleetOptions, folder: Path) -> None:
        self._fs = fs
        self._client = client
        self._uids = frozenset(options.writer_uids)
        self._gids = frozenset(options.writer_gids)
        if not self._uids and not self._gids:
            self._uids = frozenset((fs.options.uid,))
        self._path = folder / "queue.json"
        self._view = StoreView(fs)
        self._fresh = fs.fresh
        self._agents_seen = 0
        self._queue = self._read()
        self._offered = ""
        self._must_note_earlier = fs.options.resumed
        """Whether to look for earlier entries: the previous worker may have known of some that it had not queued."""
        self._renew_at = time.monotonic() + RENEW_FIRST_SECONDS
        self._not_before: dict[str, float] = {}
        self._held_until = 0.0
        """Until this time nothing is offered, because the last offer failed through the bucket or the disk."""
        self._rest_seconds = QUIET_SECONDS
        """How long a file must stay empty before it is taken to be complete; 0 once nobody can write any more."""
        self._refused: set[int] = set()
        """Users whose entries are not published, and for whom that has been logged."""
        self._fresh.want()

    def turn(self) -> None:
        """Queue the entries that have rested, and offer the next batch."""
        self._hear()
        self._note_earlier()
        now, fresh = time.monotonic(), self._fresh.all()
        if fresh and (now - max(fresh.values()) >= QUIET_SECONDS or now - min(fresh.values()) >= PATIENCE_SECONDS):
            self._enqueue([entry for entry, when in fresh.items() if now - when >= QUIET_SECONDS])
        if not self._client.is_closed:
            self._offer_next(now)
        if now >= self._renew_at and self._client.is_connected:
            self._renew_at = now + RENEW_SECONDS
            self._tell_used()
        self._client.note_queue(sum(len(batch.entries) for batch in self._queue) + len(self._fresh))

    def _note_earlier(self) -> None:
        """Once, note the entries made here recently. Publishing will find those that the bucket already has."""
        if not self._must_note_earlier:
            return
        self._must_note_earlier = False
        horizon = time.time_ns() - EARLIER_NS
        for namespace, _, _ in self._fs.namespaces.rows():
            for entry in self._fs.evictor.order.of_namespace(namespace, USED_MAX, 0.0):
                record = self._fs.table.get(entry)
                if record is not None and record.created > horizon and not self._is_adopted(entry):
                    self._fresh.note_earlier(entry)

    def _is_adopted(self, entry: int) -> bool:
        try:
            top = next(iter(self._fs.walk.members(entry)))[0]
            return bool(self._fs.nodes.get(top).flags & Inode.ADOPTED)
        except (FsError, StopIteration):
            return True

    def _tell_used(self) -> None:
        """Tell the agent which entries were used recently, wherever they came from."""
        horizon = time.time_ns() - USED_NS
        keys = []
        for namespace, label, _ in self._fs.namespaces.rows():
            for entry in self._fs.evictor.order.of_namespace(namespace, USED_MAX, 0.0):
                record = self._fs.table.get(entry)
                if record is None or record.used < horizon or not label:
                    continue
                place = _place(self._fs.namespaces.path_of(record), entry)
                if place is not None:
                    keys.append(key_of_names(place.namespace, place.path, place.group))
        for start in range(0, len(keys), USED_AT_ONCE):
            self._client.send(Used(keys[start : start + USED_AT_ONCE]))

    def finish(self, seconds: float) -> None:
        """The mount is gone: offer everything, and wait a little while until it is published."""
        with contextlib.suppress(KcachefsError):
            # Nobody writes any more. gcc pauses in a precompiled header, so one usually rests for a minute first.
            self._fs.sealer.seal_quiet(0.0)
        self._rest_seconds = 0.0
        self._note_earlier()
        self._enqueue(self._fresh.all())
        # Offer even after a recent fault: this is the last chance if the host goes away. Batches that failed come last.
        self._queue.sort(key=self._due)
        self._not_before.clear()
        self._held_until = 0.0
        until = time.monotonic() + seconds
        while self._queue and self._client.is_connected and time.monotonic() < until:
            self._hear()
            if not self._offered and not self._offer_next(time.monotonic()):
                break  # the rest was refused for now
            time.sleep(0.02)
        if self._queue:
            log.info("%d batches of entries will be published by the next mount", len(self._queue))

    # --- the queue ----------------------------------------------------------------------------------------------------

    def _enqueue(self, entries: Iterable[int]) -> None:
        run, batch, size, times = secrets.token_hex(8), list[Place](), 0, list[int]()
        for entry in entries:
            if self._is_being_made(entry):
                self._fresh.note(entry)  # as if sealed now
                continue
            self._fresh.take(entry)
            found = self._found(entry)
            if found is None:
                continue
            place, bytes_in, moments = found
            if batch and size + bytes_in > BATCH_BYTES:
                self._add(run, batch, times)
                batch, size, times = [], 0, []
            batch.append(place)
            times += moments
            size += bytes_in
        if batch:
            self._add(run, batch, times)

    def _add(self, run: str, entries: list[Place], times: list[int]) -> None:
        room = QUEUE_MAX - sum(len(batch.entries) for batch in self._queue)
        if len(entries) > room:
            log.warning("%d entries are not published: too many wait already", len(entries) - max(0, room))
            entries = entries[: max(0, room)]
        if entries:
            took = compile_ms(times)
            self._queue.append(Batch(name=secrets.token_hex(8), run=run, compile_ms=took, entries=entries))
            self._write()

    def _found(self, entry: int) -> tuple[Place, int, list[int]] | None:
        """Where an entry stands, its size, and when its files were made; None if it is not to be published."""
        try:
            record = self._fs.table.get(entry)
            if record is None:
                return None
            place = _place(self._fs.namespaces.path_of(record), entry)
            if place is None:
                return None
            moments = []
            for ino, _, _ in self._fs.walk.members(entry):
                node = self._fs.nodes.get(ino)
                if not self._may_publish(node.uid, node.gid):
                    return None
                moments.append(node.atime if node.is_dir else node.mtime)
        except FsError:
            return None  # it is gone by now
        return place, record.plain, moments

    def _is_being_made(self, entry: int) -> bool:
        """Whether an entry has a recent file that is still empty: a linker may be about to write it."""
        try:
            nodes = [self._fs.nodes.get(ino) for ino, _, _ in self._fs.walk.members(entry)]
        except FsError:
            return False  # it is gone by now
        return any(node.is_file and node.content == Content.NONE and self._is_recent(node.mtime) for node in nodes)

    def _is_recent(self, moment: int) -> bool:
        return 0 <= time.time_ns() - moment < self._rest_seconds * 1e9

    def _may_publish(self, uid: int, gid: int) -> bool:
        if uid in self._uids or gid in self._gids:
            return True
        if uid not in self._refused:
            self._refused.add(uid)
            log.warning("what user %d compiles is not published; --fleet-writers says whose entries are", uid)
        return False

    # --- offering -----------------------------------------------------------------------------------------------------

    def _offer_next(self, now: float) -> bool:
        """Offer a batch; False if there is none to offer now."""
        while True:
            if self._offered or not self._client.is_connected or now < self._held_until:
                return False
            batch = min(self._queue, key=self._due, default=None)
            if batch is None or now < self._due(batch):
                return False
            try:
                fd = self._parcel(batch)
            except Exception as error:  # too many open files, or no memory: other batches would fare no better
                why = _told(error)
                log.error("%s", why, exc_info=not isinstance(error, OSError | MemoryError))
                self._client.note_publishing(why)
                self._taken(Taken(batch.name, False, why, is_fault=True))
                return False
            if fd < 0:
                self._taken(Taken(batch.name, True))  # none of its entries is left
                continue
            try:
                if not self._client.send(Offer(batch.name, batch.run, batch.compile_ms), fd):
                    return False
            finally:
                os.close(fd)
            self._offered = batch.name
            return True

    def _due(self, batch: Batch) -> float:
        """When a batch may be offered. The one due first comes first, so one that always fails holds no other back."""
        return self._not_before.get(batch.name, 0.0)

    def _parcel(self, batch: Batch) -> int:
        """A parcel of the batch's entries that still exist, as a descriptor; -1 if none does."""
        entries, chunks, end, held = [], list[bytes](), 0, list[Place]()
        for place in batch.entries:
            try:
                read = [(found, self._contents(found)) for found in self._find(place)]
            except Skipped as skipped:
                log.info("%s", skipped)
                continue
            except KcachefsError:
                continue
            if any(not file.content and self._is_recent(file.mtime) for _, files in read for file in files):
                held.append(place)
                continue
            for found, files in read:
                packed = []
                for file in files:
                    packed.append(ParcelFile(file.name, file.mode, file.mtime, end, len(file.content)))
                    chunks.append(file.content)
                    end += len(file.content)
                if packed:
                    entries.append(ParcelEntry(found.namespace, found.path_in, found.group, tuple(packed)))
        if held:
            self._hold(batch, held)
        return parcels.make(entries, chunks) if entries else -1

    def _hold(self, batch: Batch, places: list[Place]) -> None:
        """Move these places to a later batch: each has just got an empty file, and empty files are never sealed."""
        batch.entries = [one for one in batch.entries if one not in places]
        later = Batch(name=secrets.token_hex(8), run=batch.run, compile_ms=0, entries=places)
        self._not_before[later.name] = time.monotonic() + self._rest_seconds
        self._queue.append(later)
        self._write()

    def _find(self, place: Place) -> list[FoundEntry]:
        """The entry at a place; or the entries in that folder, if it was one entry when it was made."""
        found = find_at(self._view, place.namespace, place.path, place.group, lambda skipped: log.info("%s", skipped))
        if sum(one.bytes for one in found) > THING_MAX:
            shown = printable("/".join((place.namespace, *place.path)))
            raise Skipped(f"{shown}: is not published: it has more than {THING_MAX >> 20} MiB")
        return found

    def _contents(self, found: FoundEntry) -> list[_Content]:
        read: list[_Content] = []
        for name in found.files:
            seen = self._view.read((found.namespace, *found.path_in, *name.split("/")))
            # The entry waited in the queue: since then somebody else may have added a file, or its maker may be writing
            # again. In that case it is queued once more when the new file is sealed.
            if not seen.is_sealed or not self._may_publish(seen.uid, seen.gid):
                return []
            read.append(_Content(name, seen.mode, seen.mtime, seen.content))
        return read

    def _hear(self) -> None:
        """Handle the agent's answer to the offer that is under way."""
        with contextlib.suppress(queue.Empty):
            while True:
                taken = self._client.taken.get_nowait()
                self._client.note_publishing(taken.why)
                self._taken(taken)
        if self._client.agents_seen != self._agents_seen:
            self._agents_seen, self._offered = self._client.agents_seen, ""

    def _taken(self, taken: Taken) -> None:
        if self._offered == taken.batch:
            self._offered = ""
        for batch in [one for one in self._queue if one.name == taken.batch]:
            if taken.is_done:
                self._queue.remove(batch)
                self._not_before.pop(batch.name, None)
            else:
                pause = min(RETRY_MOST_SECONDS, RETRY_SECONDS * 2 ** min(batch.tries, 10))
                self._not_before[batch.name] = time.monotonic() + pause
                if taken.is_fault:
                    self._held_until = time.monotonic() + pause
                batch.tries += 1
        self._write()

    # --- the file -----------------------------------------------------------------------------------------------------

    def _read(self) -> list[Batch]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=list[Batch])
        except (OSError, msgspec.DecodeError):
            return []

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            replace_file(self._path, msgspec.json.encode(self._queue), sync=False)
        except OSError as error:
            log.error("the queue of entries to publish cannot be kept: %s", error)


def _place(path: tuple[bytes, ...], entry: int) -> Place | None:
    """Where an entry stands, by its path; None if it is a user's own or in no namespace."""
    if path[0] == TENANTS or len(path) < 2:
        return None
    namespace, *inside = (os.fsdecode(part) for part in path)
    if entry >= GROUP_BASE:
        return Place(namespace, tuple(inside[:-1]), inside[-1])
    return Place(namespace, tuple(inside), "")


def _told(error: Exception) -> str:
    """Why a batch waits, as a message for people."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return f"the mount's worker cannot hand over what was compiled: {words}"


def compile_ms(times: list[int]) -> int:
    """How many milliseconds making the files took, by when each was made, in nanoseconds; long pauses count little."""
    gaps = (min(later - earlier, PAUSE_MOST_NS) for earlier, later in pairwise(sorted(times)))
    return sum(gaps) // 1_000_000
