"""The journal: an append-only log to which every acknowledged mutation is written before its caller goes on.

A record is one whole mutation: a list of keys set or deleted. A plain write(2) acknowledges it and survives the death
of the process; syncing the segments makes it survive a power cut. The log is a row of segments: a fold starts a new
one, puts the records of the old ones into LMDB, and removes the old ones. A `Mark` says how far the fold went; LMDB
commits it together with those records. Replay starts at the mark, so a folded record is never applied again, not even
if a power cut brings a removed segment back and takes the one after it.

A segment ends where its first incomplete or damaged record begins: a kill leaves a torn tail, a disk may flip a bit,
and nothing after such damage can be trusted. A power cut may also take whole records from the end of a segment and
leave the next one, which the disk wrote earlier. So each segment begins with the length of the one before it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import struct
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple

from kcachefs import libc
from kcachefs.errors import StoreClosed, or_no_space
from kcachefs.store.descriptor import Descriptor, sync_directory

log = logging.getLogger(__name__)

Changes = dict[bytes, bytes | None]
"""What a mutation does: the new value of each key, or None to delete it."""

_SEGMENT_HEADER = struct.Struct("<8sIQI")  # magic, version, segment number, CRC-32 of all before it
_MAGIC = b"kcjournl"
_VERSION = 1
_RECORD = struct.Struct("<II")  # body length, CRC-32 of segment number and body
_CHANGE = struct.Struct("<HI")  # key length, value length or _DELETED
_DELETED = 0xFFFFFFFF
_NAME = re.compile(r"(\d{10})\.log")
_BEFORE = b"mbefore"
"""The key of a segment's first record, which holds the length of the segment before it."""
_LENGTH = struct.Struct("<Q")
_write = libc.write_in_one_go

RESERVE = 1 << 20
"""Disk space reserved for each new segment, so that deletions, which make room, can be recorded even on a full disk."""
RESERVE_AT_REST = 64 << 10
"""The smaller reserve while nothing happens and the disk has `PLENTY` of room. A fold may need more than this."""
PLENTY = 1 << 30
"""If the disk has fewer free bytes than this, the whole reserve is kept."""


class Mark(NamedTuple):
    """Everything before this place is in LMDB: all segments below `segment`, and its first `offset` bytes."""

    segment: int
    offset: int


class Journal:
    """Appends to the newest segment. The catalog calls it under its own lock. Run `replay` first: it trims damage."""

    def __init__(self, directory: Path, folded: Mark = Mark(0, 0)) -> None:  # noqa: B008
        self._directory = directory
        self._broken: OSError | None = None
        self._durable = 0
        self.length = 0
        """Bytes in the newest segment; only the journal changes it."""
        self._rests = False
        """Whether the newest segment has the smaller reserve."""
        self._segments = {number: self._open(number) for number in segment_numbers(directory)}
        self._number = max(self._segments, default=folded.segment)
        if self._segments:
            self.length = os.fstat(self._newest).st_size
        # After a kill the newest segment stays in use: on a full disk there is no room for another one.
        if self.length < _SEGMENT_HEADER.size or Mark(self._number, self.length) < folded:
            self.rotate()

    @property
    def end(self) -> Mark:
        """Where the next record goes."""
        return Mark(self._number, self.length)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been appended to the newest segment."""
        return self.length <= _SEGMENT_HEADER.size + _BEFORE_SIZE

    @property
    def trouble(self) -> str:
        """Why the last record could not be written, if that cannot be undone either; empty otherwise."""
        error = self._broken
        return "" if error is None else error.strerror or str(error)

    def append(self, changes: Changes) -> None:
        """Write one mutation. When this returns, it survives SIGKILL; if it raises, nothing was written."""
        record = encode_record(self._number, changes)
        if self._broken is not None:
            self._undo()
        try:
            length = len(record)
            written = _write(self._segments[self._number].fd, record, length)
            if written != length:
                raise libc.failure() if written < 0 else OSError(errno.ENOSPC, "short write")
        except OSError as error:
            error.filename = str(self._path(self._number))
            self._undo()
            raise or_no_space(error, error.filename) from error
        self.length += length

    def segments(self) -> list[Descriptor]:
        """All segments: syncing them makes everything appended so far survive a power cut."""
        return list(self._segments.values())

    def sync_names(self) -> None:
        """Make the segments' names survive a power cut. Needs no lock."""
        number = self._number
        if self._durable < number:
            sync_directory(self._directory)
            self._durable = number

    def rotate(self) -> Mark:
        """Start a new segment and return where it begins. The caller folds and removes the older ones."""
        if self._broken is not None:
            self._undo()
        number = self._number + 1
        path = self._path(number)
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise or_no_space(error, path) from error
        try:
            is_reserved = _reserve(fd, RESERVE)
            header = _encode_header(number)
            if self._number in self._segments:
                header += encode_record(number, {_BEFORE: _LENGTH.pack(self.length)})
            if os.write(fd, header) != len(header):
                raise OSError(errno.ENOSPC, "short write")
        except OSError as error:
            os.close(fd)
            os.unlink(path)
            raise or_no_space(error, path) from error
        self.give_reserve_back()
        self._segments[number] = Descriptor(fd)
        self._number, self.length, self._rests = number, len(header), False
        if not is_reserved:
            self.reserve_what_is_left()
        return self.end

    def give_reserve_back(self) -> None:
        """Free the space reserved for the newest segment, because LMDB needs it more urgently or nobody needs it."""
        if self._number in self._segments:
            with contextlib.suppress(OSError):
                os.ftruncate(self._newest, self.length)

    def reserve_what_is_left(self) -> None:
        """Reserve as much as a full disk has left, before anybody else takes it: deletions will need it."""
        for part in (1, 2, 4, 8):
            if _reserve(self._newest, self.length + RESERVE // part):
                return

    def rest(self) -> None:
        """Keep only a small reserve until the next segment is started, unless the disk is short of room."""
        if not self._rests and self.length < RESERVE_AT_REST and self._free_bytes() >= PLENTY:
            self.give_reserve_back()
            _reserve(self._newest, RESERVE_AT_REST)
            self._rests = True

    def keep_reserve(self) -> None:
        """Reserve the full space again, if `rest` gave it back and the disk has become short of room since.

        Also undo a write that failed, once that is possible: the trouble is over then.
        """
        if self._broken is not None:
            with contextlib.suppress(StoreClosed):
                self._undo()
        if self._rests and self._free_bytes() < PLENTY:
            _reserve(self._newest, RESERVE)
            self._rests = False

    def remove_before(self, mark: Mark) -> None:
        """Delete the segments below the mark: they are in LMDB. The oldest goes first, so that no gap is left."""
        for number in sorted(self._segments):
            if number < mark.segment:
                self._segments.pop(number)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(number))

    def close(self) -> None:
        self._segments.clear()

    @property
    def _newest(self) -> int:
        return self._segments[self._number].fd

    def _free_bytes(self) -> int:
        disk = os.statvfs(self._directory)
        return disk.f_bavail * disk.f_frsize

    def _open(self, number: int) -> Descriptor:
        return Descriptor(os.open(self._path(number), os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC))

    def _undo(self) -> None:
        # An incomplete record in the middle of a segment would hide every later one from recovery.
        try:
            os.ftruncate(self._newest, self.length)
            self._broken = None
        except OSError as error:
            if self._broken is not None:
                raise StoreClosed(f"{self._path(self._number)}: a failed write cannot be undone: {error}") from error
            self._broken = error

    def _path(self, number: int) -> Path:
        return segment_path(self._directory, number)


def segment_path(directory: Path, number: int) -> Path:
    return directory / f"{number:010d}.log"


def segment_numbers(directory: Path) -> list[int]:
    """The segments that exist, oldest first."""
    return sorted(int(match[1]) for name in os.listdir(directory) if (match := _NAME.fullmatch(name)))


def replay(directory: Path, quarantine: Path, folded: Mark = Mark(0, 0)) -> Iterator[Changes]:  # noqa: B008
    """Every complete record after `folded`, oldest first; stops at the first damaged record.

    A new segment is started only while the one before it is intact. So damage makes everything after it untrustworthy,
    later segments included: applying them would leave a gap in history. Records that are not replayed are cut off and
    set aside in `quarantine`. Segments that were folded are removed.
    """
    before = 0
    for number in segment_numbers(directory):
        path = segment_path(directory, number)
        if number < folded.segment:
            path.unlink()
            continue
        raw = path.read_bytes()
        start = folded.offset if number == folded.segment else 0
        if number > folded.segment and _follows(number, raw) not in (before, None):
            _trim(directory, number, raw, 0, quarantine)
            return
        whole = before = yield from _replay_segment(number, raw, start)
        if whole < len(raw) or whole == 0:
            _trim(directory, number, raw[whole:], whole, quarantine)
            return


def _replay_segment(number: int, raw: bytes, start: int) -> Generator[Changes, None, int]:
    # Returns where the intact part of the segment ends.
    if start >= len(raw) > 0:
        return len(raw)
    if raw[: _SEGMENT_HEADER.size] != _encode_header(number):
        return 0
    return (yield from decode_records(number, raw, max(start, _first_change(number, raw))))


def _follows(number: int, raw: bytes) -> int | None:
    """The length of the segment before this one; None if none is recorded (a first segment, or an old version's)."""
    first = next(decode_records(number, raw[: _SEGMENT_HEADER.size + _BEFORE_SIZE], _SEGMENT_HEADER.size), {})
    said = first.get(_BEFORE)
    return int(_LENGTH.unpack(said)[0]) if said is not None else None


def _first_change(number: int, raw: bytes) -> int:
    return _SEGMENT_HEADER.size + (_BEFORE_SIZE if _follows(number, raw) is not None else 0)


def _trim(directory: Path, number: int, rest: bytes, whole: int, quarantine: Path) -> None:
    # After this, the journal holds only replayed records, so new segments may follow before any fold.
    for later in segment_numbers(directory):
        if later > number:
            log.warning("journal segment %d was set aside: the one before it is damaged", later)
            os.replace(segment_path(directory, later), quarantine / f"journal-{later:010d}.log")
    path = segment_path(directory, number)
    if rest:
        log.warning("%s: cut at byte %d of %d, where a record is incomplete or damaged", path, whole, whole + len(rest))
        with contextlib.suppress(OSError):  # on a full disk, mending matters more than the evidence
            (quarantine / f"journal-{number:010d}-from-{whole}.log").write_bytes(rest)
    if whole:
        os.truncate(path, whole)
    else:
        path.unlink()


def encode_record(number: int, changes: Changes) -> bytes:
    parts: list[bytes] = []
    for key, value in changes.items():
        if value is None:
            parts += (_CHANGE.pack(len(key), _DELETED), key)
        else:
            parts += (_CHANGE.pack(len(key), len(value)), key, value)
    body = b"".join(parts)
    return _RECORD.pack(len(body), zlib.crc32(body, number & 0xFFFFFFFF)) + body  # `_checksum` inlined, to save a call


_BEFORE_SIZE = len(encode_record(0, {_BEFORE: _LENGTH.pack(0)}))


def decode_records(number: int, raw: bytes, position: int = 0) -> Generator[Changes, None, int]:
    """The records of segment `number` in `raw` from `position` on; returns where the intact records end."""
    while position + _RECORD.size <= len(raw):
        length, checksum = _RECORD.unpack_from(raw, position)
        body = raw[position + _RECORD.size : position + _RECORD.size + length]
        if length == 0 or len(body) != length or _checksum(number, body) != checksum:
            break
        yield decode_changes(body)
        position += _RECORD.size + length
    return position


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


def _encode_header(number: int) -> bytes:
    header = _SEGMENT_HEADER.pack(_MAGIC, _VERSION, number, 0)[:-4]
    return header + zlib.crc32(header).to_bytes(4, "little")


def _checksum(number: int, body: bytes) -> int:
    # Starts from the segment's number: old bytes of another segment never pass for a record of this one.
    return zlib.crc32(body, number & 0xFFFFFFFF)


def _reserve(fd: int, length: int) -> bool:
    # os.posix_fallocate would change the size, and the size says where the log ends. Not every filesystem can reserve
    # space like this, and a full one refuses to: then `append` fails when the space is needed.
    try:
        libc.fallocate(fd, libc.FALLOC_FL_KEEP_SIZE, 0, length)
    except OSError:
        return False
    return True
