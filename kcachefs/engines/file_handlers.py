"""The direct engine's handlers for requests about attributes and bytes: authorize, choose a thread, act.

A handler takes (engine, inode, request number, length) and returns the body of the reply, or None if the reply is sent
from elsewhere or never.
"""

from __future__ import annotations

import contextlib
import errno
import time

from kcachefs.core.caller import NOBODY, Caller
from kcachefs.core.files import MAX_SIZE
from kcachefs.engines import protocol as p
from kcachefs.engines.exchange import Exchange
from kcachefs.engines.protocol import Fattr
from kcachefs.engines.replies import OPENED, OPENED_UNCACHED, pack_attributes
from kcachefs.errors import NoSpace, RequestGarbled

_NS = 1_000_000_000
_HEADER = p.IN_HEADER.size


def getattr_(engine: Exchange, ino: int, unique: int, length: int) -> bytes:
    return pack_attributes(_shown(engine, ino), engine.fs.attributes(ino))


def _shown(engine: Exchange, ino: int) -> int:
    """The number that attributes show for an inode."""
    hide = engine.fs.hide_number
    return ino if hide is None else hide(ino)


def setattr_(engine: Exchange, ino: int, unique: int, length: int) -> bytes | None:
    fields = p.SETATTR_IN.unpack_from(engine.buffer, _HEADER)
    valid, caller = fields[0], engine.caller()
    size = fields[3] if valid & Fattr.SIZE else None
    owner = bool(valid & (Fattr.MODE | Fattr.UID | Fattr.GID))
    engine.fs.authorize_change(caller, ino, size=size, owner=owner)
    if size is not None and not engine.fs.is_quick_to_resize(ino, size):
        engine.defer(unique, ino, lambda: _set_attributes(engine, caller, ino, fields))
        return None
    return _set_attributes(engine, caller, ino, fields)


def _set_attributes(engine: Exchange, caller: Caller, ino: int, fields: tuple[int, ...]) -> bytes:
    valid, now = fields[0], time.time_ns()
    atime = mtime = None
    if valid & Fattr.ATIME:
        atime = now if valid & Fattr.ATIME_NOW else _moment(fields[5], fields[8])
    if valid & Fattr.MTIME:
        mtime = now if valid & Fattr.MTIME_NOW else _moment(fields[6], fields[9])
    node = engine.fs.set_attributes(
        caller,
        ino,
        mode=fields[11] if valid & Fattr.MODE else None,
        uid=fields[13] if valid & Fattr.UID else None,
        gid=fields[14] if valid & Fattr.GID else None,
        size=fields[3] if valid & Fattr.SIZE else None,
        atime=atime,
        mtime=mtime,
    )
    return pack_attributes(_shown(engine, ino), node)


def _moment(seconds: int, nanoseconds: int) -> int:
    """Nanoseconds; a time before 1677 or after 2262 becomes the nearest one that can be kept."""
    return max(-MAX_SIZE, min(MAX_SIZE, seconds * _NS + nanoseconds))


def open_(engine: Exchange, ino: int, unique: int, length: int) -> bytes | None:
    if not engine.fs.judges_opens:
        engine.reply_error(unique, errno.ENOSYS)
        return None
    uses_cache = engine.fs.authorize_open(engine.caller(), ino, p.OPEN_IN.unpack_from(engine.buffer, _HEADER)[0])
    return OPENED if uses_cache else OPENED_UNCACHED


def read(engine: Exchange, ino: int, unique: int, length: int) -> bytes | None:
    _, offset, size = p.READ_IN.unpack_from(engine.buffer, _HEADER)
    if offset + size > MAX_SIZE or size > p.MAX_REQUEST:
        raise RequestGarbled(f"cannot read {size} bytes at {offset}")
    fs = engine.fs
    if fs.listed:
        fs.note_use(engine.caller(), ino)
    if fs.is_quick_to_read(ino, offset):
        return fs.read(ino, offset, size)
    engine.defer(unique, ino, lambda: fs.read_parts(ino, offset, size))
    return None


def ioctl(engine: Exchange, ino: int, unique: int, length: int) -> None:
    """Refuse every ioctl. But Python asks each file that it opens whether it is a terminal, so this counts as a use."""
    engine.fs.note_use(engine.caller(), ino)
    engine.reply_error(unique, errno.ENOSYS)


def write(engine: Exchange, ino: int, unique: int, length: int) -> bytes | None:
    fs, buffer = engine.fs, engine.buffer
    _, offset, size = p.WRITE_IN.unpack_from(buffer, _HEADER)
    if p.WRITE_DATA + size > length:
        raise RequestGarbled(f"{size} bytes to write are not in {length} bytes")
    data = buffer[p.WRITE_DATA : p.WRITE_DATA + size]
    # For bytes from the page cache the header says uid 0, although root did not write them.
    fs.authorize_write(NOBODY if buffer[p.WRITE_FLAGS] & p.WRITE_CACHE else engine.caller(), ino, offset + size)
    if is_quick := fs.is_quick_to_write(ino, offset + size):
        with contextlib.suppress(NoSpace):  # the disk is full: the write waits for room
            return p.WRITE_OUT.pack(fs.write(ino, offset, data, may_wait=False), 0)
    copy, waits = bytes(data), is_quick or not fs.has_room_to_write(ino, offset + size)
    engine.defer(unique, ino, lambda: p.WRITE_OUT.pack(fs.write(ino, offset, copy), 0), waits=waits, holds=size)
    return None


def fsync(engine: Exchange, ino: int, unique: int, length: int) -> None:
    def sync() -> bytes:
        engine.fs.sync(ino)
        return b""

    engine.defer(unique, ino, sync)


def fallocate(engine: Exchange, ino: int, unique: int, length: int) -> bytes | None:
    _, offset, size, mode, _ = p.FALLOCATE_IN.unpack_from(engine.buffer, _HEADER)

    def allocate(may_wait: bool = True) -> bytes:
        engine.fs.fallocate(ino, mode, offset, size, may_wait=may_wait)
        return b""

    engine.fs.authorize_allocate(engine.caller(), ino, mode, offset, size)
    if engine.fs.is_quick_to_allocate(ino, offset, size):
        return allocate(may_wait=False)
    engine.defer(unique, ino, allocate, waits=True)
    return None
