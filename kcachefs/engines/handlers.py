"""The table of the direct engine's handlers by opcode, and the requests about the filesystem as a whole."""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Callable

from kcachefs.engines import file_handlers as files
from kcachefs.engines import name_handlers as names
from kcachefs.engines import protocol as p
from kcachefs.engines.exchange import Exchange
from kcachefs.engines.name_handlers import pack_found as pack_found
from kcachefs.engines.protocol import Op
from kcachefs.errors import FsError

log = logging.getLogger(__name__)

READAHEAD = 4 << 20
"""The readahead that we ask for. The kernel stays within the limit that the supervisor sets for the mount, whether that
is set before or after this one."""
_HEADER = p.IN_HEADER.size

Handler = Callable[[Exchange, int, int, int], bytes | None]
"""(engine, inode, request number, length) → reply body, or None if the reply is sent from elsewhere or never."""


def is_about_bytes(opcode: int) -> bool:
    """Whether a request fails if a file's bytes are damaged. That file is the request's inode."""
    return opcode in (Op.READ, Op.WRITE, Op.SETATTR, Op.FALLOCATE, Op.FSYNC)


def _init(engine: Exchange, ino: int, unique: int, length: int) -> bytes:
    major, minor, readahead, flags = p.INIT_IN.unpack_from(engine.buffer, _HEADER)
    offered = flags
    if flags & p.Init.INIT_EXT and length >= _HEADER + 20:
        offered |= struct.unpack_from("<I", engine.buffer, _HEADER + 16)[0] << 32
    if major < p.MAJOR:
        raise FsError(errno.EPROTO, f"the kernel speaks FUSE {major}.{minor}")
    if major > p.MAJOR:  # it asks again with our version
        return p.INIT_OUT.pack(p.MAJOR, p.MINOR, *[0] * 10)
    wanted = offered & engine.capabilities
    if engine.fs.links_differ:
        wanted &= ~p.Init.CACHE_SYMLINKS
    if engine.fs.allows_idmap:
        wanted |= offered & p.Init.ALLOW_IDMAP
    engine.negotiated(wanted)
    log.debug("kernel protocol %d.%d, capabilities %#x of %#x", major, minor, wanted, offered)
    return p.INIT_OUT.pack(
        p.MAJOR,
        min(minor, p.MINOR),
        max(readahead, READAHEAD),
        wanted & 0xFFFFFFFF,
        64,
        48,
        p.MAX_WRITE,
        1,
        p.MAX_REQUEST // 4096,
        0,
        wanted >> 32,
        0,
    )


def _statfs(engine: Exchange, ino: int, unique: int, length: int) -> bytes:
    state = engine.fs.statfs(engine.caller())
    return p.STATFS_OUT.pack(
        state.blocks,
        state.free,
        state.free,
        state.files,
        state.files_free,
        state.block_size,
        state.name_max,
        state.block_size,
        0,
    )


def _interrupt(engine: Exchange, ino: int, unique: int, length: int) -> None:
    engine.interrupt(p.INTERRUPT_IN.unpack_from(engine.buffer, _HEADER)[0])


def _acknowledge(engine: Exchange, ino: int, unique: int, length: int) -> bytes:
    return b""


def _not_offered(engine: Exchange, ino: int, unique: int, length: int) -> None:
    engine.reply_error(unique, errno.ENOSYS)


def _leave_unanswered(engine: Exchange, ino: int, unique: int, length: int) -> None:
    pass


_NAME = 2
"""The length of the shortest name, including the zero byte at its end."""

_ANSWERED: dict[Op, tuple[Handler, int]] = {
    Op.LOOKUP: (names.lookup, _NAME),
    Op.FORGET: (names.forget, p.FORGET_IN.size),
    Op.GETATTR: (files.getattr_, 0),
    Op.SETATTR: (files.setattr_, p.SETATTR_IN.size),
    Op.READLINK: (names.readlink, 0),
    Op.SYMLINK: (names.symlink, 2 * _NAME),
    Op.MKNOD: (names.mknod, p.MKNOD_IN.size + _NAME),
    Op.MKDIR: (names.mkdir, p.MKDIR_IN.size + _NAME),
    Op.UNLINK: (names.unlink, _NAME),
    Op.RMDIR: (names.rmdir, _NAME),
    Op.RENAME: (names.rename, p.RENAME_IN.size + 2 * _NAME),
    Op.LINK: (names.link, p.LINK_IN.size + _NAME),
    Op.OPEN: (files.open_, p.OPEN_IN.size),
    Op.READ: (files.read, p.READ_IN.size),
    Op.WRITE: (files.write, p.WRITE_DATA - _HEADER),
    Op.STATFS: (_statfs, 0),
    Op.RELEASE: (_acknowledge, 0),
    Op.FSYNC: (files.fsync, 0),
    Op.INIT: (_init, p.INIT_IN.size),
    Op.OPENDIR: (names.opendir, 0),
    Op.RELEASEDIR: (_acknowledge, 0),
    Op.READDIR: (names.readdir, p.READ_IN.size),
    Op.FSYNCDIR: (files.fsync, 0),
    Op.CREATE: (names.create, p.CREATE_IN.size + _NAME),
    Op.INTERRUPT: (_interrupt, p.INTERRUPT_IN.size),
    Op.DESTROY: (_acknowledge, 0),
    Op.IOCTL: (files.ioctl, 0),
    Op.BATCH_FORGET: (names.batch_forget, p.BATCH_FORGET_IN.size),
    Op.FALLOCATE: (files.fallocate, p.FALLOCATE_IN.size),
    Op.READDIRPLUS: (names.readdirplus, p.READ_IN.size),
    Op.RENAME2: (names.rename2, p.RENAME2_IN.size + 2 * _NAME),
    Op.SYNCFS: (files.fsync, 0),
    Op.NOTIFY_REPLY: (_leave_unanswered, 0),
}

OPCODES = max(Op) + 1
HANDLERS: list[tuple[Handler, int]] = [(_not_offered, 0)] * OPCODES
"""By opcode: the handler, and the length below which a request cannot be read."""
for _op, (_handler, _body) in _ANSWERED.items():
    HANDLERS[_op] = _handler, _HEADER + _body
