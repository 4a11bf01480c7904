"""What a mount reports: statistics as data, of the whole mount or of one user, and what "saved" means.

Bytes *saved* are how much less the store takes on disk than its files hold. A file that is not sealed yet counts on
both sides with what it takes: it is neither saved nor lost. `stats`, `status`, `run` and the metrics show that number.
"""

from __future__ import annotations

import contextlib
import time
from typing import NamedTuple

import msgspec

from kcachefs.core.namespaces import Namespaces, Row
from kcachefs.core.request_times import Latency
from kcachefs.core.user_eviction import HIGH_WATER
from kcachefs.errors import RecordDamaged
from kcachefs.store import Store
from kcachefs.store.entry_records import NamespaceRecord
from kcachefs.store.records import META_RESET, unpack_number


class Numbers(msgspec.Struct, frozen=True):
    """Statistics of a namespace, or of all."""

    entries: int
    files: int
    plain_bytes: int
    """Bytes as readers see them."""
    stored_bytes: int
    """Bytes that the files take, compressed; bytes that several files share count for each of them."""
    compression_ratio: float
    hits: int
    misses: int
    hit_rate: float
    bytes_served: int
    """Plain bytes of the entries that were hit, counted with each hit."""
    evictions: int
    evicted_bytes: int
    last_used: float
    """Seconds since 1970, or 0."""


class StoreNumbers(msgspec.Struct, frozen=True):
    """Statistics of the store beneath."""

    objects: int
    unique_bytes: int
    """Plain bytes; those that several files share are counted once."""
    referenced_bytes: int
    """Plain bytes, counted once per file."""
    dedup_ratio: float
    used_bytes: int
    """What the store takes on disk, everything counted."""
    unsealed_bytes: int
    """The part of `used_bytes` that unsealed files take."""
    max_bytes: int
    bytes_saved: int
    """How much less the store takes than its files hold; unsealed files count as holding what they take."""
    nameless: int
    """Files without a name that somebody has open."""
    damaged: int
    payload_bytes: int = 0
    """The part of `used_bytes` that holds the content of files."""
    overhead_bytes: int = 0
    """The part of `used_bytes` that records, dictionaries and history take."""
    slack_bytes: int = 0
    """The part of `used_bytes` that holds nothing: deleted objects, and space kept for files to come."""
    room_bytes: int | None = None
    """Bytes that can be added before anything is evicted, by the quota and the disk; None from older daemons."""
    room_files: int | None = None
    """The same for files; None if their number has no limit, from older daemons, and for one user's own numbers."""
    room_bytes_of_owner: int | None = None
    """Bytes that the mount's owner can add before their entries are evicted; None where users have no quotas."""
    room_bytes_below_ceilings: dict[str, int] = {}
    """For each namespace that has a ceiling: bytes that can be added before its entries are evicted."""
    trouble: str = ""
    """Why nothing can be written to the store; empty if all is well. For those who may see the whole mount."""


class FleetNumbers(msgspec.Struct, kw_only=True):
    """What a mount reports of its fleet. Counts begin with the worker, those of the bucket with the agent."""

    state: str = "offline"
    """`ready`; `closed` for a while after a fault; or `offline`: no agent runs."""
    why: str = ""
    """What failed last."""
    index_age: float = -1.0
    """Seconds since the index was loaded; -1: there is none."""
    index_keys: int = 0
    index_packs: int = 0
    hits: int = 0
    """Entries that somebody waited for, and that came."""
    given_up: int = 0
    """Packs that were asked for and did not come."""
    packs: int = 0
    entries: int = 0
    """Entries brought in, asked for or not."""
    bytes: int = 0
    waited_seconds: float = 0.0
    saved_seconds: float = 0.0
    """What compiling the hits took elsewhere, less the time that lookups waited for them."""
    requests: int = 0
    """Requests to the bucket."""
    fetched_bytes: int = 0
    published: int = 0
    """Packs published."""
    queue: int = 0
    """Entries that wait to be published."""
    publish_why: str = ""
    """Why the last offer was not published; empty if it was."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker did since it started, and what it keeps. For those who may see the whole mount."""

    latencies: dict[str, Latency]
    """By kind of request."""
    evictions: dict[str, int]
    """Entries that went, by reason; has every one of `EVICTION_REASONS`."""
    remade: int
    """Entries compiled again after they had been evicted to make room."""
    seconds_compiled: float
    """The cost of the entries that were made, as far as it is known."""
    seconds_saved: float
    """The cost of the entries that were hit, as far as it is known."""
    store_bytes: dict[str, int]
    """What the store takes on disk, by kind of data."""
    frames_cached: int
    """Decoded frames kept in memory."""
    frames_cached_bytes: int
    waiting_for_sealing: int
    """Files that were written and wait to be sealed."""


class Statistics(msgspec.Struct, frozen=True):
    """Everything that `kcachefs stats` shows."""

    total: Numbers
    store: StoreNumbers
    namespaces: dict[str, Numbers]
    requests: dict[str, int]
    fleet: FleetNumbers | None = None
    """If the mount is in a fleet; only for those who may see the whole mount."""
    since: float = 0.0
    """When hits, misses and evictions were last counted from 0, in seconds since 1970; 0: when the store was made."""
    activity: Activity | None = None
    """For those who may see the whole mount."""


class RoomNumbers(NamedTuple):
    """What can be added before anything is evicted, as `StoreNumbers` has it."""

    bytes: int
    files: int | None
    bytes_of_owner: int | None
    bytes_below_ceilings: dict[str, int]


def counted_since(store: Store) -> float:
    """When hits, misses and evictions were last counted from 0, in seconds since 1970; 0 if nobody knows."""
    with contextlib.suppress(RecordDamaged):
        raw = store.catalog.get(META_RESET)
        since = unpack_number(raw) / 1e9 if raw is not None else 0.0
        if since <= time.time():  # else the clock was set back since
            return since
    return 0.0


def statistics(
    store: Store,
    namespaces: Namespaces,
    max_size: int,
    nameless: int,
    room: RoomNumbers,
    requests: dict[str, int],
    fleet: FleetNumbers | None = None,
    activity: Activity | None = None,
) -> Statistics:
    """The numbers as they are now."""
    rows, total = _by_label(namespaces.rows())
    totals = store.objects.totals()
    used, unsealed, parts = store.used_bytes(), store.unsealed_bytes(), store.parts()
    return Statistics(
        total=_numbers(total),
        store=StoreNumbers(
            objects=totals.objects,
            unique_bytes=totals.plain,
            referenced_bytes=totals.referenced,
            dedup_ratio=round(totals.referenced / totals.plain, 3) if totals.plain else 1.0,
            used_bytes=used,
            unsealed_bytes=unsealed,
            max_bytes=max_size,
            bytes_saved=saved(totals.referenced + unsealed, used),
            nameless=nameless,
            damaged=store.objects.damaged,
            payload_bytes=parts.payload,
            overhead_bytes=parts.overhead,
            slack_bytes=parts.slack,
            room_bytes=room.bytes,
            room_files=room.files,
            room_bytes_of_owner=room.bytes_of_owner,
            room_bytes_below_ceilings=room.bytes_below_ceilings,
            trouble=store.catalog.trouble,
        ),
        namespaces={label or "/": _numbers(record) for label, record in rows.items()},
        requests=requests,
        fleet=fleet,
        since=counted_since(store),
        activity=activity,
    )


def saved(plain: int, taken: int) -> int:
    """Bytes saved by something that holds `plain` bytes and takes `taken` on disk."""
    return max(0, plain - taken)


def statistics_of(uid: int, namespaces: Namespaces, max_size: int, unsealed: int = 0, since: float = 0.0) -> Statistics:
    """What one user may know: the numbers of what that user made, as if nobody else were there.

    Nothing in them changes with what others store: sizes are those of the user's own files, compressed, whether or not
    the same bytes were there already. `unsealed` is what the user's unsealed files take.
    """
    rows, total = _by_label(namespaces.rows_of(uid))
    return Statistics(
        total=_numbers(total),
        store=StoreNumbers(
            objects=total.files,
            unique_bytes=total.plain,
            referenced_bytes=total.plain,
            dedup_ratio=1.0,
            used_bytes=total.stored + unsealed,
            unsealed_bytes=unsealed,
            max_bytes=max_size,
            bytes_saved=saved(total.plain, total.stored),
            damaged=0,
            nameless=0,
            payload_bytes=total.stored,
            room_bytes=int(max_size * HIGH_WATER) - total.stored - unsealed,
        ),
        namespaces={label or "/": _numbers(record) for label, record in rows.items()},
        requests={},
        since=since,
    )


def added(one: Numbers, other: Numbers) -> Numbers:
    """Two namespaces as if they were one."""
    both = {
        name: getattr(one, name) + getattr(other, name)
        for name in ("entries", "files", "plain_bytes", "stored_bytes", "hits", "misses")
    }
    uses = both["hits"] + both["misses"]
    return Numbers(
        **both,
        compression_ratio=round(both["plain_bytes"] / both["stored_bytes"], 3) if both["stored_bytes"] else 1.0,
        hit_rate=round(both["hits"] / uses, 4) if uses else 0.0,
        bytes_served=one.bytes_served + other.bytes_served,
        evictions=one.evictions + other.evictions,
        evicted_bytes=one.evicted_bytes + other.evicted_bytes,
        last_used=max(one.last_used, other.last_used),
    )


def _by_label(found: list[Row]) -> tuple[dict[str, NamespaceRecord], NamespaceRecord]:
    """Namespaces added up by name, over every tree that has one; and the sum of all."""
    rows: dict[str, NamespaceRecord] = {}
    total = NamespaceRecord()
    for _, label, record in found:
        if record.entries or record.misses or record.hits:
            _add(rows.setdefault(label, NamespaceRecord()), record)
            _add(total, record)
    return rows, total


def _add(total: NamespaceRecord, record: NamespaceRecord) -> None:
    for name in NamespaceRecord.__slots__:
        if name != "used":
            setattr(total, name, getattr(total, name) + getattr(record, name))
    total.used = max(total.used, record.used)


def _numbers(record: NamespaceRecord) -> Numbers:
    uses = record.hits + record.misses
    return Numbers(
        entries=record.entries,
        files=record.files,
        plain_bytes=record.plain,
        stored_bytes=record.stored,
        compression_ratio=round(record.plain / record.stored, 3) if record.stored else 1.0,
        hits=record.hits,
        misses=record.misses,
        hit_rate=round(record.hits / uses, 4) if uses else 0.0,
        bytes_served=record.served,
        evictions=record.evictions,
        evicted_bytes=record.evicted_bytes,
        last_used=record.used / 1e9,
    )


def as_json(numbers: Statistics) -> bytes:
    return msgspec.json.format(msgspec.json.encode(numbers), indent=2) + b"\n"
