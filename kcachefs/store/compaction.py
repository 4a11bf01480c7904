"""Compaction: copies the live objects of a mostly dead volume to the active one, and removes the volume.

Runs in any thread, alongside readers and writers. A reader that still has the old place finds the volume gone, looks
the object up again and finds the new place. Copying does not decode: a later read finds damage, as always.

The copies are synced before any record points to them, because the record may survive a power cut without the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from kcachefs.errors import ObjectDamaged, RecordDamaged
from kcachefs.store.catalog import Catalog
from kcachefs.store.frames import TRAILER, Trailer, check_tail, decode_trailer, tail_length
from kcachefs.store.ledger import Staged, read_totals
from kcachefs.store.object_records import TOTALS_KEY, ObjectRecord, VolumeRecord, object_key, volume_key
from kcachefs.store.objects import Objects
from kcachefs.store.records import number_of
from kcachefs.store.volumes import Volumes


def sparse_volumes(catalog: Catalog, share: float) -> Iterator[tuple[int, int]]:
    """Closed volumes with less than `share` of their bytes alive, or none, each with its live bytes. Fold first."""
    for number, record in volume_records(catalog):
        if record.flags & VolumeRecord.CLOSED and (not record.live or record.live < record.size * share):
            yield number, record.live


def volume_records(catalog: Catalog) -> Iterator[tuple[int, VolumeRecord]]:
    """The numbers of all volumes, with their records as far as they are intact. Fold first."""
    for key, raw in catalog.walk(b"v"):
        if raw is not None:
            yield number_of(key), VolumeRecord.unpack(raw)


def compact(objects: Objects, number: int) -> int:
    """Copy a volume's live objects to the active one; the next fold removes the volume. Returns the bytes freed."""
    try:
        raw = objects.catalog.get(volume_key(number))
    except RecordDamaged:
        return 0
    if raw is None or number == objects.volumes.active or objects.volumes.staged[number]:
        return 0
    before = VolumeRecord.unpack(raw)
    _move_all(objects, number)
    with objects.catalog.transaction() as txn:
        raw = txn.get(volume_key(number))
        if raw is None:  # deleted along with the last object that was moved
            return before.size - before.live
        volume = VolumeRecord.unpack(raw)
        if volume.live:
            return 0
        totals = read_totals(txn)
        totals.volumes -= volume.size
        txn.put(TOTALS_KEY, totals.pack())
        txn.delete(volume_key(number))
        return before.size - before.live


def trailers(volumes: Volumes, number: int) -> Iterator[tuple[int, Trailer]]:
    """Offset and trailer of everything ever appended to a volume, last first. ObjectDamaged where the chain breaks."""
    end = volumes.size(number)
    while end > 0:
        trailer = decode_trailer(volumes.read(number, max(0, end - TRAILER.size), TRAILER.size))
        length = tail_length(trailer.frames)
        if length > end or trailer.length > end:
            raise ObjectDamaged("no object ends here")
        check_tail(volumes.read(number, end - length, length))
        end -= trailer.length
        yield end, trailer


def digests_in(objects: Objects, number: int) -> list[bytes]:
    """Digests of all objects ever in a volume; if its trailers are damaged, of those that the catalog places there."""
    try:
        return [trailer.digest for _, trailer in trailers(objects.volumes, number)]
    except (ObjectDamaged, OSError):
        objects.catalog.fold()
        records = ((key[1:], raw) for key, raw in objects.catalog.walk(b"o") if raw is not None)
        return [digest for digest, raw in records if ObjectRecord.unpack(raw).volume == number]


def _move_all(objects: Objects, number: int) -> None:
    """Copy the live objects of a volume, and point their records to the copies. On a full disk, move as many as fit."""
    copies: list[tuple[ObjectRecord, Staged]] = []
    try:
        for digest in digests_in(objects, number):
            record = objects.record(digest)
            if record is not None and record.volume == number and record.length:
                copy = _copy(objects, digest, record)
                if copy is not None:
                    copies.append((record, copy))
    finally:
        try:
            objects.volumes.sync()
            for record, copy in copies:
                _refer(objects, record, copy)
        finally:
            for _, copy in copies:
                objects.volumes.unstage(copy.volume)


def _copy(objects: Objects, digest: bytes, record: ObjectRecord) -> Staged | None:
    """Copy an object to the active volume; None if its bytes are damaged."""
    if record.flags & ObjectRecord.DAMAGED:
        _give_up_bytes(objects, digest, record)
        return None
    try:
        stored = objects.volumes.read(record.volume, record.offset, record.length)
    except (ObjectDamaged, FileNotFoundError) as error:
        objects.set_aside(digest, record, error)
        return None
    volume, offset = objects.ledger.append([stored])
    is_packed = bool(record.flags & ObjectRecord.PACKED)
    return Staged(digest, record.plain, volume, offset, record.length, record.frames, is_packed=is_packed)


def _refer(objects: Objects, record: ObjectRecord, copy: Staged) -> None:
    """Point an object's record to its copy, unless the object was moved or deleted since."""
    with objects.catalog.transaction() as txn:
        raw = txn.get(object_key(copy.digest))
        current = ObjectRecord.unpack(raw) if raw is not None else None
        if current is not None and current.place == record.place:
            totals = read_totals(txn)
            txn.put(object_key(copy.digest), objects.ledger.place(txn, copy, totals, current).pack())
            txn.put(TOTALS_KEY, totals.pack())


def _give_up_bytes(objects: Objects, digest: bytes, record: ObjectRecord) -> None:
    # The quarantine has a copy. The record stays, without bytes, so that a reader of the object gets an error.
    with objects.catalog.transaction() as txn:
        raw = txn.get(object_key(digest))
        current = ObjectRecord.unpack(raw) if raw is not None else None
        if current is None or current.place != record.place:
            return
        totals = read_totals(txn)
        objects.ledger.release(txn, current, totals)
        current.length = 0
        txn.put(object_key(digest), current.pack())
        txn.put(TOTALS_KEY, totals.pack())
