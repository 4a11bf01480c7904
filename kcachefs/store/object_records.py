"""Keys and records of objects, of the volumes that hold them, and of their totals. The schema is in records.py."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

TOTALS_KEY = b"t"
META_VOLUME = b"mvolume"
META_ACTIVE = b"mactive"

_VOLUME_NUMBER = struct.Struct(">I")


def object_key(digest: bytes) -> bytes:
    return b"o" + digest


def volume_key(number: int) -> bytes:
    return b"v" + _VOLUME_NUMBER.pack(number)


@dataclass(slots=True)
class ObjectRecord:
    """Where an object's bytes are, and how many inodes and holders refer to them.

    `length` counts everything in the volume: frames, frame table and trailer. It is 0 if the object is damaged and its
    bytes were given up.
    """

    HELD: ClassVar[int] = 1
    """ContentStore holds the object, which counts as one of `refs`."""
    DAMAGED: ClassVar[int] = 2
    """Its bytes failed verification and were set aside; storing the same bytes again heals it."""
    PACKED: ClassVar[int] = 4
    """Compressed as far as possible: repacking copies the object unchanged."""

    CODEC: ClassVar[struct.Struct] = struct.Struct("<IIQQIIB")

    volume: int
    offset: int
    length: int
    plain: int
    frames: int
    refs: int
    flags: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Volume and offset: they stay the same until compaction or repacking moves the object."""
        return self.volume, self.offset

    def pack(self) -> bytes:
        return self.CODEC.pack(self.volume, self.offset, self.length, self.plain, self.frames, self.refs, self.flags)

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        return cls(*cls.CODEC.unpack(raw))


@dataclass(slots=True)
class VolumeRecord:
    """`size` bytes were appended to the volume, and `live` of them belong to objects."""

    CLOSED: ClassVar[int] = 1
    """Nothing is appended to it any more."""
    PACKED: ClassVar[int] = 2
    """Everything in it was repacked."""

    CODEC: ClassVar[struct.Struct] = struct.Struct("<QQB")

    size: int
    live: int
    flags: int = 0

    def pack(self) -> bytes:
        return self.CODEC.pack(self.size, self.live, self.flags)

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        return cls(*cls.CODEC.unpack(raw))


@dataclass(slots=True)
class Totals:
    """The sums over all object and volume records; every transaction that changes a record updates the totals."""

    CODEC: ClassVar[struct.Struct] = struct.Struct("<QQQQQ")

    objects: int = 0
    plain: int = 0
    """Plain bytes of all objects, each counted once."""
    referenced: int = 0
    """Plain bytes, each object counted once per reference."""
    live: int = 0
    """Bytes in volumes that belong to an object."""
    volumes: int = 0
    """Bytes in volumes, dead ones included."""

    def pack(self) -> bytes:
        return self.CODEC.pack(self.objects, self.plain, self.referenced, self.live, self.volumes)

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        return cls(*cls.CODEC.unpack(raw))
