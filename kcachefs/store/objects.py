"""Objects: bytes by the BLAKE3 digest of their plain form, stored once, checked on every decode.

Storing has two steps. `stage` hashes, compresses and appends the bytes, with no lock that a reader or another writer
waits for; `link` then makes them known, inside a transaction of the caller's, so that an inode and the object it refers
to appear at the same instant. Bytes staged and never linked are dead space, no more.

Wrong bytes are never returned. What fails its check is copied to the quarantine, its record is marked, and from then on
it is absent; storing the same bytes again heals it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from kcachefs.errors import ObjectDamaged, ObjectMissing, or_no_space
from kcachefs.store.catalog import Catalog, Transaction
from kcachefs.store.frames import (
    DEFAULT_LEVEL,
    FRAME_SIZE,
    TRAILER,
    Codec,
    Frame,
    decode_tail,
    decode_trailer,
    encode_tail,
    frame_check,
    read_frames,
    split,
    tail_length,
)
from kcachefs.store.records import (
    META_ACTIVE,
    META_VOLUME,
    TOTALS_KEY,
    ObjectRecord,
    Totals,
    VolumeRecord,
    number_of,
    object_key,
    pack_number,
    unpack_number,
    volume_key,
)
from kcachefs.store.volumes import Volumes

log = logging.getLogger(__name__)

DEFAULT_VOLUME_SIZE = 16 << 20
"""A full volume. Small enough that compacting one is quick, large enough that a store has few."""
SHARED_MAX = 512 << 10
"""Stored bytes up to which an object shares a volume; a larger one has its own, so that unlinking frees its blocks."""
IN_MEMORY_MAX = 4 << 20
"""Plain bytes up to which an object is put together in memory before it is written."""
CACHE_BYTES = 32 << 20
"""Decoded frames kept: repeated small reads of one object, and the sequential read of a large one, decode once."""
_TABLES_MAX = 256


@dataclass(frozen=True, slots=True)
class Staged:
    """Bytes that are in a volume, or were found in the store already, and wait for `link`."""

    digest: bytes
    plain: int
    volume: int = -1
    offset: int = 0
    length: int = 0
    frames: int = 1
    own: bool = False

    @property
    def known(self) -> bool:
        """They were in the store already, and nothing was written."""
        return self.volume < 0


class Objects:
    """Everything that has a digest."""

    def __init__(
        self,
        catalog: Catalog,
        volumes: Volumes,
        quarantine: Path,
        *,
        level: int = DEFAULT_LEVEL,
        volume_size: int = DEFAULT_VOLUME_SIZE,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._catalog = catalog
        self._volumes = volumes
        self._quarantine = quarantine
        self._codec = Codec(level)
        self._volume_size = volume_size
        self._cache = FrameCache(cache_bytes)
        self._tables: OrderedDict[bytes, list[Frame]] = OrderedDict()
        self._roll_lock = threading.Lock()
        self.damaged = 0
        """Objects set aside since the store was opened."""
        self._settle_incoming()
        self._resume_active()

    # --- storing ------------------------------------------------------------------------------------------------------

    def stage(self, data: bytes) -> Staged:
        """Hash, and unless they are there already, compress and append. Thread-safe."""
        digest = blake3(data).digest()
        if self.exists(digest):
            return Staged(digest, len(data))
        plain = split(data)
        stored = [self._codec.encode_frame(frame) for frame in plain]
        return self._append(digest, len(data), plain, stored)

    def stage_file(self, fd: int) -> Staged:
        """The same for an open file, of any size, in constant memory."""
        size = os.fstat(fd).st_size
        if size <= IN_MEMORY_MAX:
            return self.stage(b"".join(read_frames(fd)))
        return self._stage_large(fd)

    def link(self, txn: Transaction, staged: Staged, *, held: bool = False) -> None:
        """Add one reference to staged bytes, inside `txn`. A holder has at most one."""
        key = object_key(staged.digest)
        raw = txn.get(key)
        totals = Totals.unpack(txn.get(TOTALS_KEY) or bytes(Totals.CODEC.size))
        record = ObjectRecord.unpack(raw) if raw is not None else None
        if record is not None and not record.flags & ObjectRecord.DAMAGED:
            if staged.volume >= 0:
                self._count_dead(txn, staged, totals)
            if held and record.flags & ObjectRecord.HELD:
                txn.put(TOTALS_KEY, totals.pack())
                return
        elif staged.volume < 0:
            # Found when it was staged, gone now: the caller stages again.
            raise ObjectMissing(f"object {staged.digest.hex()} went away while it was being stored")
        else:
            record = self._place(txn, staged, totals, record)
        record.refs += 1
        if held:
            record.flags |= ObjectRecord.HELD
        totals.referenced += record.plain
        txn.put(key, record.pack())
        txn.put(TOTALS_KEY, totals.pack())

    def settle(self, staged: Staged) -> None:
        """After the transaction, whether it went well or not: what was staged finds its place or goes."""
        if staged.known:
            return
        if not staged.own:
            self._volumes.unstage(staged.volume)
        elif self._catalog.get(volume_key(staged.volume)) is not None:
            self._volumes.finish(staged.volume)
        else:
            self._volumes.abandon(staged.volume)

    def unlink(self, txn: Transaction, digest: bytes, *, held: bool = False) -> bool:
        """Take one reference away, inside `txn`; the last one takes the object. False if there was none to take."""
        key = object_key(digest)
        raw = txn.get(key)
        if raw is None:
            return False
        record = ObjectRecord.unpack(raw)
        if held:
            if not record.flags & ObjectRecord.HELD:
                return False
            record.flags &= ~ObjectRecord.HELD
        totals = Totals.unpack(txn.get(TOTALS_KEY) or bytes(Totals.CODEC.size))
        record.refs -= 1
        totals.referenced -= record.plain
        if record.refs > 0:
            txn.put(key, record.pack())
        else:
            txn.delete(key)
            totals.objects -= 1
            totals.plain -= record.plain
            self._kill(txn, record, totals)
            self._forget(digest)
        txn.put(TOTALS_KEY, totals.pack())
        return True

    # --- reading ------------------------------------------------------------------------------------------------------

    def exists(self, digest: bytes) -> bool:
        record = self.record(digest)
        return record is not None and not record.flags & ObjectRecord.DAMAGED

    def record(self, digest: bytes) -> ObjectRecord | None:
        raw = self._catalog.get(object_key(digest))
        return None if raw is None else ObjectRecord.unpack(raw)

    def get(self, digest: bytes) -> bytes:
        """All of its bytes."""
        cached = self._cache.get((digest, 0))
        if cached is not None and len(cached) < FRAME_SIZE:
            return cached
        return self.read(digest, 0, 1 << 62)

    def read(self, digest: bytes, offset: int, size: int) -> bytes:
        """The bytes from `offset` on, at most `size` of them; decodes only the frames that hold them."""
        if offset < FRAME_SIZE:
            cached = self._cache.get((digest, 0))
            if cached is not None and (len(cached) < FRAME_SIZE or offset + size <= FRAME_SIZE):
                return cached if offset == 0 and size >= len(cached) else cached[offset : offset + size]
        record = self._live_record(digest)
        end = min(offset + size, record.plain)
        if offset >= end:
            return b""
        first, last = offset // FRAME_SIZE, (end - 1) // FRAME_SIZE
        parts = [self._frame(digest, record, index) for index in range(first, last + 1)]
        start = offset - first * FRAME_SIZE
        if len(parts) == 1:
            return parts[0] if start == 0 and end == record.plain else parts[0][start : start + end - offset]
        return b"".join(parts)[start : start + end - offset]

    def is_quick(self, digest: bytes, offset: int) -> bool:
        """Whether `read` there would take microseconds: the frame is decoded already, or small."""
        if self._cache.get((digest, offset // FRAME_SIZE)) is not None:
            return True
        record = self.record(digest)
        return record is None or record.plain <= FRAME_SIZE // 4

    def verify(self, digest: bytes) -> bool:
        """Read it all from the disk, past every cache, and compare it with its digest. Damage is set aside."""
        record = self._live_record(digest)
        hasher = blake3()
        try:
            for index in range(record.frames):
                hasher.update(self._decode(digest, record, index))
            if hasher.digest() != digest:
                raise ObjectDamaged("the frames are whole but do not add up to the digest")
        except (ObjectDamaged, OSError) as error:
            self._condemn(digest, record, error)
            return False
        return True

    # --- reclaiming ---------------------------------------------------------------------------------------------------

    def sparse_volumes(self) -> Iterator[int]:
        """Closed volumes of which less than half is alive. Fold first."""
        for key, raw in self._catalog.walk(b"v"):
            record = VolumeRecord.unpack(raw) if raw is not None else None
            if record and record.flags & VolumeRecord.CLOSED and record.live * 2 < record.size:
                yield number_of(key)

    def compact(self, number: int) -> int:
        """Copy what lives in a volume to the active one; the volume goes with the next fold. Returns bytes freed."""
        raw = self._catalog.get(volume_key(number))
        if raw is None or number == self._volumes.active or self._volumes.staged[number]:
            return 0
        before = VolumeRecord.unpack(raw)
        for digest in self._digests_in(number):
            record = self.record(digest)
            if record is None or record.volume != number or record.flags & ObjectRecord.DAMAGED:
                continue
            try:
                stored = self._volumes.read(number, record.offset, record.length)
            except (ObjectDamaged, OSError) as error:
                self._condemn(digest, record, error)
                continue
            self._move(digest, record, stored)
        with self._catalog.transaction() as txn:
            raw = txn.get(volume_key(number))
            volume = VolumeRecord.unpack(raw) if raw is not None else None
            if volume is not None and volume.live == 0:
                totals = Totals.unpack(txn.get(TOTALS_KEY) or bytes(Totals.CODEC.size))
                totals.volumes -= volume.size
                txn.put(TOTALS_KEY, totals.pack())
                txn.delete(volume_key(number))
        return before.size - before.live

    def totals(self) -> Totals:
        return Totals.unpack(self._catalog.get(TOTALS_KEY) or bytes(Totals.CODEC.size))

    # --- storing, inside ----------------------------------------------------------------------------------------------

    def _append(self, digest: bytes, length: int, plain: Sequence[bytes], stored: list[bytes]) -> Staged:
        rows = (
            [(len(s), frame_check(p)) for s, p in zip(stored, plain, strict=True)]
            if len(stored) > 1
            else [(len(stored[0]), b"")]
        )
        parts = [*stored, encode_tail(digest, length, rows)]
        total = sum(map(len, parts))
        if total > SHARED_MAX:
            number = self._reserve_volume()
            fd = self._volumes.begin(number)
            try:
                _write_all(fd, b"".join(parts), self._volumes.path(number))
            except BaseException:
                self._volumes.abandon(number)
                raise
            finally:
                os.close(fd)
            return Staged(digest, length, number, 0, total, len(stored), own=True)
        if self._volumes.active < 0 or self._volumes.active_size >= self._volume_size:
            self._roll()
        volume, offset = self._volumes.append(parts)
        return Staged(digest, length, volume, offset, total, len(stored))

    def _stage_large(self, source: int) -> Staged:
        number = self._reserve_volume()
        fd = self._volumes.begin(number)
        hasher, rows, plain, total = blake3(), [], 0, 0
        try:
            for frame in read_frames(source):
                hasher.update(frame)
                stored = self._codec.encode_frame(frame)
                rows.append((len(stored), frame_check(frame)))
                _write_all(fd, stored, self._volumes.path(number))
                plain += len(frame)
                total += len(stored)
            digest = hasher.digest()
            tail = encode_tail(digest, plain, rows)
            _write_all(fd, tail, self._volumes.path(number))
        except BaseException:
            self._volumes.abandon(number)
            raise
        finally:
            os.close(fd)
        if self.exists(digest):
            self._volumes.abandon(number)
            return Staged(digest, plain)
        return Staged(digest, plain, number, 0, total + len(tail), len(rows), own=True)

    def _place(self, txn: Transaction, staged: Staged, totals: Totals, old: ObjectRecord | None) -> ObjectRecord:
        record = ObjectRecord(staged.volume, staged.offset, staged.length, staged.plain, staged.frames, 0)
        if old is None:
            totals.objects += 1
            totals.plain += staged.plain
        else:
            record.refs, record.flags = old.refs, old.flags & ~ObjectRecord.DAMAGED
            self._kill(txn, old, totals)
        key = volume_key(staged.volume)
        raw = txn.get(key)
        volume = VolumeRecord.unpack(raw) if raw is not None else VolumeRecord(0, 0)
        grown = max(volume.size, staged.offset + staged.length) - volume.size
        volume.size += grown
        volume.live += staged.length
        if staged.own:
            volume.flags |= VolumeRecord.CLOSED
        totals.live += staged.length
        totals.volumes += grown
        txn.put(key, volume.pack())
        return record

    def _count_dead(self, txn: Transaction, staged: Staged, totals: Totals) -> None:
        # The same bytes were staged twice and the other one was linked first.
        key = volume_key(staged.volume)
        raw = txn.get(key)
        if staged.own or raw is None:
            return
        volume = VolumeRecord.unpack(raw)
        grown = max(volume.size, staged.offset + staged.length) - volume.size
        volume.size += grown
        totals.volumes += grown
        txn.put(key, volume.pack())

    def _kill(self, txn: Transaction, record: ObjectRecord, totals: Totals) -> None:
        key = volume_key(record.volume)
        raw = txn.get(key)
        totals.live -= record.length
        if raw is None:
            return
        volume = VolumeRecord.unpack(raw)
        volume.live -= record.length
        if volume.live == 0 and volume.flags & VolumeRecord.CLOSED and not self._volumes.staged[record.volume]:
            txn.delete(key)
            totals.volumes -= volume.size
        else:
            txn.put(key, volume.pack())

    def _reserve_volume(self) -> int:
        with self._catalog.transaction() as txn:
            raw = txn.get(META_VOLUME)
            number = unpack_number(raw) if raw is not None else 1
            txn.put(META_VOLUME, pack_number(number + 1))
        return number

    def _roll(self) -> None:
        """Close the active volume and start another."""
        with self._roll_lock:
            if self._volumes.active >= 0 and self._volumes.active_size < self._volume_size:
                return
            number = self._reserve_volume()
            fd = self._volumes.open_active(number, 0)
            assert fd is not None
            with self._catalog.transaction() as txn:
                self._close_volume(txn, self._volumes.active)
                txn.put(META_ACTIVE, pack_number(number))
                txn.put(volume_key(number), VolumeRecord(0, 0).pack())
            self._volumes.switch(number, fd, 0)

    def _close_volume(self, txn: Transaction, number: int) -> None:
        # Even with nothing alive it is left to `compact`: something may have been staged in it just now.
        raw = txn.get(volume_key(number)) if number >= 0 else None
        if raw is not None:
            volume = VolumeRecord.unpack(raw)
            volume.flags |= VolumeRecord.CLOSED
            txn.put(volume_key(number), volume.pack())

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

    def _settle_incoming(self) -> None:
        # A kill between a transaction and what `linked` does after it, or in the middle of `_stage_large`.
        for number in self._volumes.incoming():
            if self._catalog.get(volume_key(number)) is not None:
                self._volumes.finish(number)
            else:
                self._volumes.abandon(number)

    # --- reading, inside ----------------------------------------------------------------------------------------------

    def _live_record(self, digest: bytes) -> ObjectRecord:
        record = self.record(digest)
        if record is None:
            raise ObjectMissing(f"object {digest.hex()} is not in the store")
        if record.flags & ObjectRecord.DAMAGED:
            raise ObjectDamaged(f"object {digest.hex()} is damaged and was set aside")
        return record

    def _frame(self, digest: bytes, record: ObjectRecord, index: int) -> bytes:
        key = (digest, index)
        plain = self._cache.get(key)
        if plain is None:
            try:
                plain = self._decode(digest, record, index)
            except (ObjectDamaged, OSError) as error:
                moved = self.record(digest)
                if moved is None or (moved.volume, moved.offset) == (record.volume, record.offset):
                    self._condemn(digest, record, error)
                    raise ObjectDamaged(f"object {digest.hex()} is damaged and was set aside: {error}") from error
                return self._frame(digest, moved, index)  # compaction moved it under our feet
            self._cache.put(key, plain)
        return plain

    def _decode(self, digest: bytes, record: ObjectRecord, index: int) -> bytes:
        if record.frames == 1:
            stored = self._volumes.read(record.volume, record.offset, record.length - TRAILER.size)
            plain = self._codec.decode_frame(stored, record.plain)
            if blake3(plain).digest() != digest:
                raise ObjectDamaged("the bytes do not match the digest")
            return plain
        frame = self._table(digest, record)[index]
        stored = self._volumes.read(record.volume, record.offset + frame.offset, frame.stored)
        plain = self._codec.decode_frame(stored, frame.plain)
        if frame_check(plain) != frame.check:
            raise ObjectDamaged(f"frame {index} does not match its digest")
        return plain

    def _table(self, digest: bytes, record: ObjectRecord) -> list[Frame]:
        table = self._tables.get(digest)
        if table is None:
            length = tail_length(record.frames)
            tail = self._volumes.read(record.volume, record.offset + record.length - length, length)
            table = decode_tail(tail, digest, record.length)
            if len(table) != record.frames:
                raise ObjectDamaged("the frame table does not fit the catalog")
            self._tables[digest] = table
            if len(self._tables) > _TABLES_MAX:
                self._tables.popitem(last=False)
        return table

    def _condemn(self, digest: bytes, record: ObjectRecord, error: Exception) -> None:
        """Set a damaged object aside: its bytes to the quarantine, a mark on its record, a line in the log."""
        try:
            raw = self._volumes.read(record.volume, record.offset, min(record.length, 64 << 20))
            (self._quarantine / digest.hex()).write_bytes(raw)
        except (ObjectDamaged, OSError):
            log.debug("nothing of object %s could be read", digest.hex())
        with self._catalog.transaction() as txn:
            raw_record = txn.get(object_key(digest))
            if raw_record is not None:
                current = ObjectRecord.unpack(raw_record)
                if not current.flags & ObjectRecord.DAMAGED:
                    current.flags |= ObjectRecord.DAMAGED
                    txn.put(object_key(digest), current.pack())
                    self.damaged += 1
                    log.error("object %s is damaged (%s) and was set aside", digest.hex(), error)
        self._forget(digest)

    def _forget(self, digest: bytes) -> None:
        self._tables.pop(digest, None)
        self._cache.drop(digest)

    # --- reclaiming, inside -------------------------------------------------------------------------------------------

    def _digests_in(self, number: int) -> list[bytes]:
        """Digests of what was ever in a volume: its trailers, read from the end; all of the catalog if those break."""
        found: list[bytes] = []
        try:
            end = self._volumes.size(number)
            while end > 0:
                length, digest = decode_trailer(self._volumes.read(number, end - TRAILER.size, TRAILER.size))
                found.append(digest)
                end -= length
        except (ObjectDamaged, OSError, ValueError):
            self._catalog.fold()
            records = ((key[1:], raw) for key, raw in self._catalog.walk(b"o") if raw is not None)
            return [digest for digest, raw in records if ObjectRecord.unpack(raw).volume == number]
        return found

    def _move(self, digest: bytes, record: ObjectRecord, stored: bytes) -> None:
        if self._volumes.active < 0 or self._volumes.active_size >= self._volume_size:
            self._roll()
        volume, offset = self._volumes.append([stored])
        staged = Staged(digest, record.plain, volume, offset, record.length, record.frames)
        with self._catalog.transaction() as txn:
            raw = txn.get(object_key(digest))
            totals = Totals.unpack(txn.get(TOTALS_KEY) or bytes(Totals.CODEC.size))
            current = ObjectRecord.unpack(raw) if raw is not None else None
            if current is None or (current.volume, current.offset) != (record.volume, record.offset):
                self._count_dead(txn, staged, totals)
            else:
                txn.put(object_key(digest), self._place(txn, staged, totals, current).pack())
            txn.put(TOTALS_KEY, totals.pack())
        self._volumes.unstage(volume)
        self._tables.pop(digest, None)


class FrameCache:
    """Decoded frames, the least recently used dropped first. Any thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._frames: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[bytes, int]) -> bytes | None:
        frame = self._frames.get(key)
        if frame is not None:
            with self._lock:
                if key in self._frames:
                    self._frames.move_to_end(key)
        return frame

    def put(self, key: tuple[bytes, int], frame: bytes) -> None:
        with self._lock:
            if key in self._frames:
                return
            self._frames[key] = frame
            self._size += len(frame)
            while self._size > self._limit:
                self._size -= len(self._frames.popitem(last=False)[1])

    def drop(self, digest: bytes) -> None:
        with self._lock:
            index = 0
            while (frame := self._frames.pop((digest, index), None)) is not None:
                self._size -= len(frame)
                index += 1


def _write_all(fd: int, data: bytes, path: Path) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        raise or_no_space(error, path) from error
