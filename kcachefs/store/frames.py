"""The layout of an object in its volume: independent frames, a table of them, and a trailer.

    frame 0 │ frame 1 │ … │ table: (u32 stored length, 16-byte check) per frame, if more than one │ trailer

Each frame holds up to FRAME_SIZE plain bytes and is decoded by itself, so a page fault in a mapped library decodes one
frame, not the whole file. It is a zstd frame with zstd's checksum, and may name a dictionary (`dictionaries.py`). If it
is as long as its plain bytes, it is raw: frames of a few bytes are, because compression would make them much longer.

Nothing is returned unchecked. Decoding compares a frame with its checksum. The table has the checksum too, which shows
that it is the right frame. An object's only frame has no table: the digest in the trailer after it shows the same. A
frame has no checksum if it is raw or from before format 4; it is checked by BLAKE3 instead: an only frame against the
object's digest, any other against the hash in its row. The trailer ends with a check over the table and the object's
digest. Repacking and fsck compare everything by BLAKE3. A read does not: on a processor without wide registers, BLAKE3
takes longer than the rest of the read (benchmarks/README.md).
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import zstandard
from blake3 import blake3

from kcachefs.errors import ObjectDamaged
from kcachefs.store.dictionaries import Dictionaries

FRAME_SIZE = 256 << 10
DEFAULT_LEVEL = 3

TRAILER = struct.Struct("<4sIQQ32s8s")  # magic, frames, plain length, length as stored, digest, check of all before it
TRAILER_DIGEST = slice(-40, -8)
"""Where the digest is, counted from the end of the object."""
CHECKSUM_SIZE = 4
_MAGIC = b"KOB1"
_ROW = struct.Struct("<I16s")


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a frame lies in its object, and what it must decode to."""

    offset: int
    stored: int
    plain: int
    check: bytes


class Trailer(NamedTuple):
    """The end of an object: enough to find the object again without the catalog."""

    frames: int
    plain: int
    length: int
    digest: bytes


class Codec:
    """Compresses and decompresses frames at one level. Any thread may use it: each has its own zstd contexts.

    Frames that name a dictionary need `dictionaries`.
    """

    def __init__(self, level: int = DEFAULT_LEVEL, dictionaries: Dictionaries | None = None) -> None:
        self._level = level
        self._dictionaries = dictionaries
        self._local = _Contexts()

    def encode_frame(self, plain: bytes, dictionary: int = 0) -> bytes:
        """The frame as stored. `dictionary` is the number of the dictionary to use; 0 for none."""
        compressor = self._local.compressors.get(dictionary)
        if compressor is None:
            learned = self._dictionary(dictionary) if dictionary else None
            compressor = zstandard.ZstdCompressor(level=self._level, dict_data=learned, write_checksum=True)
            self._local.compressors[dictionary] = compressor
        packed: bytes = compressor.compress(plain)
        return plain if len(packed) > stored_max(len(plain)) or len(packed) == len(plain) else packed

    def decode_frame(self, stored: bytes | memoryview, plain_length: int) -> tuple[bytes, bool]:
        """The plain bytes, and whether a checksum showed that they are what was stored.

        Raises ObjectDamaged if zstd cannot decode the frame, or if its length or its checksum is wrong.
        """
        if not 0 <= plain_length <= FRAME_SIZE:  # a frame of a few bytes can claim to hold a terabyte
            raise ObjectDamaged("a frame claims to be longer than a frame can be")
        if len(stored) == plain_length:
            return bytes(stored), False
        try:
            claims = zstandard.get_frame_parameters(stored)
            if claims.content_size != plain_length:
                raise ObjectDamaged("a frame claims a length that its object does not have")
            decompressor = self._local.decompressors.get(claims.dict_id)
            if decompressor is None:
                learned = self._dictionary(claims.dict_id) if claims.dict_id else None
                decompressor = zstandard.ZstdDecompressor(dict_data=learned)
                self._local.decompressors[claims.dict_id] = decompressor
            plain: bytes = decompressor.decompress(stored)
        except zstandard.ZstdError as error:
            raise ObjectDamaged(f"a frame does not decode: {error}") from None
        return plain, claims.has_checksum

    def _dictionary(self, number: int) -> zstandard.ZstdCompressionDict:
        if self._dictionaries is None:
            raise ObjectDamaged(f"a frame needs dictionary {number:08x}, but there are no dictionaries")
        return self._dictionaries.get(number)


class _Contexts(threading.local):
    """zstd's contexts, by dictionary."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressors: dict[int, zstandard.ZstdDecompressor] = {}


def stored_max(plain: int) -> int:
    """The most bytes that a frame of this many plain bytes may take: incompressible bytes get a little longer."""
    return plain + (plain >> 8)


def split(data: bytes) -> Sequence[bytes]:
    """The plain bytes of each frame."""
    if len(data) <= FRAME_SIZE:
        return (data,)
    return [data[start : start + FRAME_SIZE] for start in range(0, len(data), FRAME_SIZE)]


def last_frame(length: int) -> int:
    """Where the last frame begins in an object of `length` plain bytes."""
    return max(0, length - 1) // FRAME_SIZE * FRAME_SIZE


def read_frames(fd: int) -> Iterator[bytes]:
    """The plain bytes of each frame of an open file, from its start."""
    offset = 0

    def read(size: int) -> bytes:
        nonlocal offset
        part = os.pread(fd, size, offset)
        offset += len(part)
        return part

    return frames_of(read)


def frames_of(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """The plain bytes of each frame. `read` returns at most as many bytes as asked for, and none at the end."""
    while True:
        parts: list[bytes] = []
        wanted = FRAME_SIZE
        while wanted and (part := read(wanted)):
            parts.append(part)
            wanted -= len(part)
        if parts:
            yield parts[0] if len(parts) == 1 else b"".join(parts)
        if wanted:
            return


def frame_check(plain: bytes, stored: bytes) -> bytes:
    """A frame's check in the table: its checksum, if it has one, followed by as much of its hash as fits."""
    return (frame_checksum(stored, len(plain)) + blake3(plain).digest(16))[:16]


def frame_checksum(stored: bytes, plain_length: int) -> bytes:
    """zstd's checksum at the end of a frame; empty if the frame has no checksum."""
    has_one = len(stored) != plain_length and zstandard.get_frame_parameters(stored).has_checksum
    return stored[-CHECKSUM_SIZE:] if has_one else b""


def encode_tail(digest: bytes, plain: int, rows: Sequence[tuple[int, bytes]]) -> bytes:
    """Table and trailer for frames of the given stored lengths and checks."""
    table = b"".join([_ROW.pack(*row) for row in rows]) if len(rows) > 1 else b""
    length = sum([row[0] for row in rows]) + len(table) + TRAILER.size
    head = TRAILER.pack(_MAGIC, len(rows), plain, length, digest, bytes(8))[:-8]
    return table + head + blake3(table + head).digest(8)


def tail_length(frames: int) -> int:
    return TRAILER.size + (_ROW.size * frames if frames > 1 else 0)


def decode_tail(tail: bytes, digest: bytes, length: int) -> list[Frame]:
    """The frames that a table and trailer describe; `length` is the stored length of the whole object."""
    trailer = check_tail(tail)
    if trailer.digest != digest or trailer.length != length:
        raise ObjectDamaged("the trailer belongs to another object")
    if trailer.frames <= 1:
        return [Frame(0, length - TRAILER.size, trailer.plain, digest)]
    frames, offset = [], 0
    for index in range(trailer.frames):
        stored, frame_digest = _ROW.unpack_from(tail, index * _ROW.size)
        size = FRAME_SIZE if index < trailer.frames - 1 else trailer.plain - FRAME_SIZE * (trailer.frames - 1)
        if not 0 < size <= FRAME_SIZE or stored > stored_max(size):
            raise ObjectDamaged("the frames do not add up to the object")
        frames.append(Frame(offset, stored, size, frame_digest))
        offset += stored
    return frames


def check_tail(tail: bytes) -> Trailer:
    """The trailer; raises ObjectDamaged unless the trailer and the table before it pass their check."""
    trailer = decode_trailer(tail[-TRAILER.size :])
    if len(tail) != tail_length(trailer.frames) or blake3(tail[:-8]).digest(8) != tail[-8:]:
        raise ObjectDamaged("the trailer is damaged")
    return trailer


def decode_trailer(raw: bytes) -> Trailer:
    """The trailer, unchecked: its frame count says how long a tail `check_tail` needs."""
    if len(raw) != TRAILER.size:
        raise ObjectDamaged("no object ends here")
    magic, frames, plain, length, digest, _ = TRAILER.unpack(raw)
    if magic != _MAGIC or length < tail_length(frames):
        raise ObjectDamaged("no object ends here")
    return Trailer(frames, plain, length, digest)
