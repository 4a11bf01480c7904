"""Objects: bytes by the BLAKE3 digest of their plain form, stored once, checked on every decode.

Storing has two steps. `stage` hashes, compresses and appends the bytes, with no lock that a reader or another writer
waits for; `link` then makes them known, inside a transaction of the caller's, so that an inode and the object it refers
to appear at the same instant; `settle` comes after it, whether it went well or not. Bytes staged and never linked are
dead space, no more.

Wrong bytes are never returned. What fails its check is copied to the quarantine, its record is marked, and from then on
it is absent; storing the same bytes again heals it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from blake3 import blake3

from kcachefs.errors import NoSpace, ObjectDamaged, ObjectMissing, or_no_space
from kcachefs.store.catalog import Catalog, Transaction
from kcachefs.store.frame_cache import FrameCache
from kcachefs.store.frames import (
    DEFAULT_LEVEL,
    FRAME_SIZE,
    TRAILER,
    Codec,
    Frame,
    decode_tail,
    encode_tail,
    frame_check,
    last_frame,
    read_frames,
    split,
    tail_length,
)
from kcachefs.store.ledger import Ledger, read_totals
from kcachefs.store.ledger import Staged as Staged
from kcachefs.store.records import TOTALS_KEY, ObjectRecord, Totals, object_key, volume_key
from kcachefs.store.volumes import Volumes

log = logging.getLogger(__name__)

DEFAULT_VOLUME_SIZE = 16 << 20
"""A full volume. Small enough that compacting one is quick, large enough that a store has few."""
SHARED_MAX = 512 << 10
"""Stored bytes up to which an object shares a volume; a larger one has its own, so that unlinking frees its blocks."""
IN_MEMORY_MAX = 4 << 20
"""Plain bytes up to which an object is put together in memory before it is written."""
CACHE_BYTES = 32 << 20
"""Decoded frames kept."""
AHEAD_FRAMES = 16
"""So many frames, 4 MiB of plain bytes, the disk is asked for ahead of a reader of large pieces."""
_TABLES_MAX = 256
_QUARANTINE_MAX = 64 << 20


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
        self.catalog = catalog
        self.volumes = volumes
        self.ledger = Ledger(catalog, volumes, volume_size)
        self.damaged = 0
        """Objects set aside since the store was opened."""
        self._quarantine = quarantine
        self._codec = Codec(level)
        self._cache = FrameCache(cache_bytes)
        self._tables: OrderedDict[bytes, list[Frame]] = OrderedDict()

    # --- storing ------------------------------------------------------------------------------------------------------

    def stage(self, data: bytes) -> Staged:
        """Hash, and unless they are there already, compress and append. Thread-safe."""
        digest = blake3(data).digest()
        if self.exists(digest):
            return Staged(digest, len(data), end=data[last_frame(len(data)) :])
        plain = split(data)
        stored = [self._codec.encode_frame(frame) for frame in plain]
        return self._append(digest, len(data), plain, stored)

    def stage_file(self, fd: int) -> Staged:
        """The same for an open file, of any size, in constant memory."""
        if os.fstat(fd).st_size <= IN_MEMORY_MAX:
            return self.stage(b"".join(read_frames(fd)))
        return self.stage_frames(read_frames(fd))

    def stage_frames(self, frames: Iterable[bytes]) -> Staged:
        """The same for bytes that come frame by frame. What is there already is found when it is linked."""
        hasher, rows, plain, frame = blake3(), [], 0, b""
        with self._own_volume() as (number, fd):
            for frame in frames:
                hasher.update(frame)
                stored = self._codec.encode_frame(frame)
                rows.append((len(stored), frame_check(frame)))
                _write_all(fd, stored, self.volumes.path(number))
                plain += len(frame)
            rows = rows or [(0, b"")]
            tail = encode_tail(hasher.digest(), plain, rows)
            _write_all(fd, tail, self.volumes.path(number))
        length = sum([row[0] for row in rows]) + len(tail)
        return Staged(hasher.digest(), plain, number, 0, length, len(rows), own=True, end=frame)

    def link(self, txn: Transaction, staged: Staged, *, held: bool = False) -> None:
        """Add one reference to staged bytes, inside `txn`. A holder has at most one."""
        key = object_key(staged.digest)
        raw = txn.get(key)
        totals = read_totals(txn)
        record = ObjectRecord.unpack(raw) if raw is not None else None
        if record is None or record.flags & ObjectRecord.DAMAGED:
            if staged.known:
                # Found when it was staged, gone now: the caller stages again.
                raise ObjectMissing(f"object {staged.digest.hex()} went away while it was being stored")
            record = self.ledger.place(txn, staged, totals, record)
        elif held and record.flags & ObjectRecord.HELD:
            return
        if not (held and record.flags & ObjectRecord.HELD):
            record.refs += 1
            totals.referenced += record.plain
        if held:
            record.flags |= ObjectRecord.HELD
        txn.put(key, record.pack())
        txn.put(TOTALS_KEY, totals.pack())

    def settle(self, staged: Staged) -> None:
        """After the transaction, whether it went well or not: what was staged finds its place or goes."""
        if staged.known:
            return
        if not staged.own:
            self.volumes.unstage(staged.volume)
        elif self.catalog.get(volume_key(staged.volume)) is not None:
            self.volumes.finish(staged.volume)
        else:
            self.volumes.abandon(staged.volume)

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
        totals = read_totals(txn)
        record.refs -= 1
        totals.referenced -= record.plain
        if record.refs > 0:
            txn.put(key, record.pack())
        else:
            txn.delete(key)
            totals.objects -= 1
            totals.plain -= record.plain
            self.ledger.bury(txn, record, totals)
            self._forget(digest, record)
        txn.put(TOTALS_KEY, totals.pack())
        return True

    # --- reading ------------------------------------------------------------------------------------------------------

    def remember(self, staged: Staged) -> None:
        """Keep the last frame of what was just stored: if it is asked for soon, it need not be decoded."""
        start = last_frame(staged.plain)
        if len(staged.end) == staged.plain - start:
            self._cache.put((staged.digest, start // FRAME_SIZE), staged.end)

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
        """All of its bytes. Like `read`, for a caller whose reference keeps the object alive."""
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
        parts = self.read_parts(digest, offset, size)
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def read_parts(self, digest: bytes, offset: int, size: int) -> list[bytes | memoryview]:
        """The same in pieces, each as it was decoded: to put them together would cost as much as to read them."""
        record = self._live_record(digest)
        end = min(offset + size, record.plain)
        if size > FRAME_SIZE and record.frames > 1 and offset < end:
            self._read_ahead(digest, record, offset // FRAME_SIZE)
        parts: list[bytes | memoryview] = []
        while offset < end:
            index, start = divmod(offset, FRAME_SIZE)
            whole = min(FRAME_SIZE, record.plain - index * FRAME_SIZE)
            length = min(whole - start, end - offset)
            # A frame that is read whole, as one of many, is in the kernel's cache from then on and not needed here.
            frame = self._frame(digest, record, index, keep=length < whole or record.frames == 1)
            parts.append(frame if length == len(frame) else memoryview(frame)[start : start + length])
            offset += length
        return parts

    def is_quick(self, digest: bytes, offset: int) -> bool:
        """Whether `read` there would take microseconds: the frame is decoded already, or small."""
        if self._cache.get((digest, offset // FRAME_SIZE)) is not None:
            return True
        record = self.record(digest)
        return record is None or record.plain <= FRAME_SIZE // 4

    def verify(self, digest: bytes) -> bool:
        """Read it all from the disk, past every cache, and compare it with its digest. Damage is set aside."""
        while (damage := self.examine(digest)) is not None:
            record = self.record(digest)
            if record is None:
                raise ObjectMissing(f"object {digest.hex()} is not in the store")
            if record.flags & ObjectRecord.DAMAGED or self.condemn(digest, record, damage):
                return False
        return True

    def examine(self, digest: bytes) -> Exception | None:
        """What is wrong with an object's bytes on the disk; changes nothing."""
        try:
            record = self._live_record(digest)
        except ObjectDamaged as error:
            return error
        hasher = blake3()
        try:
            self._read_tail(digest, record)
            for index in range(record.frames):
                hasher.update(self._decode(digest, record, index))
            if hasher.digest() != digest:
                raise ObjectDamaged("the frames are whole but do not add up to the digest")
        except (ObjectDamaged, OSError) as error:
            if not _is_damage(error):
                raise
            moved = self.record(digest)
            if moved is not None and moved.place != record.place:
                return self.examine(digest)
            return error
        return None

    def condemn(self, digest: bytes, record: ObjectRecord, error: Exception) -> bool:
        """Set a damaged object aside: its bytes to the quarantine, a mark on its record, a line in the log.

        False, and nothing is done, if it is no longer where `record` says: compaction moved it, and it may be whole.
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
            log.warning("object %s is damaged, and the disk too full to write that down", digest.hex())
        self.damaged += 1
        log.error("object %s is damaged (%s) and was set aside", digest.hex(), error)
        self._forget(digest, record)
        try:
            raw = self.volumes.read(record.volume, record.offset, min(record.length, _QUARANTINE_MAX))
            (self._quarantine / digest.hex()).write_bytes(raw)
        except (ObjectDamaged, OSError) as reason:
            log.debug("object %s could not be copied to the quarantine: %s", digest.hex(), reason)
        return True

    def totals(self) -> Totals:
        return read_totals(self.catalog)

    def close(self) -> None:
        self._cache.clear()
        self._tables.clear()

    # --- storing, inside ----------------------------------------------------------------------------------------------

    def _append(self, digest: bytes, length: int, plain: Sequence[bytes], stored: list[bytes]) -> Staged:
        rows = (
            [(len(s), frame_check(p)) for s, p in zip(stored, plain, strict=True)]
            if len(stored) > 1
            else [(len(stored[0]), b"")]
        )
        parts = [*stored, encode_tail(digest, length, rows)]
        total = sum(map(len, parts))
        if total <= SHARED_MAX:
            volume, offset = self.ledger.append(parts)
            return Staged(digest, length, volume, offset, total, len(stored), end=plain[-1])
        with self._own_volume() as (number, fd):
            _write_all(fd, b"".join(parts), self.volumes.path(number))
        return Staged(digest, length, number, 0, total, len(stored), own=True, end=plain[-1])

    @contextlib.contextmanager
    def _own_volume(self) -> Iterator[tuple[int, int]]:
        """The number of a new volume and a descriptor to write it to. It is gone if that fails."""
        number = self.ledger.reserve()
        fd = self.volumes.begin(number)
        try:
            yield number, fd
        except BaseException:
            self.volumes.abandon(number)
            raise
        finally:
            os.close(fd)
        self.volumes.touched([number])

    # --- reading, inside ----------------------------------------------------------------------------------------------

    def _live_record(self, digest: bytes) -> ObjectRecord:
        record = self.record(digest)
        if record is None:
            raise ObjectMissing(f"object {digest.hex()} is not in the store")
        if record.flags & ObjectRecord.DAMAGED:
            raise ObjectDamaged(f"object {digest.hex()} is damaged and was set aside")
        return record

    def _read_ahead(self, digest: bytes, record: ObjectRecord, index: int) -> None:
        """Have the disk begin with what a reader who comes for whole frames needs now and next."""
        with contextlib.suppress(ObjectDamaged, OSError):  # said when it is read
            table = self._table(digest, record)
            last = table[min(index + AHEAD_FRAMES, len(table)) - 1]
            start = table[index].offset
            self.volumes.will_need(record.volume, record.offset + start, last.offset + last.stored - start)

    def _frame(self, digest: bytes, record: ObjectRecord, index: int, *, keep: bool = True) -> bytes:
        plain = self._cache.get((digest, index))
        if plain is None:
            try:
                plain = self._decode(digest, record, index)
            except (ObjectDamaged, OSError) as error:
                if not _is_damage(error):
                    raise
                if not self.condemn(digest, record, error):
                    return self._frame(digest, self._live_record(digest), index, keep=keep)
                raise ObjectDamaged(f"object {digest.hex()} is damaged and was set aside: {error}") from error
            if keep:
                self._cache.put((digest, index), plain)
        return plain

    def _decode(self, digest: bytes, record: ObjectRecord, index: int) -> bytes:
        if record.frames == 1:
            stored = self.volumes.read(record.volume, record.offset, record.length - TRAILER.size)
            plain = self._codec.decode_frame(stored, record.plain)
            if blake3(plain).digest() != digest:
                raise ObjectDamaged("the bytes do not match the digest")
            return plain
        frame = self._table(digest, record)[index]
        stored = self.volumes.read(record.volume, record.offset + frame.offset, frame.stored)
        plain = self._codec.decode_frame(stored, frame.plain)
        if frame_check(plain) != frame.check:
            raise ObjectDamaged(f"frame {index} does not match its digest")
        return plain

    def _table(self, digest: bytes, record: ObjectRecord) -> list[Frame]:
        table = self._tables.get(digest)
        if table is None:
            table = self._tables[digest] = self._read_tail(digest, record)
            if len(self._tables) > _TABLES_MAX:
                self._tables.popitem(last=False)
        return table

    def _read_tail(self, digest: bytes, record: ObjectRecord) -> list[Frame]:
        length = tail_length(record.frames)
        tail = self.volumes.read(record.volume, record.offset + record.length - length, length)
        return decode_tail(tail, digest, record.length)

    def _forget(self, digest: bytes, record: ObjectRecord) -> None:
        self._tables.pop(digest, None)
        self._cache.drop(digest, record.frames)


def _is_damage(error: Exception) -> bool:
    """Too many open files or too little memory say nothing of the object; a file that is gone or unreadable does."""
    return isinstance(error, ObjectDamaged | FileNotFoundError) or (
        isinstance(error, OSError) and error.errno == errno.EIO
    )


def _write_all(fd: int, data: bytes, path: Path) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        raise or_no_space(error, path) from error
