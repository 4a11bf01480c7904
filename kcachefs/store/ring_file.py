"""Ring files: a fixed number of slots of one size, in which a new record takes the place of the oldest.

A record has a number and lies in the slot `number % slots`, after its checksum. So a file never grows beyond its slots,
and takes disk space only for slots that were ever written. A record that a kill or a power cut tore counts as absent.
Nothing is synced: a kill loses nothing, a power cut may lose the last records.

The first record creates the file. One thread at a time may write; any thread may read.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path

from kcachefs.errors import or_no_space

HEAD = struct.Struct("<IHQ")
"""Checksum of the rest of the record, length of the record's body, and the record's number."""
_CHECKSUM = struct.Struct("<I")


class RingFile:
    """The ring in the file at `path`."""

    def __init__(self, path: Path, slots: int, size: int) -> None:
        self.path = path
        self.slots = slots
        self.size = size
        self.body_max = size - HEAD.size
        self._fd: int | None = None
        self._next: int | None = None
        self.allocated = self._blocks()

    def append(self, body: bytes) -> int:
        """Write one more record, which replaces the oldest if need be; returns its number."""
        number = self.next_number
        self.put(number, body)
        return number

    def put(self, number: int, body: bytes) -> None:
        """Write the record with this number; a body too long for a slot is cut off."""
        body = body[: self.body_max]
        rest = HEAD.pack(0, len(body), number)[_CHECKSUM.size :] + body
        raw = _CHECKSUM.pack(zlib.crc32(rest)) + rest
        following = max(self.next_number, number + 1)  # first, because this may make the file that it searches
        try:
            os.pwrite(self._open(), raw, number % self.slots * self.size)
        except OSError as error:
            raise or_no_space(error, self.path) from error
        self._next = following
        self.allocated = self._blocks()

    def get(self, number: int) -> bytes | None:
        """The body of the record with this number; None if it was replaced, is damaged or never existed."""
        found = self._parse(self._read(number % self.slots * self.size, self.size))
        return found[1] if found is not None and found[0] == number else None

    def records(self) -> list[tuple[int, bytes]]:
        """Every record as its number and body, the oldest first."""
        raw, size = self._read(0, self.slots * self.size), self.size
        found = (self._parse(raw[start : start + size]) for start in range(0, len(raw), size))
        return sorted(record for record in found if record is not None)

    def damaged(self) -> list[int]:
        """Slots that hold something other than an intact record that belongs there."""
        raw, size, wrong = self._read(0, self.slots * self.size), self.size, []
        empty = bytes(size)
        for slot in range(-(-len(raw) // size)):
            piece = raw[slot * size : (slot + 1) * size]
            if piece == empty:  # most slots are
                continue
            found = self._parse(piece)
            if any(piece) if found is None else found[0] % self.slots != slot:
                wrong.append(slot)
        return wrong

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        os.pwrite(self._open(), bytes(self.size), slot * self.size)

    @property
    def next_number(self) -> int:
        """One more than the highest number of a record; 1 in a new file."""
        if self._next is None:
            self._next = next((number + 1 for number in self._numbers() if self.get(number) is not None), 1)
        return self._next

    def column(self, start: int, width: int) -> bytearray:
        """Bytes `start` to `start + width` of every body, slot after slot, unchecked: quick to search."""
        raw = self._read(0, self.slots * self.size)
        raw += bytes(-len(raw) % self.size)
        column = bytearray(len(raw) // self.size * width)
        for place in range(width):
            column[place::width] = raw[HEAD.size + start + place :: self.size]
        return column

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _numbers(self) -> Iterator[int]:
        """The numbers in all slots, checked or not, highest first. By columns: a loop over slots takes too long."""
        column = self.column(-8, 8)
        yield from sorted(array("Q", bytes(column)), reverse=True)

    def _parse(self, raw: bytes) -> tuple[int, bytes] | None:
        if len(raw) < HEAD.size:
            return None
        checksum, length, number = HEAD.unpack_from(raw)
        end = HEAD.size + length
        if end > len(raw) or zlib.crc32(raw[_CHECKSUM.size : end]) != checksum:
            return None
        return number, raw[HEAD.size : end]

    def _read(self, offset: int, size: int) -> bytes:
        if self._fd is None and not self.path.exists():
            return b""
        return os.pread(self._open(), size, offset)

    def _open(self) -> int:
        if self._fd is None:
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        return self._fd

    def _blocks(self) -> int:
        """What the file takes on the disk."""
        with contextlib.suppress(FileNotFoundError):
            state = os.fstat(self._fd) if self._fd is not None else os.stat(self.path, follow_symlinks=False)
            return state.st_blocks * 512
        return 0
