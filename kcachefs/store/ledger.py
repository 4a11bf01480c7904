"""The ledger: which bytes of which volume belong to which object, and the sums over them.

Records of objects, volumes and totals only ever change together, inside one transaction of the caller's. A function
that takes a transaction runs under the catalog's lock. The ledger also chooses the volume to append to.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from kcachefs.errors import NoSpace, RecordDamaged
from kcachefs.store.catalog import Catalog, Transaction
from kcachefs.store.object_records import (
    META_ACTIVE,
    META_VOLUME,
    TOTALS_KEY,
    ObjectRecord,
    Totals,
    VolumeRecord,
    object_key,
    volume_key,
)
from kcachefs.store.records import META_INO, META_SPOOL, number_of, pack_number, unpack_number
from kcachefs.store.spool import Spool
from kcachefs.store.volumes import Volumes

_NO_TOTALS = Totals().pack()


@dataclass(frozen=True, slots=True)
class Staged:
    """Bytes that wait for `Objects.link`: they were just appended to a volume, or the store had them already."""

    digest: bytes
    plain: int
    volume: int = -1
    offset: int = 0
    length: int = 0
    frames: int = 1
    own_volume: bool = False
    end: bytes = b""
    """The plain bytes of the last frame."""
    is_packed: bool = False
    """Whether the bytes are compressed as far as possible."""

    @property
    def known(self) -> bool:
        """Whether the bytes were in the store already, so that nothing was written."""
        return self.volume < 0


class Ledger:
    """The records of volumes and totals, and the active volume."""

    def __init__(self, catalog: Catalog, volumes: Volumes, volume_size: int) -> None:
        self._catalog = catalog
        self._volumes = volumes
        self._volume_size = volume_size
        self._roll_lock = threading.Lock()
        self._remove_leftovers()
        self._remove_empty()
        self._resume_active()

    # --- inside a transaction -----------------------------------------------------------------------------------------

    def place(self, txn: Transaction, staged: Staged, totals: Totals, old: ObjectRecord | None) -> ObjectRecord:
        """Give an object staged bytes, which replace its `old` bytes if it had any. The caller puts the record."""
        record = ObjectRecord(staged.volume, staged.offset, staged.length, staged.plain, staged.frames, 0)
        if old is None:
            totals.objects += 1
            totals.plain += staged.plain
        else:
            record.refs, record.flags = old.refs, old.flags & ~(ObjectRecord.DAMAGED | ObjectRecord.PACKED)
            self.release(txn, old, totals)
        if staged.is_packed:
            record.flags |= ObjectRecord.PACKED
        key = volume_key(staged.volume)
        raw = txn.get(key)
        volume = VolumeRecord.unpack(raw) if raw is not None else VolumeRecord(0, 0)
        grown = max(volume.size, staged.offset + staged.length) - volume.size
        volume.size += grown
        volume.live += staged.length
        if staged.own_volume:
            volume.flags |= VolumeRecord.CLOSED
        totals.live += staged.length
        totals.volumes += grown
        txn.put(key, volume.pack())
        return record

    def set_references(self, txn: Transaction, digest: bytes, record: ObjectRecord, refs: int) -> None:
        """Set how many references an object has; an object without references is removed."""
        totals = read_totals(txn)
        totals.referenced += record.plain * (refs - record.refs)
        record.refs = refs
        if refs > 0:
            txn.put(object_key(digest), record.pack())
        else:
            txn.delete(object_key(digest))
            totals.objects -= 1
            totals.plain -= record.plain
            self.release(txn, record, totals)
        txn.put(TOTALS_KEY, totals.pack())

    def release(self, txn: Transaction, record: ObjectRecord, totals: Totals) -> None:
        """Count an object's bytes as dead, and remove their volume if it is closed and has nothing alive."""
        totals.live -= record.length
        key = volume_key(record.volume)
        try:
            raw = txn.get(key)
        except RecordDamaged:
            return  # nobody knows what else is alive in the volume: it stays until fsck counts again
        if raw is None:
            return
        volume = VolumeRecord.unpack(raw)
        volume.live -= record.length
        if volume.live == 0 and volume.flags & VolumeRecord.CLOSED and not self._volumes.staged[record.volume]:
            txn.delete(key)
            totals.volumes -= volume.size
        else:
            txn.put(key, volume.pack())

    # --- volumes ------------------------------------------------------------------------------------------------------

    def append(self, parts: Sequence[bytes]) -> tuple[int, int]:
        """Append to the active volume, or to a new one if that is full; returns volume and offset. For any thread."""
        if self._volumes.active < 0 or self._volumes.active_size >= self._volume_size:
            self._roll(self._volume_size)
        return self._volumes.append(parts)

    def reserve(self) -> int:
        """A volume number that was never used before."""
        with self._catalog.transaction() as txn:
            raw = txn.get(META_VOLUME)
            number = unpack_number(raw) if raw is not None else 1
            txn.put(META_VOLUME, pack_number(number + 1))
        return number

    def settle(self, number: int) -> None:
        """Move a volume that was written as a whole to its place, or remove it if the catalog has no record of it."""
        if self._catalog.get(volume_key(number)) is not None:
            self._volumes.finish(number)
        else:
            self._volumes.abandon(number)

    def retire_if_sparse(self, share: float) -> None:
        """Close the active volume if less than `share` of it is alive, so that it can be compacted."""
        number = self._volumes.active
        raw = self._catalog.get(volume_key(number)) if number >= 0 else None
        if raw is not None and (volume := VolumeRecord.unpack(raw)).live < volume.size * share:
            self._roll(volume.size)

    def retire(self) -> None:
        """Close the active volume, so that its objects can be moved out."""
        if self._volumes.active >= 0:
            self._roll(self._volumes.active_size)

    def _roll(self, size: int) -> None:
        with self._roll_lock:
            if self._volumes.active >= 0 and self._volumes.active_size < size:
                return
            number = self.reserve()
            fd = self._volumes.open_active(number, 0)
            assert fd is not None
            # Close the old volume and switch under one lock. If a closed volume were still appended to, `release` could
            # delete it along with an object that waits for its link.
            with self._catalog.lock:
                try:
                    with self._catalog.transaction() as txn:
                        self._close_volume(txn, self._volumes.active)
                        txn.put(META_ACTIVE, pack_number(number))
                        txn.put(volume_key(number), VolumeRecord(0, 0).pack())
                except BaseException:
                    os.close(fd)
                    self._volumes.remove(number)
                    raise
                self._volumes.switch(number, fd, 0)

    def _close_volume(self, txn: Transaction, number: int) -> None:
        # Leave even a volume with nothing alive to compaction: an object may just have been staged in it.
        raw = txn.get(volume_key(number)) if number >= 0 else None
        if raw is not None:
            volume = VolumeRecord.unpack(raw)
            volume.flags |= VolumeRecord.CLOSED
            txn.put(volume_key(number), volume.pack())

    # --- opening ------------------------------------------------------------------------------------------------------

    def _remove_leftovers(self) -> None:
        # A kill leaves files between a transaction and `settle`, during staging, or between a fold and `freed`.
        for number in self._volumes.incoming():
            if self._is_known(number):
                self._volumes.finish(number)
            else:
                self._volumes.abandon(number)
        for number in self._volumes.numbers():
            if not self._is_known(number):
                self._volumes.remove(number)

    def _remove_empty(self) -> None:
        """Remove the records of closed volumes that hold nothing. They were kept while a write was pending.

        The file must be empty too: during a repair, objects may not have been counted yet.
        """
        empty = [key for key, raw in self._catalog.walk(b"v") if raw is not None and self._is_empty(key, raw)]
        if empty:
            with contextlib.suppress(NoSpace):
                with self._catalog.transaction() as txn:
                    for key in empty:
                        txn.delete(key)
                self._catalog.fold()

    def _is_empty(self, key: bytes, raw: bytes) -> bool:
        volume, number = VolumeRecord.unpack(raw), number_of(key)
        if volume.size or volume.live or not volume.flags & VolumeRecord.CLOSED:
            return False
        try:
            return self._volumes.size(number) == 0
        except OSError:
            return False

    def _is_known(self, number: int) -> bool:
        try:
            return self._catalog.get(volume_key(number)) is not None
        except RecordDamaged:
            return True

    def _resume_active(self) -> None:
        raw = self._catalog.get(META_ACTIVE)
        if raw is None:
            return
        number = unpack_number(raw)
        record = self._catalog.get(volume_key(number))
        volume = VolumeRecord.unpack(record) if record is not None else None
        if volume is None or volume.flags & VolumeRecord.CLOSED:
            return
        fd = self._volumes.open_active(number, volume.size)
        if fd is not None:
            self._volumes.switch(number, fd, volume.size)
            return
        with self._catalog.transaction() as txn:
            self._close_volume(txn, number)
            txn.delete(META_ACTIVE)


# --- counting again ---------------------------------------------------------------------------------------------------


def read_totals(source: Catalog | Transaction) -> Totals:
    return Totals.unpack(source.get(TOTALS_KEY) or _NO_TOTALS)


def count(catalog: Catalog) -> tuple[Totals, dict[int, VolumeRecord]]:
    """The sums over all object records. A volume's size is the recorded one if that can be read. Fold first."""
    volumes: dict[int, VolumeRecord] = {}
    for key, raw in catalog.walk(b"v"):
        known = VolumeRecord.unpack(raw) if raw is not None else VolumeRecord(0, 0, VolumeRecord.CLOSED)
        volumes[number_of(key)] = VolumeRecord(known.size, 0, known.flags)
    totals = Totals()
    for _, raw in catalog.walk(b"o"):
        if raw is None:
            continue
        record = ObjectRecord.unpack(raw)
        totals.objects += 1
        totals.plain += record.plain
        totals.referenced += record.plain * record.refs
        totals.live += record.length
        if record.length:
            volume = volumes.setdefault(record.volume, VolumeRecord(0, 0, VolumeRecord.CLOSED))
            volume.live += record.length
            volume.size = max(volume.size, record.offset + record.length)
    totals.volumes = sum(volume.size for volume in volumes.values())
    return totals, volumes


def next_numbers(catalog: Catalog, volumes: Volumes, spool: Spool) -> dict[bytes, int]:
    """For each counter, the smallest number that is above everything in use. Fold first."""

    def above(table: bytes, files: Sequence[int] = ()) -> int:
        return max([0, *(number_of(key) for key, _ in catalog.walk(table)), *files]) + 1

    return {
        META_VOLUME: above(b"v", [*volumes.numbers(), *volumes.incoming()]),
        META_INO: above(b"i"),
        META_SPOOL: above(b"s", spool.numbers()),
    }


def is_damaged(catalog: Catalog) -> bool:
    """Whether a record that every change needs fails its checksum."""
    try:
        for key in (TOTALS_KEY, META_VOLUME, META_INO, META_SPOOL):
            catalog.get(key)
        if (active := catalog.get(META_ACTIVE)) is not None:
            catalog.get(volume_key(unpack_number(active)))
    except RecordDamaged:
        return True
    return False


def rebuild(catalog: Catalog, volumes: Volumes, spool: Spool) -> None:
    """Record what `count` finds, close every volume, and raise the counters above all numbers in use."""
    catalog.fold()
    totals, records = count(catalog)
    numbers = next_numbers(catalog, volumes, spool)
    with catalog.transaction() as txn:
        for number, record in records.items():
            record.flags |= VolumeRecord.CLOSED
            txn.put(volume_key(number), record.pack())
        txn.put(TOTALS_KEY, totals.pack())
        txn.delete(META_ACTIVE)
        for key, number in numbers.items():
            if number > 1:
                txn.put(key, pack_number(number))
            else:
                txn.delete(key)
    catalog.fold()
