"""Reads frames of objects from their volumes, decodes them and checks them. Returns nothing unchecked."""

from __future__ import annotations

import contextlib

from blake3 import blake3

from kcachefs.bounded import BoundedDict
from kcachefs.errors import ObjectDamaged
from kcachefs.store.frames import (
    CHECKSUM_SIZE,
    FRAME_SIZE,
    TRAILER,
    TRAILER_DIGEST,
    Codec,
    Frame,
    decode_tail,
    frame_check,
    stored_max,
    tail_length,
)
from kcachefs.store.object_records import ObjectRecord
from kcachefs.store.volumes import Volumes

AHEAD_FRAMES = 16
"""How many frames (4 MiB of plain bytes) are requested from the disk ahead of a reader of large pieces."""
_TABLES_MAX = 256


class FrameReader:
    """Frames by digest, record and index; knows where each frame of a large object lies. Any thread may use it.

    Every method raises ObjectDamaged or OSError if the bytes are missing or wrong.
    """

    def __init__(self, volumes: Volumes, codec: Codec) -> None:
        self._volumes = volumes
        self._codec = codec
        self._tables: BoundedDict[tuple[int, int], list[Frame]] = BoundedDict(_TABLES_MAX)
        """Frame tables by the object's place: repacking moves an object's frames elsewhere."""

    def read(self, digest: bytes, record: ObjectRecord, index: int) -> bytes:
        """The plain bytes of one frame, checked by its checksum if it has one, else by its hash."""
        if record.frames == 1:
            return self.decode_single(digest, record, self._read_single(record))
        frame, stored = self._read_one_of_many(digest, record, index)
        plain, is_checked = self._codec.decode_frame(stored, frame.plain)
        if not (is_checked and stored[-CHECKSUM_SIZE:] == frame.check[:CHECKSUM_SIZE]):
            _compare_frame(plain, stored, frame)
        return plain

    def decode_single(self, digest: bytes, record: ObjectRecord, raw: bytes | bytearray) -> bytes:
        """The same for an object of one frame; `raw` is the whole object as stored."""
        plain, is_checked = self._codec.decode_frame(memoryview(raw)[: -TRAILER.size], record.plain)
        if not (is_checked and raw[TRAILER_DIGEST] == digest):
            _compare(plain, digest)
        return plain

    def read_both(self, digest: bytes, record: ObjectRecord, index: int) -> tuple[bytes, bytes]:
        """The plain bytes of one frame, checked by its hash, and the frame as stored."""
        if record.frames == 1:
            stored = self._read_single(record)[: -TRAILER.size]
            plain, _ = self._codec.decode_frame(stored, record.plain)
            _compare(plain, digest)
            return plain, stored
        frame, stored = self._read_one_of_many(digest, record, index)
        plain, _ = self._codec.decode_frame(stored, frame.plain)
        _compare_frame(plain, stored, frame)
        return plain, stored

    def check(self, digest: bytes, record: ObjectRecord) -> None:
        """Read all of an object from the disk and compare it with its digest."""
        self.read_table(digest, record)
        hasher = blake3()
        for index in range(record.frames):
            hasher.update(self.read(digest, record, index))
        if hasher.digest() != digest:
            raise ObjectDamaged("each frame is intact, but together they do not match the digest")

    def read_ahead(self, digest: bytes, record: ObjectRecord, index: int) -> None:
        """Have the disk start reading the frames that a reader of whole frames needs now and next."""
        with contextlib.suppress(ObjectDamaged, OSError):  # `read` will report the problem
            table = self._table(digest, record)
            last = table[min(index + AHEAD_FRAMES, len(table)) - 1]
            start = table[index].offset
            self._volumes.will_need(record.volume, record.offset + start, last.offset + last.stored - start)

    def read_table(self, digest: bytes, record: ObjectRecord) -> list[Frame]:
        """Where each frame lies, from the disk."""
        length = tail_length(record.frames)
        tail = self._volumes.read(record.volume, record.offset + record.length - length, length)
        return decode_tail(tail, digest, record.length)

    def is_incompressible(self, digest: bytes, record: ObjectRecord) -> bool:
        """Whether compression made no frame of an object shorter."""
        return all(frame.stored >= frame.plain for frame in self.read_table(digest, record))

    def forget(self, record: ObjectRecord) -> None:
        self._tables.pop(record.place, None)

    def clear(self) -> None:
        self._tables.clear()

    def _read_single(self, record: ObjectRecord) -> bytes:
        """The frame of an object that has only one, and its trailer."""
        if not TRAILER.size <= record.length <= stored_max(FRAME_SIZE) + TRAILER.size:
            raise ObjectDamaged("its record claims a length that no object of one frame has")
        return self._volumes.read(record.volume, record.offset, record.length)

    def _read_one_of_many(self, digest: bytes, record: ObjectRecord, index: int) -> tuple[Frame, bytes]:
        frame = self._table(digest, record)[index]
        return frame, self._volumes.read(record.volume, record.offset + frame.offset, frame.stored)

    def _table(self, digest: bytes, record: ObjectRecord) -> list[Frame]:
        table = self._tables.get(record.place)
        if table is None:
            table = self._tables[record.place] = self.read_table(digest, record)
        return table


def _compare(plain: bytes, digest: bytes) -> None:
    if blake3(plain).digest() != digest:
        raise ObjectDamaged("the bytes do not match the digest")


def _compare_frame(plain: bytes, stored: bytes, frame: Frame) -> None:
    if frame_check(plain, stored) != frame.check:
        raise ObjectDamaged("a frame is not the one in its object's table")
