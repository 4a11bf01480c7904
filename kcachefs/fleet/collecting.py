"""Finds the objects of a bucket that its own rule would delete later, and those that nobody can use.

Nothing is deleted here; the caller needs the right to do that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kcachefs.fleet.bucket_layout import Layout
from kcachefs.fleet.object_storage import Stored

_DAY = 86400.0


class Garbage(NamedTuple):
    """An object that can go, and why."""

    stored: Stored
    why: str


def garbage(
    layout: Layout, listed: Iterable[Stored], now: float, days: float, is_there: Callable[[str], bool]
) -> list[Garbage]:
    """Which objects of a scope can go: old ones, and packs, records, snapshots and claims that have become useless.

    `now` is by the store's clock. Objects younger than a day stay: somebody may be publishing them. A record whose pack
    is gone goes at once: it was written after the pack. `is_there` asks the store for a pack, which may have been
    written to a place that the listing had already passed.
    """
    found: list[Garbage] = []
    records: dict[tuple[str, str] | None, Stored] = {}
    known: set[tuple[str, str] | None] = {None}
    packs: list[tuple[tuple[str, str] | None, Stored]] = []
    best: dict[str, tuple[str, int, Stored]] = {}
    for one in listed:
        age, placed, snapshot = (now - one.modified) / _DAY, layout.placed(one.key), layout.snapshot_name(one.key)
        if one.key.startswith(layout.packs):
            known.add(placed)
        if age > days:
            found.append(Garbage(one, f"older than {days:g} days"))
        elif one.key.startswith(layout.records):
            records[placed] = one
        elif one.key.startswith(layout.packs) and age > 1:
            packs.append((placed, one))
        elif one.key.startswith(layout.claims) and age > 1:
            found.append(Garbage(one, "a claim that is over"))
        elif snapshot is not None and age > 1:
            kind, name = snapshot
            which = kind if kind == "until" else name.day
            this = (name.day, name.records, one)
            better, worse = (this, best.get(which)) if best.get(which, this) <= this else (best[which], this)
            best[which] = better
            if worse is not None:
                found.append(Garbage(worse[2], "replaced by a newer snapshot"))
    found += [Garbage(one, "no record names it") for placed, one in packs if placed not in records]
    for at, one in records.items():
        if at is not None and at not in known and not is_there(layout.pack(*at)):
            found.append(Garbage(one, "its pack is gone"))
    return found


def leftovers(unfinished: Iterable[Stored], now: float) -> list[Garbage]:
    """What killed writers left behind. Anything younger than a day stays: somebody may still be writing it."""
    return [Garbage(one, "was never finished") for one in unfinished if now - one.modified > _DAY]
