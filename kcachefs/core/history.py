"""History: what happened on a mount, kept across remounts, kills and reloads in the ring files of its store.

Numbers gather in memory, by namespace and user, and `flush` adds them to the samples of the present 10 seconds, 5
minutes and hour. If nothing happened, nothing is written. Events and tombstones are written at once.

On a full disk only history is lost: records that cannot be written are dropped. The catalog's lock guards the numbers
in memory, and `_lock` guards the files.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

from kcachefs.core.insight_info import EVENTS, EVICTION_REASONS, Event, Sample, SampleRow, Tombstone, path_hash
from kcachefs.core.namespaces import Namespaces
from kcachefs.errors import FsError, KcachefsError
from kcachefs.store import Store
from kcachefs.store.entry_records import EntryRecord
from kcachefs.store.history_files import LEVELS
from kcachefs.store.history_records import EventRecord, SampleRecord, SampleRowRecord, TombstoneRecord

log = logging.getLogger(__name__)

PATH_MAX = 200
"""The most bytes of an entry's path that an event keeps."""
DETAIL_MAX = 90
ROOM_REASONS = frozenset(("quota", "user quota", "ceiling"))
"""The reasons of evictions that a larger limit would have avoided."""
OTHERS = "(others)"
"""The label of the row that adds up the namespaces and users without a row of their own."""


class History:
    """The history of one filesystem. Any thread."""

    def __init__(self, store: Store, namespaces: Namespaces) -> None:
        self._store = store
        self._files = store.history
        self._namespaces = namespaces
        self._rows: dict[tuple[int, int], SampleRowRecord] = {}
        """Counts since the last flush, by namespace and user."""
        self._graves: bytearray | None = None
        """The first 8 bytes of each tombstone's hash, by slot: 65,536 of them are searched in a moment."""
        self._lock = threading.Lock()
        self.since_start = SampleRowRecord(*SampleRecord.OTHERS)
        """Counts of the whole mount from the start of the worker to the last flush."""
        self.gone: dict[str, int] = dict.fromkeys(EVICTION_REASONS, 0)
        """By reason: how many entries went since the worker started."""

    # --- counting: the catalog's lock is held -------------------------------------------------------------------------

    def row(self, namespace: int, uid: int) -> SampleRowRecord:
        """The row in which to count what a user does in a namespace."""
        return self._rows.setdefault((namespace, uid), SampleRowRecord(namespace, uid))

    # --- writing ------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Add the counts since the last flush to the present samples."""
        if self._graves is None:  # read them here, where nobody waits: later they are needed under the catalog's lock
            with self._lock:
                self._all_graves()
        with self._store.catalog.lock:
            rows, self._rows = list(self._rows.values()), {}
            for row in rows:
                self.since_start.add(row)
        if not rows:
            return
        used, entries = self._store.used_bytes(), sum(row.entries for _, _, row in self._namespaces.rows())
        now = max(0, int(time.time()))  # samples are numbered from 1970 on
        with self._keeping("samples"):
            for seconds, ring in self._files.samples.items():
                number = now // seconds
                raw = ring.get(number)
                sample = SampleRecord.unpack(raw) if raw is not None else SampleRecord(used, entries)
                sample.used, sample.entries = used, entries
                sample.add(rows)
                ring.put(number, sample.pack())

    def note_event(self, kind: str, *, uid: int = 0, path: str = "", detail: str = "") -> None:
        """Write down something that just happened to an entry or to the whole mount."""
        where = path.encode()[:PATH_MAX]
        text = where + detail.encode()[:DETAIL_MAX]
        with self._keeping("events"):
            record = EventRecord(time.time_ns(), uid, EVENTS.index(kind), len(where), text)
            self._files.events.append(record.pack())

    def note_takeover(self, detail: str) -> None:
        """Write down that a worker takes over, unless the last one was replaced on purpose and wrote that down."""
        with self._lock:
            last = self._files.events.get(self._files.events.next_number - 1)
        if last is None or _word(EVENTS, EventRecord.unpack(last).kind) != "reloaded":
            self.note_event("failover", detail=detail)

    def note_gone(self, entry: EntryRecord, why: str) -> None:
        """Leave a tombstone for an entry that was evicted or dropped, and write the event down."""
        with self._lock:
            self.gone[why] += 1
        path = self.path_of(entry)
        if path is None:
            return
        with self._keeping("tombstones"):
            digest, when = path_hash(path), time.time_ns()
            record = TombstoneRecord(digest, when, entry.uid, EVICTION_REASONS.index(why))
            graves = self._all_graves()
            place = self._files.tombstones.append(record.pack()) % self._files.tombstones.slots * 8
            graves.extend(bytes(max(0, place + 8 - len(graves))))
            graves[place : place + 8] = digest[:8]
        self.note_event(
            "damaged" if why in ("damaged", "power cut") else "evicted", uid=entry.uid, path=path, detail=why
        )

    @contextlib.contextmanager
    def _keeping(self, what: str) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except (KcachefsError, OSError) as error:
                log.debug("%s of the history were not written: %s", what, error)

    # --- looking ------------------------------------------------------------------------------------------------------

    def was_evicted_for_room(self, entry: EntryRecord) -> bool:
        """Whether the last entry that went from this entry's path was evicted because a limit was reached."""
        path, found = self.path_of(entry), None
        with self._keeping("tombstones"):
            found = self._newest_grave(path_hash(path)) if path is not None else None
        return found is not None and _word(EVICTION_REASONS, found.why) in ROOM_REASONS

    def _newest_grave(self, digest: bytes) -> TombstoneRecord | None:
        graves, ring, place, numbers = self._all_graves(), self._files.tombstones, -1, []
        while (place := graves.find(digest[:8], place + 1)) >= 0:
            if place % 8 == 0:
                slot, last = place // 8, ring.next_number - 1
                numbers.append(last - (last - slot) % ring.slots)
        for number in sorted(numbers, reverse=True):
            raw = ring.get(number)
            record = TombstoneRecord.unpack(raw) if raw is not None else None
            if record is not None and record.path_hash == digest:
                return record
        return None

    def _all_graves(self) -> bytearray:
        if self._graves is None:
            self._graves = self._files.tombstones.column(0, 8)
        return self._graves

    def tombstones(self, uid: int | None = None) -> list[Tombstone]:
        """The tombstones of one user's entries, or of all, the oldest first; only the newest one of each path."""
        with self._lock:
            records = [TombstoneRecord.unpack(raw) for _, raw in self._files.tombstones.records()]
        newest = {one.path_hash: one for one in records if uid in (None, one.uid)}
        return [
            Tombstone(path_hash=one.path_hash, when=one.when / 1e9, why=_word(EVICTION_REASONS, one.why), uid=one.uid)
            for one in sorted(newest.values(), key=lambda one: one.when)
        ]

    def events(self, since: float = 0.0, uid: int | None = None) -> list[Event]:
        """Events since then, the oldest first; with `uid`, only those of this user's entries."""
        with self._lock:
            records = [(number, EventRecord.unpack(raw)) for number, raw in self._files.events.records()]
        return [
            Event(
                number=number,
                when=one.when / 1e9,
                kind=_word(EVENTS, one.kind),
                uid=one.uid,
                path=one.text[: one.path_length].decode(errors="replace"),
                detail=one.text[one.path_length :].decode(errors="replace"),
            )
            for number, one in records
            if one.when / 1e9 >= since and (uid is None or (one.uid == uid and one.path_length))
        ]

    def samples(self, since: float = 0.0, uid: int | None = None) -> list[Sample]:
        """Samples since then, the oldest first. The shortest sample that still covers a moment stands for it."""
        found: list[Sample] = []
        # A sample in the future is from before the clock was set back: nobody can say when it was really taken.
        now, longest = int(time.time()), LEVELS[-1][0]
        until = now + longest
        for seconds, slots in LEVELS:
            # Longer samples cover the time before these, and never overlap them: each level starts at a full hour.
            start = max(0, -(-(now - seconds * (slots - 1)) // longest) * longest) if seconds < longest else 0
            with self._lock:
                records = self._files.samples[seconds].records() if since < until else []
            found += (
                sample
                for number, raw in records
                if max(start, since - seconds + 1) <= number * seconds < until and number * seconds <= now
                if (sample := self._sample(number * seconds, seconds, SampleRecord.unpack(raw), uid)).rows
            )
            until = start
        return sorted(found, key=lambda sample: sample.start)

    def _sample(self, start: int, seconds: int, record: SampleRecord, uid: int | None) -> Sample:
        whole = uid is None
        return Sample(
            start=start,
            seconds=seconds,
            used_bytes=record.used if whole else 0,
            entries=record.entries if whole else 0,
            rows=[self._row(row) for row in record.rows if whole or row.uid == uid],
        )

    def _row(self, row: SampleRowRecord) -> SampleRow:
        label = OTHERS
        if row.namespace:
            label = "(removed)"
            with contextlib.suppress(FsError):
                label = self._namespaces.label_of(row.namespace) or "/"
        return SampleRow(
            namespace=label,
            uid=row.uid,
            hits=row.hits,
            misses=row.misses,
            evictions=row.evictions,
            remade=row.remade,
            bytes_served=row.served,
            seconds_compiled=row.compiled / 1e9,
            seconds_saved=row.saved / 1e9,
        )

    def path_of(self, entry: EntryRecord) -> str | None:
        """An entry's path as `kcachefs ls` shows it; None if the folder that contained it is gone."""
        with contextlib.suppress(FsError):
            return b"/".join(self._namespaces.path_of(entry)).decode(errors="replace")
        return None


def _word(words: tuple[str, ...], number: int) -> str:
    """The word that a number in a record stands for; "unknown" for a number that only a later version knows."""
    return words[number] if number < len(words) else "unknown"
