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
import ctypes
import errno
import os
import re
import shutil
import struct
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

from kcachefs.errors import StoreClosed, or_no_space

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


# PyDLL keeps the interpreter's lock. os.write lets go of it, and for a record of 200 bytes, which takes the kernel
# 1 µs, getting it back from three other writing threads costs 30.
_libc = ctypes.PyDLL(None, use_errno=True)
_write = _libc.write
_write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_write.restype = ctypes.c_ssize_t


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
        written = _write(self._fd, record, len(record))
        if written != len(record):
            error = OSError(errno.ENOSPC if written >= 0 else ctypes.get_errno(), "the journal could not be written")
            self._undo()
            raise or_no_space(error, self._path(self._number)) from error
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
            raise or_no_space(error, path) from error
        try:
            with contextlib.suppress(OSError):  # not every filesystem can; then a full disk shows at append
                _fallocate_keep_size(fd, RESERVE)
            header = _SEGMENT_HEADER.pack(_MAGIC, _VERSION, 0, number)
            if os.write(fd, header) != len(header):
                raise OSError(errno.ENOSPC, "short write")
        except OSError as error:
            os.close(fd)
            os.unlink(path)
            raise or_no_space(error, path) from error
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


def replay(directory: Path, quarantine: Path) -> Iterator[Changes]:
    """Every whole record of every segment, oldest first; stops for good at the first damaged one.

    A segment is only ever followed by another when it was whole at the time, so damage in one makes everything behind
    it, later segments included, untrustworthy: applying them would leave a gap in the middle of history. What is not
    replayed is cut off and set aside in `quarantine`.
    """
    for number in segment_numbers(directory):
        raw = (directory / f"{number:010d}.log").read_bytes()
        whole = yield from _replay_segment(number, raw)
        if whole < len(raw) or whole == 0:
            _trim(directory, number, whole, quarantine)
            return


def _replay_segment(number: int, raw: bytes) -> Generator[Changes, None, int]:
    # Returns where the whole part of the segment ends.
    if len(raw) < _SEGMENT_HEADER.size:
        return 0
    magic, version, _, recorded = _SEGMENT_HEADER.unpack_from(raw)
    if magic != _MAGIC or version != _VERSION or recorded != number:
        return 0
    position = _SEGMENT_HEADER.size
    while position + _RECORD.size <= len(raw):
        length, checksum = _RECORD.unpack_from(raw, position)
        body = raw[position + _RECORD.size : position + _RECORD.size + length]
        if length == 0 or len(body) != length or _checksum(number, body) != checksum:
            break
        yield decode_changes(body)
        position += _RECORD.size + length
    return position


def _trim(directory: Path, number: int, whole: int, quarantine: Path) -> None:
    # After this, what is in the journal is what was replayed, so new segments may follow even if no fold succeeds.
    for later in segment_numbers(directory):
        path = directory / f"{later:010d}.log"
        if later > number or (later == number and whole == 0):
            os.replace(path, quarantine / f"journal-{later:010d}.log")
        elif later == number:
            with contextlib.suppress(OSError):  # on a full disk the evidence is worth less than the mend
                shutil.copyfile(path, quarantine / f"journal-{later:010d}.log")
            os.truncate(path, whole)


def encode_record(number: int, changes: Changes) -> bytes:
    parts: list[bytes] = []
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


def _fallocate_keep_size(fd: int, length: int) -> None:
    # os.posix_fallocate would change the size, and the size is what tells where the log ends.
    if _libc.fallocate(fd, 1, ctypes.c_long(0), ctypes.c_long(length)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
