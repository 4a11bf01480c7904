"""Makes the snapshots that are due in a bucket. Publishers do this after publishing; nothing depends on it."""

from __future__ import annotations

from collections.abc import Sequence

from kcachefs.fleet import snapshots
from kcachefs.fleet.bucket import Bucket
from kcachefs.fleet.bucket_layout import day_before
from kcachefs.fleet.claims import Claims
from kcachefs.fleet.pack_records import SignedRecord
from kcachefs.fleet.signing import Signer
from kcachefs.fleet.snapshots import SNAPSHOT_AFTER

_OPEN_DAYS = 2
"""A publisher that began shortly before midnight may still write into yesterday; nobody writes into earlier days."""


def make_due(bucket: Bucket, claims: Claims, signer: Signer, today: str) -> None:
    """Make a snapshot of today if many of its records are in none; and once a day, one of all days that are over."""
    found = bucket.reader.existing_snapshots()
    listed, recorded = len(bucket.reader.listed(today)), max([one.records for one in found.days.get(today, [])] or [0])
    due = listed - recorded >= SNAPSHOT_AFTER
    if due and claims.take(f"day-{today}-{listed // SNAPSHOT_AFTER}") is not None:
        _put(bucket, signer, "day", today, bucket.reader.of_day(today, found))
    closed, last = day_before(today, _OPEN_DAYS), found.until[0].day if found.until else ""
    due = any(last < day <= closed for day in bucket.reader.days())
    if due and claims.take(f"until-{closed}") is not None:
        oldest = day_before(today, bucket.settings.days)
        records = [one for one in bucket.reader.survey().records if oldest <= one.day <= closed]
        _put(bucket, signer, "until", closed, records)


def _put(bucket: Bucket, signer: Signer, kind: str, day: str, records: Sequence[SignedRecord]) -> None:
    if not records:
        return
    content = snapshots.encode(records, signer, bucket.layout, kind, day)
    if len(content) <= snapshots.SNAPSHOT_MAX:
        key = bucket.layout.snapshot(kind, day, len(records), snapshots.digest(content))
        bucket.storage.put(key, content, if_absent=True)
