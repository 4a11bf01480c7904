"""Objects: bytes found by the BLAKE3 digest of their plain form, stored once and checked on every decode.

Storing takes three steps. `stage` hashes, compresses and appends the bytes, without a lock that a reader or another
writer would wait for. `link` makes them known inside the caller's transaction, so that an inode and the object it
refers to appear at the same instant. `settle` comes last, whether or not the transaction succeeded. Bytes that were
staged and never linked are dead space, nothing worse.

Wrong bytes are never returned. An object that fails its check is copied to the quarantine and its record is marked;
from then on it is absent, until somebody stores the same bytes again.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path

from blake3 import blake3

from kcachefs.errors import NoSpace, ObjectDamaged, ObjectMissing, or_no_space
from kcachefs.store.catalog import Catalog, Transaction
from kcachefs.store.dictionaries import Dictionaries
from kcachefs.store.frame_cache import FrameCache
from kcachefs.store.frame_reader import FrameReader
from kcachefs.store.frames import (
    DEFAULT_LEVEL,
    FRAME_SIZE,
    Codec,
    encode_tail,
    frame_check,
    last_frame,
    read_frames,
    split,
)
from kcachefs.store.ledger import Ledger, Staged, read_totals
from kcachefs.store.next_read import NextRead
from kcachefs.store.object_records import TOTALS_KEY, ObjectRecord, Totals, object_key
from kcachefs.store.volumes import Volumes

log = logging.getLogger(__name__)

DEFAULT_VOLUME_SIZE = 16 << 20
"""A full volume: small enough to be compacted quickly, large enough that a store has few."""
SHARED_MAX = 512 << 10
"""Objects of at most this many stored bytes share volumes. A larger one gets its own: unlinking it frees its blocks."""
IN_MEMORY_MAX = 4 << 20
"""Objects of at most this many plain bytes are put together in memory before they are written."""
CACHE_BYTES = 16 << 20
"""Bytes of decoded frames that are kept."""
_QUARANTINE_MAX = 64 << 20


class Objects:
    """All objects of a store, by digest."""

    def __init__(
        self,
        catalog: Catalog,
        volumes: Volumes,
        quarantine: Path,
        dictionaries: Dictionaries,
        *,
        level: int = DEFAULT_LEVEL,
        volume_size: int = DEFAULT_VOLUME_SIZE,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.catalog = catalog
        self.volumes = volumes
        self.ledger = Ledger(catalog, volumes, volume_size)
        self.damaged = 0
        """Objects set aside since the store was opened."""
        self._quarantine = quarantine
        self.dictionaries = dictionaries
        self._codec = Codec(level, dictionaries)
        self.cache = FrameCache(cache_bytes)
        self.frames = FrameReader(volumes, self._codec)
        self.next_read = NextRead(self.record, volumes, self.cache)

    # --- storing ------------------------------------------------------------------------------------------------------

    def stage(self, data: bytes, beside: Container[bytes] = ()) -> Staged:
        """Hash the bytes; compress and append them unless they are in the store already. Any thread may call this.

        `beside` holds the digests of bytes that are already staged for the same transaction. Such bytes are not stored
        twice.
        """
        return self._stage_plain(split(data), beside)

    def stage_file(self, fd: int) -> Staged:
        """The same for an open file of any size, in constant memory."""
        if os.fstat(fd).st_size <= IN_MEMORY_MAX:
            return self._stage_plain(list(read_frames(fd)) or [b""])
        return self.stage_frames(read_frames(fd))

    def stage_frames(self, frames: Iterable[bytes]) -> Staged:
        """The same for bytes that come frame by frame. Only `link` finds out whether the store had them already."""
        hasher, rows, plain, frame = blake3(), [], 0, b""
        with self._own_volume() as (number, fd):
            for frame in frames:
                hasher.update(frame)
                stored = self._codec.encode_frame(frame)
                rows.append((len(stored), frame_check(frame, stored)))
                write_all(fd, stored, self.volumes.path(number))
                plain += len(frame)
            rows = rows or [(0, b"")]
            tail = encode_tail(hasher.digest(), plain, rows)
            write_all(fd, tail, self.volumes.path(number))
        length = sum([row[0] for row in rows]) + len(tail)
        return Staged(hasher.digest(), plain, number, 0, length, len(rows), own_volume=True, end=frame)

    def link(self, txn: Transaction, *batch: Staged, held: bool = False) -> None:
        """Add one reference to each of these, inside `txn`. Being held counts as one, however often `held` is given."""
        totals, is_changed = read_totals(txn), False
        for staged in batch:
            key = object_key(staged.digest)
            raw = txn.get(key)
            record = ObjectRecord.unpack(raw) if raw is not None else None
            if record is None or record.flags & ObjectRecord.DAMAGED:
                if staged.known:
                    # The object existed at staging time and is gone now: the caller stages it again.
                    raise ObjectMissing(f"object {staged.digest.hex()} went away while it was being stored")
                record = self.ledger.place(txn, staged, totals, record)
            elif held and record.flags & ObjectRecord.HELD:
                continue
            if not (held and record.flags & ObjectRecord.HELD):
                record.refs += 1
                totals.referenced += record.plain
            if held:
                record.flags |= ObjectRecord.HELD
            txn.put(key, record.pack())
            is_changed = True
        if is_changed:
            txn.put(TOTALS_KEY, totals.pack())

    def settle(self, staged: Staged) -> None:
        """After the transaction, whether or not it succeeded: unstage the bytes, or settle their own volume."""
        if staged.known:
            return
        if not staged.own_volume:
            self.volumes.unstage(staged.volume)
        else:
            self.ledger.settle(staged.volume)

    def unlink(self, txn: Transaction, digest: bytes, *, held: bool = False) -> bool:
        """Take one reference away, inside `txn`; the object is removed with the last one. False if there was none."""
        raw = txn.get(object_key(digest))
        if raw is None:
            return False
        record = ObjectRecord.unpack(raw)
        if held:
            if not record.flags & ObjectRecord.HELD:
                return False
            record.flags &= ~ObjectRecord.HELD
        self.ledger.set_references(txn, digest, record, record.refs - 1)
        if record.refs <= 0:
            self._forget(digest, record)
        return True

    # --- reading ------------------------------------------------------------------------------------------------------

    def remember(self, staged: Staged) -> None:
        """Keep the last frame of an object that was just stored, so that the next reader need not decode it."""
        start = last_frame(staged.plain)
        if len(staged.end) == staged.plain - start:
            self.cache.put((staged.digest, start // FRAME_SIZE), staged.end)

    def exists(self, digest: bytes) -> bool:
        record = self.record(digest)
        return record is not None and not record.flags & ObjectRecord.DAMAGED

    def record(self, digest: bytes) -> ObjectRecord | None:
        raw = self.catalog.get(object_key(digest))
        return None if raw is None else ObjectRecord.unpack(raw)

    def record_in(self, txn: Transaction, digest: bytes) -> ObjectRecord | None:
        """The record as a transaction sees it."""
        raw = txn.get(object_key(digest))
        return None if raw is None else ObjectRecord.unpack(raw)

    def get(self, digest: bytes) -> bytes:
        """All bytes of an object. Like `read`, for a caller whose reference keeps the object alive."""
        cached = self.cache.get((digest, 0))
        if cached is not None and len(cached) < FRAME_SIZE:
            return cached
        return self.read(digest, 0, 1 << 62)

    def read(self, digest: bytes, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset` on; decodes only the frames that hold them."""
        if offset < FRAME_SIZE:
            cached = self.cache.get((digest, 0))
            if cached is not None and (len(cached) < FRAME_SIZE or offset + size <= FRAME_SIZE):
                return cached if offset == 0 and size >= len(cached) else cached[offset : offset + size]
            fetched = self.next_read.take(digest)
            if fetched is not None:
                try:
                    plain = self.frames.decode_single(digest, *fetched)
                except (ObjectDamaged, OSError):
                    pass  # the read below meets the same problem and reports it
                else:
                    self.cache.put((digest, 0), plain)
                    return plain if offset == 0 and size >= len(plain) else plain[offset : offset + size]
        parts = self.read_parts(digest, offset, size)
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def read_parts(self, digest: bytes, offset: int, size: int) -> list[bytes | memoryview]:
        """The same as a list of pieces, each as it was decoded: joining them would cost as much as reading them."""
        record = self._live_record(digest)
        end = min(offset + size, record.plain)
        if size > FRAME_SIZE and record.frames > 1 and offset < end:
            self.frames.read_ahead(digest, record, offset // FRAME_SIZE)
        parts: list[bytes | memoryview] = []
        while offset < end:
            index, start = divmod(offset, FRAME_SIZE)
            whole = min(FRAME_SIZE, record.plain - index * FRAME_SIZE)
            length = min(whole - start, end - offset)
            # If one of many frames is read whole, the kernel's page cache has it from then on: no need to keep it here.
            frame = self._frame(digest, record, index, keep=length < whole or record.frames == 1)
            parts.append(frame if length == len(frame) else memoryview(frame)[start : start + length])
            offset += length
        return parts

    def is_quick(self, digest: bytes, offset: int) -> bool:
        """Whether `read` at `offset` would take microseconds: the frame is decoded already, or the object is small."""
        if self.cache.get((digest, offset // FRAME_SIZE)) is not None:
            return True
        record = self.record(digest)
        return record is None or record.plain <= FRAME_SIZE // 4

    def totals(self) -> Totals:
        return read_totals(self.catalog)

    def close(self) -> None:
        self.cache.clear()
        self.frames.clear()

    # --- verifying ----------------------------------------------------------------------------------------------------

    def verify(self, digest: bytes) -> bool:
        """Read a whole object from the disk, past our caches, and compare its digest. Sets it aside if damaged."""
        while (damage := self.examine(digest)) is not None:
            record = self.record(digest)
            if record is None:
                raise ObjectMissing(f"object {digest.hex()} is not in the store")
            if record.flags & ObjectRecord.DAMAGED or self.set_aside(digest, record, damage):
                return False
        return True

    def examine(self, digest: bytes) -> Exception | None:
        """The error in an object's bytes on the disk; None if they are intact. Changes nothing."""
        try:
            record = self._live_record(digest)
        except ObjectDamaged as error:
            return error
        try:
            self.frames.check(digest, record)
        except (ObjectDamaged, FileNotFoundError) as error:
            moved = self.record(digest)
            if moved is not None and moved.place != record.place:
                return self.examine(digest)
            return error
        return None

    def set_aside(self, digest: bytes, record: ObjectRecord, error: Exception) -> bool:
        """Mark an object as damaged, copy its bytes to the quarantine and log it.

        Does nothing and returns False if it is no longer where `record` says: then it was moved, and may be intact.
        """
        try:
            with self.catalog.transaction() as txn:
                raw = txn.get(object_key(digest))
                current = ObjectRecord.unpack(raw) if raw is not None else None
                if current is None or current.place != record.place:
                    return False
                if current.flags & ObjectRecord.DAMAGED:
                    return True
                current.flags |= ObjectRecord.DAMAGED
                txn.put(object_key(digest), current.pack())
        except NoSpace:
            log.warning("object %s is damaged, and the disk is too full to record it", digest.hex())
        self.damaged += 1
        log.error("object %s is damaged (%s) and was set aside", digest.hex(), error)
        self._forget(digest, record)
        try:
            raw = self.volumes.read(record.volume, record.offset, min(record.length, _QUARANTINE_MAX))
            (self._quarantine / digest.hex()).write_bytes(raw)
        except (ObjectDamaged, OSError) as reason:
            log.debug("object %s could not be copied to the quarantine: %s", digest.hex(), reason)
        return True

    # --- inside -------------------------------------------------------------------------------------------------------

    def _stage_plain(self, plain: Sequence[bytes], beside: Container[bytes] = ()) -> Staged:
        hasher = blake3()
        for frame in plain:
            hasher.update(frame)
        digest, length = hasher.digest(), sum(map(len, plain))
        if digest in beside or self.exists(digest):
            return Staged(digest, length, end=plain[-1])
        stored = [self._codec.encode_frame(frame) for frame in plain]
        rows = (
            [(len(s), frame_check(p, s)) for s, p in zip(stored, plain, strict=True)]
            if len(stored) > 1
            else [(len(stored[0]), b"")]
        )
        parts = [*stored, encode_tail(digest, length, rows)]
        total = sum(map(len, parts))
        if total <= SHARED_MAX:
            volume, offset = self.ledger.append(parts)
            return Staged(digest, length, volume, offset, total, len(stored), end=plain[-1])
        with self._own_volume() as (number, fd):
            for part in parts:
                write_all(fd, part, self.volumes.path(number))
        return Staged(digest, length, number, 0, total, len(stored), own_volume=True, end=plain[-1])

    @contextlib.contextmanager
    def _own_volume(self) -> Iterator[tuple[int, int]]:
        """The number of a new volume and a descriptor to write it to. Removes it if that fails."""
        number = self.ledger.reserve()
        fd = self.volumes.begin(number)
        try:
            yield number, fd
        except BaseException:
            self.volumes.abandon(number)
            raise
        finally:
            os.close(fd)
        self.volumes.mark_unsynced([number])

    def _live_record(self, digest: bytes) -> ObjectRecord:
        record = self.record(digest)
        if record is None:
            raise ObjectMissing(f"object {digest.hex()} is not in the store")
        if record.flags & ObjectRecord.DAMAGED:
            raise ObjectDamaged(f"object {digest.hex()} is damaged and was set aside")
        return record

    def _frame(self, digest: bytes, record: ObjectRecord, index: int, *, keep: bool = True) -> bytes:
        plain = self.cache.get((digest, index))
        if plain is None:
            try:
                plain = self.frames.read(digest, record, index)
            except (ObjectDamaged, FileNotFoundError) as error:
                if not self.set_aside(digest, record, error):
                    return self._frame(digest, self._live_record(digest), index, keep=keep)
                raise ObjectDamaged(f"object {digest.hex()} is damaged and was set aside: {error}") from error
            if keep:
                self.cache.put((digest, index), plain)
        return plain

    def _forget(self, digest: bytes, record: ObjectRecord) -> None:
        self.frames.forget(record)
        self.cache.drop(digest, record.frames)


def write_all(fd: int, data: bytes, path: Path) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        raise or_no_space(error, path) from error
