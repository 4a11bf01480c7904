"""What is wrong with a mount, if anything, in words: for the top of every live view."""

from __future__ import annotations

from kcachefs.core.report import FleetNumbers, StoreNumbers
from kcachefs.live.view import Concern, Headline

NEAR_FULL = 0.95
"""The share of its quota at which a store counts as full; newer daemons report themselves whether there is room."""


def is_full(store: StoreNumbers) -> bool:
    """Whether each new entry takes the place of an old one."""
    if store.room_bytes is not None:
        return store.room_bytes <= 0
    return bool(store.max_bytes) and store.used_bytes >= NEAR_FULL * store.max_bytes


def concerns(headline: Headline, fleet: FleetNumbers | None = None) -> list[Concern]:
    """The concerns, gravest first; none where all is well."""
    found: list[Concern] = []
    week = headline.week
    if headline.state == "silent":
        found.append(Concern("silent", f"The daemon does not answer: {headline.why}", grave=True))
    if headline.state == "dead":
        found.append(Concern("silent", f"The daemon is gone. Mount it again: {_remount(headline)}", grave=True))
    if headline.trouble:
        words = (
            f"Nothing can be written to the store ({headline.trouble}). Check its disk; what is stored is still served."
        )
        found.append(Concern("trouble", words, grave=True))
    if headline.damaged:
        entries = "object was" if headline.damaged == 1 else "objects were"
        words = f"{headline.damaged:,} damaged {entries} set aside; check the disk, then run kcachefs fsck."
        found.append(Concern("damage", words, grave=True))
    if week.remade:
        entries = "entry was" if week.remade == 1 else "entries were"
        words = (
            f"The quota is too small: {week.remade:,} {entries} compiled again this week after being evicted for room."
        )
        found.append(Concern("thrashing", words))
    elif headline.is_full:
        words = (
            "The store is full, so the least recently used entries are evicted; none has had to be compiled again yet."
        )
        found.append(Concern("full", words))
    if headline.state == "unsupervised":
        found.append(
            Concern("restarts", "The supervisor is gone: a worker that dies will not be replaced.", grave=True)
        )
    if headline.restarts:
        times = "once" if headline.restarts == 1 else f"{headline.restarts:,} times"
        why = f" (last: {headline.last_exit})" if headline.last_exit else ""
        found.append(Concern("restarts", f"The worker was replaced {times} after a failure{why}."))
    if fleet is not None and fleet.state != "ready":
        found.append(Concern("fleet", f"The fleet is {fleet.state}" + (f": {fleet.why}." if fleet.why else ".")))
    elif fleet is not None and fleet.queue and fleet.publish_why:
        entries = "entry waits" if fleet.queue == 1 else "entries wait"
        words = f"Nothing is published to the fleet, and {fleet.queue:,} {entries}: {fleet.publish_why}."
        found.append(Concern("fleet", words))
    return sorted(found, key=lambda one: not one.grave)


def _remount(headline: Headline) -> str:
    return f"kcachefs mount {headline.mountpoint}" + (f" --store {headline.store}" if headline.store else "")
