"""Snapshots: many records in one object, so that a node that starts does not fetch thousands.

A snapshot of a day holds the records of that day so far; one *until* a day holds those of all days up to it. Each
record in it is signed by itself, so whoever makes a snapshot can leave records out, and add none.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import NamedTuple

from blake3 import blake3

from kcachefs.errors import PackError
from kcachefs.fleet import pack_records
from kcachefs.fleet.bucket_layout import Layout, SnapshotName, is_day
from kcachefs.fleet.object_storage import Stored
from kcachefs.fleet.pack_records import SignedRecord

SNAPSHOT_MAX = 256 << 20
"""The most bytes of a snapshot."""
SNAPSHOT_AFTER = 8
"""A day gets a new snapshot when this many of its records are in none."""
_DAY_BYTES = 10

log = logging.getLogger(__name__)


class Snapshots(NamedTuple):
    """The best snapshots that a bucket has."""

    until: SnapshotName | None
    days: dict[str, SnapshotName]

    @property
    def closed(self) -> str:
        """The last day of which nothing but the snapshot needs to be read; empty if there is none."""
        return self.until.day if self.until is not None else ""


def best(layout: Layout, listed: Iterable[Stored]) -> Snapshots:
    """The newest of the snapshots until a day, and of each later day the one with the most records."""
    until: SnapshotName | None = None
    days: dict[str, SnapshotName] = {}
    for stored in listed:
        told = layout.snapshot_name(stored.key)
        if told is None:
            continue
        kind, name = told
        if kind == "until":
            until = max(until or name, name, key=lambda one: (one.day, one.records))
        elif name.day not in days or days[name.day].records < name.records:
            days[name.day] = name
    return Snapshots(until, {day: name for day, name in days.items() if until is None or day > until.day})


def encode(records: Iterable[SignedRecord]) -> bytes:
    """Days and records one after another, in an order that depends on nothing else."""
    return b"".join(one.day.encode() + one.raw for one in sorted(records, key=lambda one: (one.day, one.record.pack)))


def digest(content: bytes) -> str:
    return blake3(content).hexdigest()


def decode(
    content: bytes,
    scope: str,
    trusted: Collection[bytes],
    known: Collection[tuple[str, str]] = frozenset(),
) -> list[SignedRecord]:
    """The records of a snapshot that a trusted key signed, without those that are known by day and pack."""
    records, at, view = [], 0, memoryview(content)
    while at < len(content):
        day = bytes(view[at : at + _DAY_BYTES]).decode("ascii", "replace")
        start = at + _DAY_BYTES
        end = start + pack_records.length_of(view[start:])  # damage here ends the snapshot: PackError
        at = end
        raw = bytes(view[start:end])
        if not is_day(day) or (day, pack_records.pack_in(raw)) in known:
            continue
        try:
            records.append(pack_records.read(raw, day, scope, trusted))
        except PackError as error:
            log.debug("a record of a snapshot %s", error)
    return records
