"""The names of the objects in a bucket. docs/fleet.md shows them in a picture.

Each day is a folder, so that a listing can start at a given day on every store. Days are by the store's own clock: a
node whose clock is wrong still writes where others look.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from kcachefs.fleet.object_storage import Storage
from kcachefs.fleet.scopes import checked, is_scope

SETTINGS = "settings.json"
"""The settings lie outside the folder from which the bucket's own rule deletes."""
OBJECTS = "v1/"
"""The folder from which that rule deletes old objects."""
_DAY = re.compile(r"2\d{3}-\d\d-\d\d", re.ASCII)
"""Days of this millennium only, so that date arithmetic works even on a made-up day."""
_SNAPSHOT = re.compile(r"(day|until)/(\d{4}-\d\d-\d\d)/(\d{8})-[0-9a-f]{16}")


class SnapshotName(NamedTuple):
    """What the name of a snapshot says."""

    key: str
    day: str
    records: int
    """How many records the snapshot holds."""


class Layout:
    """The keys of the objects of one scope."""

    def __init__(self, scope: str) -> None:
        self.scope = checked(scope)
        self.root = f"{OBJECTS}{scope}/"
        self.records = f"{self.root}records/"
        self.snapshots = f"{self.root}snapshots/"
        self.packs = f"{self.root}packs/"
        self.claims = f"{self.root}claims/"

    def pack(self, day: str, pack: str) -> str:
        return f"{self.packs}{day}/{pack}.kcp"

    def record(self, day: str, pack: str) -> str:
        return f"{self.records}{day}/{pack}"

    def claim(self, name: str) -> str:
        return f"{self.claims}{name}"

    def snapshot(self, kind: str, day: str, count: int, digest: str) -> str:
        """`kind` is `day`, for the records of one day, or `until`, for those of all days up to one."""
        return f"{self.snapshots}{kind}/{day}/{count:08}-{digest[:16]}"

    def placed(self, key: str) -> tuple[str, str] | None:
        """The day and the pack of a record's or a pack's key; None if it is neither."""
        parts = key.removeprefix(self.root).split("/")
        if len(parts) != 3 or parts[0] not in ("records", "packs") or not is_day(parts[1]):
            return None
        pack = parts[2].removesuffix(".kcp")
        return (parts[1], pack) if re.fullmatch(r"[0-9a-f]{32}", pack) else None

    def snapshot_name(self, key: str) -> tuple[str, SnapshotName] | None:
        """The kind of a snapshot and what its name says; None if the key belongs to something else."""
        told = _SNAPSHOT.fullmatch(key.removeprefix(self.snapshots))
        return (told[1], SnapshotName(key, told[2], int(told[3]))) if told and is_day(told[2]) else None


def is_day(text: str) -> bool:
    if not _DAY.fullmatch(text):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def day_of(seconds: float) -> str:
    """The day of a time in seconds since 1970.

    >>> day_of(0)
    '1970-01-01'
    """
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def day_before(day: str, days: int = 1) -> str:
    """
    >>> day_before("2026-03-01"), day_before("2026-03-01", -31)
    ('2026-02-28', '2026-04-01')
    """
    return (date.fromisoformat(day) - timedelta(days=days)).isoformat()


def scopes_in(storage: Storage) -> list[str]:
    """The scopes in a bucket, leaving out folders that somebody else put there."""
    return [name for name in storage.folders(OBJECTS) if is_scope(name)]
