"""The direct engine's handlers for requests about names. Each reads the request in the engine's buffer.

A handler takes (engine, inode, request number, length) and returns the body of the reply, or None if the reply is sent
from elsewhere or never.
"""

from __future__ import annotations

import errno
import os

from kcachefs.core import Filesystem
from kcachefs.core.caller import Caller
from kcachefs.core.remote import Found
from kcachefs.core.tree import DOTDOT
from kcachefs.engines import protocol as p
from kcachefs.engines.exchange import Exchange
from kcachefs.engines.replies import (
    BRIEF_MISS,
    LISTING_AFRESH,
    LISTING_KEPT,
    LISTING_NEW,
    MISS,
    NO_ENTRY,
    OPENED,
    pack_entry,
    pack_name,
    pack_names,
)
from kcachefs.errors import FsError, RequestGarbled
from kcachefs.store.inode_numbers import REPORT_INO
from kcachefs.store.records import Inode

_HEADER = p.IN_HEADER.size
_NAMES_MAX, _ENTRIES_MAX = 256, 24
"""The most names in one reply, without and with their attributes: all other requests wait while it is put together."""
_LARGE, _FIRST_ENTRIES_MAX = 64, 8
"""In a folder with at least the first number of names, the first reply has only the second number of names, with
attributes. The kernel always wants attributes there, but a program that lists a large folder seldom does. The kernel
asks for the attributes of the others only once somebody has used these."""
_REMOVED_MAX = 32
"""The most inodes removed because one request forgets them. Any more go later, because all other requests wait."""


def lookup(engine: Exchange, ino: int, unique: int, length: int) -> bytes | None:
    fs, buffer, header = engine.fs, engine.buffer, engine.header
    if buffer[length - 1]:
        raise RequestGarbled("a name without an end")
    # The code of `engine.caller` and `pack_found` is inlined here: no request is more frequent.
    caller, name = Caller(header[4], header[5], header[6]), buffer[_HEADER : length - 1].tobytes()
    if ino == REPORT_INO and not fs.is_quick_to_look_up(ino, name):
        engine.defer(unique, ino, lambda: _look_up(fs, caller, ino, name))
        return None
    try:
        found = fs.lookup(caller, ino, name)
    except FsError as error:
        if not fs.has_remote or error.errno != errno.ENOENT:
            raise
        return _look_elsewhere(engine, caller, ino, name, unique, error)
    if found is None:
        return _look_elsewhere(engine, caller, ino, name, unique) if fs.has_remote else MISS
    node = fs.looked_up(found)
    shown = found if fs.hide_number is None else fs.hide_number(found)
    return pack_entry(found, node, fs.name_seconds(found, node), shown)


def _look_up(fs: Filesystem, caller: Caller, ino: int, name: bytes) -> bytes:
    found = fs.lookup(caller, ino, name)
    if found is None:
        return BRIEF_MISS if fs.has_remote else MISS
    return pack_found(fs, found)


def _look_elsewhere(
    engine: Exchange, caller: Caller, ino: int, name: bytes, unique: int, refusal: FsError | None = None
) -> bytes | None:
    """Answer for a missing name that a remote tier may have. Other requests do not wait for its delivery."""
    fs = engine.fs
    delivery = fs.missed(caller, ino, name)
    if delivery is Found.NOWHERE:
        if refusal is not None:
            raise refusal
        return BRIEF_MISS
    if delivery is Found.HERE:
        return _look_up(fs, caller, ino, name)
    engine.wait_for(unique, ino, delivery, lambda: _look_up(fs, caller, ino, name))
    return None


def pack_found(fs: Filesystem, ino: int) -> bytes:
    """The reply that tells the kernel which inode a name stands for."""
    return _pack(fs, ino, fs.attributes(ino))


def _pack(fs: Filesystem, ino: int, node: Inode) -> bytes:
    shown = ino if fs.hide_number is None else fs.hide_number(ino)
    return pack_entry(ino, node, fs.name_seconds(ino, node), shown)


def forget(engine: Exchange, ino: int, unique: int, length: int) -> None:
    if engine.fs.release(ino, p.FORGET_IN.unpack_from(engine.buffer, _HEADER)[0]):
        engine.unused.add(ino)


def batch_forget(engine: Exchange, ino: int, unique: int, length: int) -> None:
    count = p.BATCH_FORGET_IN.unpack_from(engine.buffer, _HEADER)[0]
    start = _HEADER + p.BATCH_FORGET_IN.size
    if start + count * p.FORGET_ONE.size > length:
        raise RequestGarbled(f"{count} inodes do not fit into {length} bytes")
    references = p.FORGET_ONE.iter_unpack(engine.buffer[start : start + count * p.FORGET_ONE.size])
    unused = [one for one, known in references if engine.fs.release(one, known)]
    for one in unused[:_REMOVED_MAX]:
        engine.unused.add(one)
    engine.unused.remove()


def mkdir(engine: Exchange, ino: int, unique: int, length: int) -> bytes:
    mode, _ = p.MKDIR_IN.unpack_from(engine.buffer, _HEADER)
    name = _name(engine, _HEADER + p.MKDIR_IN.size, length)
    return _pack(engine.fs, *engine.fs.make(engine.caller(), ino, name, 0o040000 | (mode & 0o7777)))


def mknod(engine: Exchange, ino: int, unique: int, length: int) -> bytes:
    mode, rdev, _, _ = p.MKNOD_IN.unpack_from(engine.buffer, _HEADER)
    name = _name(engine, _HEADER + p.MKNOD_IN.size, length)
    return _pack(engine.fs, *engine.fs.make(engine.caller(), ino, name, mode, rdev=rdev))


def symlink(engine: Exchange, ino: int, unique: int, length: int) -> bytes:
    name, target = _two_names(engine, _HEADER, length)
    return _pack(engine.fs, *engine.fs.make(engine.caller(), ino, name, 0o120777, target=target))


def create(engine: Exchange, ino: int, unique: int, length: int) -> bytes:
    flags, mode, _, _ = p.CREATE_IN.unpack_from(engine.buffer, _HEADER)
    name = _name(engine, _HEADER + p.CREATE_IN.size, length)
    is_new = bool(flags & os.O_EXCL)
    return _pack(engine.fs, *engine.fs.create(engine.caller(), ino, name, mode, exclusively=is_new)) + OPENED


def link(engine: Exchange, ino: int, unique: int, length: int) -> bytes:
    (linked,) = p.LINK_IN.unpack_from(engine.buffer, _HEADER)
    name = _name(engine, _HEADER + p.LINK_IN.size, length)
    return _pack(engine.fs, linked, engine.fs.link(engine.caller(), linked, ino, name))


def unlink(engine: Exchange, ino: int, unique: int, length: int) -> bytes:
    engine.fs.unlink(engine.caller(), ino, _name(engine, _HEADER, length))
    return b""


def rmdir(engine: Exchange, ino: int, unique: int, length: int) -> bytes:
    engine.fs.rmdir(engine.caller(), ino, _name(engine, _HEADER, length))
    return b""


def rename(engine: Exchange, ino: int, unique: int, length: int) -> bytes | None:
    (new_parent,) = p.RENAME_IN.unpack_from(engine.buffer, _HEADER)
    return _rename(engine, ino, unique, new_parent, 0, _two_names(engine, _HEADER + p.RENAME_IN.size, length))


def rename2(engine: Exchange, ino: int, unique: int, length: int) -> bytes | None:
    new_parent, flags, _ = p.RENAME2_IN.unpack_from(engine.buffer, _HEADER)
    return _rename(engine, ino, unique, new_parent, flags, _two_names(engine, _HEADER + p.RENAME2_IN.size, length))


def _rename(
    engine: Exchange, ino: int, unique: int, new_parent: int, flags: int, names: tuple[bytes, bytes]
) -> bytes | None:
    (name, new_name), caller, fs = names, engine.caller(), engine.fs
    if fs.is_quick_to_rename(ino, name, new_parent, new_name):
        fs.rename(caller, ino, name, new_parent, new_name, flags)
        return b""
    fs.authorize_rename(caller, ino, name, new_parent, new_name, flags)

    def sync_and_rename() -> bytes:
        fs.rename(caller, ino, name, new_parent, new_name, flags)
        return b""

    engine.defer(unique, ino, sync_and_rename)
    return None


def readlink(engine: Exchange, ino: int, unique: int, length: int) -> bytes:
    return engine.fs.readlink(engine.caller(), ino)


def opendir(engine: Exchange, ino: int, unique: int, length: int) -> bytes:
    changed = engine.fs.attributes(ino).mtime
    engine.fs.note_listing(engine.caller(), ino)
    if engine.fs.lists_afresh:
        return LISTING_AFRESH
    if engine.listing_times.get(ino) == changed:
        return LISTING_KEPT
    engine.listing_times[ino] = changed
    return LISTING_NEW


def readdir(engine: Exchange, ino: int, unique: int, length: int) -> bytes:
    _, cookie, size = p.READ_IN.unpack_from(engine.buffer, _HEADER)
    kept = engine.fs.kept_listing(ino, cookie, size)
    if kept is not None:
        return kept
    hide = engine.fs.hide_number
    rows = engine.fs.listing(ino, cookie, min(size // 32 + 2, _NAMES_MAX))
    if hide is not None:
        rows = [(position, name, hide(child), kind) for position, name, child, kind in rows]
    return pack_names(rows, size)


def readdirplus(engine: Exchange, ino: int, unique: int, length: int) -> bytes:
    _, cookie, size = p.READ_IN.unpack_from(engine.buffer, _HEADER)
    fs, hide, out, room = engine.fs, engine.fs.hide_number, [], size
    most = _ENTRIES_MAX if cookie or fs.attributes(ino).size < _LARGE else _FIRST_ENTRIES_MAX
    rows = fs.listing(ino, cookie, min(size // 160 + 2, most))
    fs.prefetch(child for _, _, child, _ in rows)
    listed: list[tuple[bytes, int]] = []
    for position, name, child, kind in rows:
        record = pack_name(position, name, child if hide is None else hide(child), kind)
        room -= len(record) + p.ENTRY.size
        if room < 0:
            break
        # An entry's name is listed without attributes: they would renew the name, but its next lookup must come to us,
        # because lookups are an entry's heartbeat.
        listed.append((record, child if position > DOTDOT and fs.is_listed_whole(child) else 0))
    fs.hold_all(child for _, child in listed if child)
    for record, child in listed:
        if not child:
            out.append(NO_ENTRY + record)
            continue
        try:
            out.append(pack_found(fs, child) + record)
        except FsError:
            fs.forget(child, 1)
    return b"".join(out)


def _name(engine: Exchange, start: int, length: int) -> bytes:
    if engine.buffer[length - 1]:
        raise RequestGarbled("a name without an end")
    return engine.buffer[start : length - 1].tobytes()


def _two_names(engine: Exchange, start: int, length: int) -> tuple[bytes, bytes]:
    names = _name(engine, start, length).split(b"\0")
    if len(names) != 2:
        raise RequestGarbled(f"{len(names)} names instead of two")
    return names[0], names[1]
