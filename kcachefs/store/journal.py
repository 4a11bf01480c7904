"""The journal: an append-only log in which every acknowledged mutation is written before its caller goes on.

A record is one whole mutation: a list of keys set or deleted. It is acknowledged by a plain write(2), which survives
the death of the process; `sync` makes it survive the death of the machine. The log is a row of segments: a fold starts
a new one, puts the old ones' records into the catalog, and removes them. Replaying a segment twice does no harm,
because records hold values, not differences.

A segment ends where its first record that is not whole begins: a torn tail is what a kill leaves, a flipped bit is what
a disk leaves, and behind either nothing can be trusted to be in order.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from kcachefs.errors import NoSpace, StoreClosed

Changes = dict[bytes, bytes | None]
"""What a mutation does: each key's new value, or None where it goes."""

_SEGMENT_HEADER = struct.Struct("<8sIIQ")  # magic, version, unused, segment number
_MAGIC = b"kcjournl"
_VERSION = 1
_RECORD = struct.Struct("<II")  # body length, CRC-32 of segment number and body
_CHANGE = struct.Struct("<HI")  # key length, value length or _DELETED
_DELETED = 0xFFFFFFFF
_NAME = re.compile(r"(\d{10})\.log")

RESERVE = 1 << 20
"""Disk space taken ahead for a new segment, so that a full disk can still record the deletions that make room."""


class Journal:
    """Appends to the newest segment. Not thread-safe: the catalog calls it under its lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = -1
        self._broken: OSError | None = None
        numbers = segment_numbers(directory)
        self._number = numbers[-1] if numbers else 0
        self._length = 0
        self.rotate()

    @property
    def length(self) -> int:
        """Bytes in the newest segment."""
        return self._length

    @property
    def number(self) -> int:
        """Number of the newest segment."""
        return self._number

    def append(self, changes: Changes) -> None:
        """Write one mutation. When this returns it survives SIGKILL; when it raises, nothing was written."""
        record = encode_record(self._number, changes)
        if self._broken is not None:
            raise StoreClosed(f"{self._path(self._number)}: an earlier write could not be undone: {self._broken}")
        try:
            written = os.write(self._fd, record)
        except OSError as error:
            self._undo()
            raise _as_no_space(error, self._path(self._number)) from error
        if written != len(record):
            self._undo()
            raise NoSpace(f"{self._path(self._number)}: the disk is full; free some space and try again")
        self._length += written

    def sync(self) -> None:
        """Make everything appended so far survive power loss."""
        os.fdatasync(self._fd)

    def rotate(self) -> int:
        """Start a new segment and return its number; the older ones are the caller's to fold and `remove`."""
        number = self._number + 1
        path = self._path(number)
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _as_no_space(error, path) from error
        try:
            with contextlib.suppress(OSError):  # not every filesystem can; then a full disk shows at append
                _fallocate_keep_size(fd, RESERVE)
            header = _SEGMENT_HEADER.pack(_MAGIC, _VERSION, 0, number)
            if os.write(fd, header) != len(header):
                raise OSError(errno.ENOSPC, "short write")
        except OSError as error:
            os.close(fd)
            os.unlink(path)
            raise _as_no_space(error, path) from error
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._number, self._length, self._broken = fd, number, len(header), None
        return number

    def remove_before(self, number: int) -> None:
        """Delete the segments below `number`: what they hold is in the catalog."""
        for old in segment_numbers(self._directory):
            if old < number:
                os.unlink(self._path(old))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _undo(self) -> None:
        # A record cut short in the middle of a segment would hide every later one from recovery.
        try:
            os.ftruncate(self._fd, self._length)
        except OSError as error:
            self._broken = error

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:010d}.log"


def segment_numbers(directory: Path) -> list[int]:
    """The segments that are there, oldest first."""
    return sorted(int(match[1]) for name in os.listdir(directory) if (match := _NAME.fullmatch(name)))


def replay(directory: Path) -> Iterator[Changes]:
    """Every whole record of every segment, oldest first; stops for good at the first damaged one.

    A segment is only ever followed by another when it was whole at the time, so damage in one makes everything behind
    it, later segments included, untrustworthy: applying them would leave a gap in the middle of history.
    """
    for number in segment_numbers(directory):
        raw = (directory / f"{number:010d}.log").read_bytes()
        whole = yield from _replay_segment(number, raw)
        if not whole:
            return


def _replay_segment(number: int, raw: bytes) -> Iterator[Changes]:
    # Returns whether the segment was whole to its end.
    if len(raw) < _SEGMENT_HEADER.size:
        return False
    magic, version, _, recorded = _SEGMENT_HEADER.unpack_from(raw)
    if magic != _MAGIC or version != _VERSION or recorded != number:
        return False
    position = _SEGMENT_HEADER.size
    while position < len(raw):
        if position + _RECORD.size > len(raw):
            return False
        length, checksum = _RECORD.unpack_from(raw, position)
        body = raw[position + _RECORD.size : position + _RECORD.size + length]
        if length == 0 or len(body) != length or _checksum(number, body) != checksum:
            return False
        yield decode_changes(body)
        position += _RECORD.size + length
    return True


def encode_record(number: int, changes: Changes) -> bytes:
    parts = []
    for key, value in changes.items():
        if value is None:
            parts += (_CHANGE.pack(len(key), _DELETED), key)
        else:
            parts += (_CHANGE.pack(len(key), len(value)), key, value)
    body = b"".join(parts)
    return _RECORD.pack(len(body), _checksum(number, body)) + body


def decode_changes(body: bytes) -> Changes:
    changes: Changes = {}
    position = 0
    while position < len(body):
        key_length, value_length = _CHANGE.unpack_from(body, position)
        position += _CHANGE.size
        key = body[position : position + key_length]
        position += key_length
        if value_length == _DELETED:
            changes[key] = None
        else:
            changes[key] = body[position : position + value_length]
            position += value_length
    return changes


def _checksum(number: int, body: bytes) -> int:
    # The segment's number is part of it: a block of an older, reused segment never passes for one of this.
    return zlib.crc32(body, number & 0xFFFFFFFF)


def _as_no_space(error: OSError, path: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(f"{path}: the disk is full; free some space and try again")
    return error


def _fallocate_keep_size(fd: int, length: int) -> None:
    # os.posix_fallocate would change the size, and the size is what tells where the log ends.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 1, ctypes.c_long(0), ctypes.c_long(length)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
