"""Repacking: compresses objects that have come to rest once more, with more effort, into volumes of their own.

Sealing has to be quick, because programs wait for room, so it compresses lightly. Objects that still exist when the
store rests are compressed again at `LEVEL`, with a dictionary of the bytes they share (`dictionaries.py`). This takes
far longer to encode and no longer to decode (benchmarks/README.md). Volumes are repacked as a whole: everything alive
in them goes to a new volume, and the next fold removes the old ones. Small volumes that were repacked before are merged
on the way, so that a store that rests often does not end up with many.

`repack` is a generator and works in steps of a frame, a page of records or a transaction: its caller decides before
each step whether the machine has time for it, and may give up at any point. One thread at a time may run it, alongside
readers and writers.

A kill loses only the volume that was being written: opening the store removes it, and the next call goes on with the
objects that are left. The new volume is synced before any record points to it, as in compaction. An object's length is
counted for every file that has it, so the transaction that moves an object corrects those counts as well. A walk over
all inodes, once for each batch, finds these files.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from kcachefs.errors import ObjectDamaged, RecordDamaged
from kcachefs.store.compaction import digests_in, trailers, volume_records
from kcachefs.store.descriptor import Descriptor
from kcachefs.store.dictionaries import SAMPLE_SIZE, SAMPLES_MAX, SAMPLES_MIN
from kcachefs.store.entry_table import EntryTable
from kcachefs.store.frames import Codec, encode_tail, frame_check
from kcachefs.store.ledger import Staged, read_totals
from kcachefs.store.object_records import TOTALS_KEY, ObjectRecord, VolumeRecord, object_key, volume_key
from kcachefs.store.objects import SHARED_MAX, Objects, write_all
from kcachefs.store.records import INODE_DIGEST, Content, Inode, inode_key, number_of

LEVEL = 19
REST_SECONDS = 60.0
"""A volume rests once nothing was appended to it for this long: objects deleted sooner are not worth the effort."""
BATCH = 4 << 20
"""Stored bytes that are repacked at a time: a kill loses this much work, and repacking needs this much extra room."""
_PAGE = 256

Steps = Generator[None, None, None]
Attempts = dict[int, tuple[int, int]]
"""By volume: its live bytes after the last attempt, and how many attempts in a row have left it with that many."""
ATTEMPTS_MAX = 3
"""Objects left behind by this many attempts are damaged, and are left alone until their volume changes."""


@dataclass(slots=True)
class _Batch:
    """Volumes to repack together, and the copies made of the objects in them."""

    volumes: list[int]
    dictionary: int = 0
    """The number of the dictionary to use."""
    copies: list[tuple[ObjectRecord, Staged]] = field(default_factory=list)
    begun: dict[int, int] = field(default_factory=dict)
    """The new volumes, and how many bytes each one has."""
    descriptors: dict[int, Descriptor] = field(default_factory=dict)
    """Descriptors for writing the new volumes, by volume."""


def repack(
    objects: Objects,
    attempts: Attempts,
    rest_seconds: float = REST_SECONDS,
    room: Callable[[], int] = lambda: 1 << 62,
    level: int = LEVEL,
) -> Steps:
    """Repack everything that rests; returns when there is nothing left to do.

    The caller keeps `attempts` from one call to the next. `room` says how many bytes the copies may take.
    """
    codec, table = Codec(level, objects.dictionaries), EntryTable(objects.catalog)
    tried: set[int] = set()
    while batch := _next_batch(objects, attempts, tried, rest_seconds, room()):
        tried.update(batch.volumes)
        yield from _learn(objects)
        batch.dictionary = objects.dictionaries.newest()
        try:
            yield from _copy_all(objects, codec, batch)
            yield from _refer_all(objects, table, batch)
        finally:
            for number in batch.begun:
                objects.volumes.unstage(number)
                objects.ledger.settle(number)
        objects.catalog.fold()
        _note_attempts(objects, attempts, batch)


def unpacked_bytes(objects: Objects) -> int:
    """Stored bytes that `repack` would still look at. Fold first."""
    return sum(record.live for _, record in volume_records(objects.catalog) if not record.flags & VolumeRecord.PACKED)


# --- what to repack ---------------------------------------------------------------------------------------------------


def _next_batch(objects: Objects, attempts: Attempts, tried: set[int], rest_seconds: float, room: int) -> _Batch | None:
    """Resting volumes that were never repacked, and small repacked ones, each no larger than the batch before it."""
    objects.catalog.fold()
    chosen, size = [], 0
    packed: list[tuple[int, int]] = []
    for number, record in list(volume_records(objects.catalog)):
        if number in tried or not record.live or objects.volumes.staged[number] or record.live + size > room:
            continue
        if attempts.get(number) == (record.live, ATTEMPTS_MAX):
            continue
        if record.flags & VolumeRecord.PACKED:
            if record.size < BATCH and not _is_large_object(objects, number, record.size):
                packed.append((record.live, number))
        elif size < BATCH and _rests(objects, number, rest_seconds):
            chosen.append(number)
            size += record.live
    if not chosen:
        return None
    for live, number in sorted(packed):
        if live <= size and live + size <= min(room, 2 * BATCH):
            chosen.append(number)
            size += live
    if objects.volumes.active in chosen:
        objects.ledger.retire()
    return _Batch(chosen)


def _note_attempts(objects: Objects, attempts: Attempts, batch: _Batch) -> None:
    for number in batch.volumes:
        live, count = attempts.pop(number, (-1, 0))
        with contextlib.suppress(RecordDamaged):
            if (raw := objects.catalog.get(volume_key(number))) is not None:
                left = VolumeRecord.unpack(raw).live
                attempts[number] = left, count + 1 if left == live else 1


def _is_large_object(objects: Objects, number: int, size: int) -> bool:
    """Whether a volume holds a single object that is too large to share one."""
    if size <= SHARED_MAX:
        return False
    try:
        return next(trailers(objects.volumes, number))[0] == 0
    except (ObjectDamaged, FileNotFoundError):
        return True


def _rests(objects: Objects, number: int, seconds: float) -> bool:
    try:
        return abs(time.time() - os.stat(objects.volumes.path(number)).st_mtime) >= seconds
    except FileNotFoundError:
        return False


# --- copying ----------------------------------------------------------------------------------------------------------


def _learn(objects: Objects) -> Steps:
    """Make a dictionary from samples of the store's objects, if it has none that fits its size."""
    plain = objects.totals().plain
    if not objects.dictionaries.is_due(plain):
        return
    samples: list[bytes] = []
    size = 0
    for key, raw in objects.catalog.walk(b"o"):  # in the order of digests: any stretch of it is a fair sample
        record = ObjectRecord.unpack(raw) if raw is not None else None
        if record is None or not record.plain or record.flags & ObjectRecord.DAMAGED:
            continue
        with contextlib.suppress(ObjectDamaged, FileNotFoundError):
            samples.append(objects.frames.read(key[1:], record, 0)[:SAMPLE_SIZE])
            size += len(samples[-1])
        if size >= SAMPLES_MAX:
            break
        yield
    if size >= SAMPLES_MIN:
        objects.dictionaries.learn(samples, plain)


def _copy_all(objects: Objects, codec: Codec, batch: _Batch) -> Steps:
    """Write every object of the batch to new volumes: small ones together, each large one to its own."""
    shared = -1
    # Each digest once: bytes that were deleted and stored again are in a volume twice.
    for digest in dict.fromkeys(digest for number in batch.volumes for digest in digests_in(objects, number)):
        record = objects.record(digest)
        if record is None or record.volume not in batch.volumes or record.flags & ObjectRecord.DAMAGED:
            continue
        try:
            if record.length > SHARED_MAX:
                yield from _copy_large(objects, codec, batch, digest, record)
                continue
            parts: list[bytes] = []
            for part in _encode(objects, codec, digest, record, batch.dictionary):
                parts.append(part)
                yield
        except (
            ObjectDamaged,
            RecordDamaged,
            FileNotFoundError,
        ):  # the object was moved, or it is damaged, and then the next read reports it
            continue
        shared = shared if shared >= 0 else _begin(objects, batch)
        offset = batch.begun[shared]
        _append(objects, batch, shared, b"".join(parts))
        _note_copy(batch, digest, record, shared, offset)
    objects.volumes.mark_unsynced(batch.begun)
    objects.volumes.sync()


def _copy_large(objects: Objects, codec: Codec, batch: _Batch, digest: bytes, record: ObjectRecord) -> Steps:
    """Write an object to a volume of its own, frame by frame. An incompressible one stays where it is."""
    if objects.frames.is_incompressible(digest, record):
        _mark_packed(objects, digest, record)
        return
    number = _begin(objects, batch)
    try:
        for part in _encode(objects, codec, digest, record, batch.dictionary):
            _append(objects, batch, number, part)
            yield
    except (ObjectDamaged, RecordDamaged, FileNotFoundError):
        del batch.begun[number], batch.descriptors[number]
        objects.volumes.unstage(number)
        objects.volumes.abandon(number)
        raise
    _note_copy(batch, digest, record, number, 0)


def _encode(objects: Objects, codec: Codec, digest: bytes, record: ObjectRecord, dictionary: int) -> Iterator[bytes]:
    """An object as it will be stored: its frames, then its tail. A frame that would not shrink stays as it is."""
    rows: list[tuple[int, bytes]] = []
    for index in range(record.frames):
        plain, before = objects.frames.read_both(digest, record, index)
        after = before
        if len(before) < len(plain) and not record.flags & ObjectRecord.PACKED:
            after = min(codec.encode_frame(plain, dictionary), before, key=len)
        rows.append((len(after), frame_check(plain, after) if record.frames > 1 else b""))
        yield after
    yield encode_tail(digest, record.plain, rows)


def _begin(objects: Objects, batch: _Batch) -> int:
    number = objects.ledger.reserve()
    batch.descriptors[number] = Descriptor(objects.volumes.begin(number))
    objects.volumes.stage(number)  # so that deleting the first object in the volume does not remove the volume
    batch.begun[number] = 0
    return number


def _append(objects: Objects, batch: _Batch, number: int, data: bytes) -> None:
    write_all(batch.descriptors[number].fd, data, objects.volumes.path(number))
    batch.begun[number] += len(data)


def _note_copy(batch: _Batch, digest: bytes, record: ObjectRecord, number: int, offset: int) -> None:
    length = batch.begun[number] - offset
    copy = Staged(digest, record.plain, number, offset, length, record.frames, own_volume=True, is_packed=True)
    batch.copies.append((record, copy))


def _mark_packed(objects: Objects, digest: bytes, record: ObjectRecord) -> None:
    """Record that repacking gains nothing for an object with a volume of its own."""
    with objects.catalog.transaction() as txn:
        raw, volume = txn.get(object_key(digest)), txn.get(volume_key(record.volume))
        if raw is None or volume is None or (current := ObjectRecord.unpack(raw)).place != record.place:
            return
        current.flags |= ObjectRecord.PACKED
        whole = VolumeRecord.unpack(volume)
        whole.flags |= VolumeRecord.PACKED
        txn.put(object_key(digest), current.pack())
        txn.put(volume_key(record.volume), whole.pack())


# --- referring to the copies ------------------------------------------------------------------------------------------


def _refer_all(objects: Objects, table: EntryTable, batch: _Batch) -> Steps:
    """Record the new volumes, and point the objects' records to the copies."""
    if not batch.copies:
        return
    files = yield from _files_of(objects, {copy.digest for _, copy in batch.copies})
    with objects.catalog.transaction() as txn:
        totals = read_totals(txn)
        for number, size in batch.begun.items():
            txn.put(volume_key(number), VolumeRecord(size, 0, VolumeRecord.CLOSED | VolumeRecord.PACKED).pack())
            totals.volumes += size
        txn.put(TOTALS_KEY, totals.pack())
    for record, copy in batch.copies:
        with contextlib.suppress(RecordDamaged):
            _refer(objects, table, record, copy, files.get(copy.digest, []))
        yield


def _files_of(objects: Objects, digests: set[bytes]) -> Generator[None, None, dict[bytes, list[int]]]:
    """The inodes that have each of these objects."""
    files: dict[bytes, list[int]] = {}
    objects.catalog.fold()
    start = inode_key(0)
    while rows := objects.catalog.page(b"i", start, _PAGE):
        for key, raw in rows:
            if raw[INODE_DIGEST] in digests:
                files.setdefault(raw[INODE_DIGEST], []).append(number_of(key))
        start = rows[-1][0] + b"\0"
        yield
    return files


def _refer(objects: Objects, table: EntryTable, record: ObjectRecord, copy: Staged, inos: list[int]) -> None:
    """Point an object's record to its copy, unless it moved or has references that the walk missed."""
    with objects.catalog.transaction() as txn:
        raw = txn.get(object_key(copy.digest))
        current = ObjectRecord.unpack(raw) if raw is not None else None
        if current is None or current.place != record.place or current.flags & ObjectRecord.DAMAGED:
            return
        rows = [(inode_key(ino), row) for ino in inos if (row := txn.get(inode_key(ino))) is not None]
        rows = [(key, row) for key, row in rows if row[INODE_DIGEST] == copy.digest]
        if len(rows) + bool(current.flags & ObjectRecord.HELD) != current.refs:
            return
        totals = read_totals(txn)
        txn.put(object_key(copy.digest), objects.ledger.place(txn, copy, totals, current).pack())
        txn.put(TOTALS_KEY, totals.pack())
        for key, row in rows:
            txn.put(key, row)  # unchanged: it shows observers of the catalog whose account the new length affects
            inode = Inode.unpack(row)
            if inode.entry and inode.content == Content.OBJECT:
                table.resize_file(txn, inode.entry, inode.uid, copy.length - current.length)
