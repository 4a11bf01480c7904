"""Loads the index of a bucket: lists the bucket, fetches the records that are not known yet, and checks each.

The first load reads the newest snapshots and the records since; later loads list only the newest days. Requests run
in parallel where they can, because a starting node waits for them. Records that no trusted key signed are left out.
Nothing here depends on the clock of this machine being right: days are those of the store, and a local clock that is
wrong makes a listing longer, never shorter.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from kcachefs.errors import FleetMissing, PackError
from kcachefs.fleet import key_index, pack_records, snapshots
from kcachefs.fleet.asking import both, in_parallel
from kcachefs.fleet.bans import Bans
from kcachefs.fleet.bucket_layout import Layout, SnapshotName, day_before, day_of, is_day
from kcachefs.fleet.key_index import KeyIndex
from kcachefs.fleet.object_storage import PAGE, Storage, Stored
from kcachefs.fleet.pack_records import RECORD_MAX, PackReference, SignedRecord

_DAYS_MAX = 1000
"""The most days that are read: more can only be meant to keep readers busy."""

log = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """What a load of the index brought."""

    new: int
    """How many records were not known before."""
    packs: int
    keys: int


class Survey(NamedTuple):
    """What a survey found in a bucket."""

    records: list[SignedRecord]
    """The records that were not known before."""
    days: frozenset[str]
    """All days that have records."""
    listed: frozenset[tuple[str, str]]
    """The places of all records, by day and pack, in the days from `since` on."""
    since: str

    def still_has(self, reference: PackReference) -> bool:
        """Whether a pack's record still exists, as far as this survey shows: somebody may have emptied the bucket."""
        if reference.day < self.since:
            return reference.day in self.days
        return reference.place in self.listed


class RecordReader:
    """Reads the records of one scope of a bucket. Remembers useless objects, and asks for each of them only once."""

    def __init__(self, storage: Storage, layout: Layout, trusted: Collection[bytes]) -> None:
        self._storage = storage
        self._layout = layout
        self._trusted = frozenset(trusted)
        self._useless: set[str] = set()
        self._refused: list[str] = []
        """The objects ignored since the last warning, and why."""

    def survey(self, known: Collection[tuple[str, str]] = frozenset()) -> Survey:
        """Every record of the bucket whose day and pack are not in `known`: from snapshots first, then the rest."""
        found, listed = both(self.existing_snapshots, self._all_listed)
        until, records = self._first_good("until", found.until, known)
        if listed is not None:
            since, days = "", frozenset(day for day, _ in listed)
        else:
            since = day_before(until.day, -1) if until is not None else ""
            days = self.days()
            listed = in_parallel(self.listed, [day for day in days if day >= since])
        records = [one for one in records if one.day in days]
        records += self._of_days(found, listed, {*known, *map(_place, records)})
        self._tell_refused()
        return Survey(records, days, frozenset(listed), since)

    def survey_since(self, since: str, known: Collection[tuple[str, str]]) -> Survey:
        """The records of the days from `since` on that are not known. Snapshots are used if there are many."""
        days = self.days()
        listed = in_parallel(self.listed, [day for day in days if day >= since])
        many = len(set(listed) - set(known)) > snapshots.SNAPSHOT_AFTER
        records = self._of_days(self.existing_snapshots() if many else None, listed, known)
        self._tell_refused()
        return Survey(records, days, frozenset(listed), since)

    def of_day(self, day: str, found: snapshots.Snapshots) -> list[SignedRecord]:
        """All records of a day."""
        records = self._of_days(found, self.listed(day), frozenset())
        self._tell_refused()
        return records

    def existing_snapshots(self) -> snapshots.Snapshots:
        listed = self._storage.objects(self._layout.snapshots)
        # Leave out snapshots that proved useless: otherwise a few made-up ones would always be tried before all others.
        return snapshots.sorted_out(self._layout, (one for one in listed if one.key not in self._useless))

    def days(self) -> frozenset[str]:
        """The days that have records."""
        found = sorted(day for day in self._storage.folders(self._layout.records) if is_day(day))
        # Anybody who may write can make up days. Future ones must not push out those of the past.
        tomorrow = day_before(day_of(time.time()), -1)
        past, to_come = [day for day in found if day <= tomorrow], [day for day in found if day > tomorrow]
        return frozenset(past[-_DAYS_MAX:] + to_come[:_DAYS_MAX])

    def listed(self, day: str) -> list[tuple[str, str]]:
        """The records that a day has, by day and pack."""
        return self._placed(self._storage.objects(f"{self._layout.records}{day}/"))

    def _all_listed(self) -> list[tuple[str, str]] | None:
        """All records, if one request can list them; None otherwise."""
        listed = list(itertools.islice(self._storage.objects(self._layout.records), PAGE))
        return self._placed(listed) if len(listed) < PAGE else None

    def _placed(self, listed: Iterable[Stored]) -> list[tuple[str, str]]:
        return [at for stored in listed if (at := self._layout.placed(stored.key)) and stored.size <= RECORD_MAX]

    def _of_days(
        self, found: snapshots.Snapshots | None, listed: Iterable[tuple[str, str]], known: Collection[tuple[str, str]]
    ) -> list[SignedRecord]:
        """The listed records that are not known, taken from the snapshots of their days where there are some."""
        wanted = [at for at in listed if at not in known and self._layout.record(*at) not in self._useless]
        days = [day for day in {day for day, _ in wanted} if found is not None and day in found.days]
        records: list[SignedRecord] = []
        for day in days:  # one after another: anybody may have made them large
            records += self._first_good("day", found.days[day], known)[1] if found is not None else []
        had = set(map(_place, records))
        return records + in_parallel(self._record, [at for at in wanted if at not in had])

    def _first_good(
        self, kind: str, names: Sequence[SnapshotName], known: Collection[tuple[str, str]]
    ) -> tuple[SnapshotName | None, list[SignedRecord]]:
        for name in names:
            if name.key in self._useless:
                continue
            try:
                arriving = self._storage.stream(name.key, limit=snapshots.SNAPSHOT_MAX)
                content = snapshots.received(arriving, self._trusted)
                return name, snapshots.decode(content, self._layout, kind, name, self._trusted, known)
            except (PackError, FleetMissing) as error:
                self._refuse(name.key, error)
        return None, []

    def _record(self, place: tuple[str, str]) -> list[SignedRecord]:
        key = self._layout.record(*place)
        try:
            raw = self._storage.get(key, limit=RECORD_MAX).content
            record = pack_records.read(raw, place[0], self._layout.scope, self._trusted)
            if record.record.pack != place[1]:
                raise PackError("is the record of another pack")
        except (PackError, FleetMissing) as error:
            self._refuse(key, error)
            return []
        return [record]

    def _refuse(self, key: str, error: Exception) -> None:
        self._useless.add(key)
        if not isinstance(error, FleetMissing):
            log.info("%s: ignored: %s", key, error)
            self._refused.append(f"{key}: ignored: {error}")

    def _tell_refused(self) -> None:
        """Warn in one line: a bucket may hold thousands of records of a key that is not trusted here."""
        refused, self._refused = self._refused, []
        if refused:
            log.warning("%s%s", refused[0], f"; in all, {len(refused):,} objects are ignored" * (len(refused) > 1))


def load(
    reader: RecordReader,
    path: Path,
    bans: Bans,
    source: bytes,
    retention: Callable[[], int],
    check_answers: Callable[[], None],
) -> Loaded:
    """Bring the index at `path` up to date. An index of another source (`source_of`) is rebuilt from nothing.

    `check_answers` is called when a bucket seems to be empty, and may raise.
    """

    def keep(reference: PackReference) -> bool:
        return reference not in bans and reference.day >= oldest and found.still_has(reference)

    base, now = KeyIndex.open(path), time.time()
    if base is not None and (base.source != source or not base.packs):
        base = None
    known = {one.place for one in base.packs} if base is not None else set()
    if base is None:
        found, kept_days = both(lambda: reader.survey(bans.places), retention)
    else:
        since = day_before(min(base.packs[0].day, day_of(now)))
        found, kept_days = both(lambda: reader.survey_since(since, known | bans.places), retention)
    if not found.days:
        check_answers()
    days = [one.day for one in found.records] + [day for day, _ in known]
    # Neither a clock that is ahead nor a made-up day may make good records look old.
    oldest = day_before(min(max(days), day_of(now)), kept_days + 1) if days else ""
    if base is not None and not found.records and all(map(keep, base.packs)):
        key_index.touch(path, now)
    else:
        key_index.write(path, found.records, base, source=source, loaded=now, keep=keep)
    bans.forget_before(oldest)
    index = KeyIndex.open(path)
    assert index is not None
    return Loaded(len(found.records), len(index.packs), len(index))


def source_of(url: str, scope: str, trusted: Collection[bytes]) -> bytes:
    """A digest of what an index depends on besides the bucket: with one more trusted key, every record is reread."""
    return blake3(b"\0".join([url.encode(), scope.encode(), *sorted(trusted)])).digest()


def _place(record: SignedRecord) -> tuple[str, str]:
    return record.day, record.record.pack
