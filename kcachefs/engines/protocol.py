"""The kernel's FUSE protocol, version 7: numbers and layouts as in linux/fuse.h of Linux 6.18, and no behaviour.

Where the distribution's header is older than the running kernel, the numbers here follow the kernel.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag

MAJOR, MINOR = 7, 38
"""The version that we speak. A newer kernel steps down to it."""


class Op(IntEnum):
    """Requests."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    GETLK = 31
    SETLK = 32
    SETLKW = 33
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    BMAP = 37
    DESTROY = 38
    IOCTL = 39
    POLL = 40
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    SETUPMAPPING = 48
    REMOVEMAPPING = 49
    SYNCFS = 50
    TMPFILE = 51
    STATX = 52


class Notify(IntEnum):
    """Notifications that we send to the kernel."""

    INVAL_INODE = 2
    INVAL_ENTRY = 3
    DELETE = 6
    RESEND = 7


class Init(IntFlag):
    """Capabilities. Those from bit 32 on travel in `flags2` and count only with INIT_EXT."""

    ASYNC_READ = 1 << 0
    BIG_WRITES = 1 << 5
    DO_READDIRPLUS = 1 << 13
    READDIRPLUS_AUTO = 1 << 14
    PARALLEL_DIROPS = 1 << 18
    MAX_PAGES = 1 << 22
    CACHE_SYMLINKS = 1 << 23
    INIT_EXT = 1 << 30
    HAS_RESEND = 1 << 39
    ALLOW_IDMAP = 1 << 40


class Fattr(IntFlag):
    """Which attributes a SETATTR sets."""

    MODE = 1 << 0
    UID = 1 << 1
    GID = 1 << 2
    SIZE = 1 << 3
    ATIME = 1 << 4
    MTIME = 1 << 5
    ATIME_NOW = 1 << 7
    MTIME_NOW = 1 << 8


class Fopen(IntFlag):
    """Flags in the reply to an open."""

    DIRECT_IO = 1 << 0
    KEEP_CACHE = 1 << 1
    CACHE_DIR = 1 << 3


RESENT = 1 << 63
"""Set in the id of a request that the kernel sends a second time."""

IN_HEADER = struct.Struct("<IIQQIIIHH")
"""length, opcode, unique id, node id, uid, gid, pid, extension length, padding"""
OUT_HEADER = struct.Struct("<IiQ")
"""length, negative errno (or notification code), unique id"""

ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
"""ino, size, blocks, atime, mtime, ctime, their nanoseconds, mode, nlink, uid, gid, rdev, block size, flags"""
ENTRY_HEAD = struct.Struct("<QQQQII")
"""node id, generation, entry timeout, attribute timeout, their nanoseconds"""
ENTRY = struct.Struct("<QQQQIIQQQQQQIIIIIIIIII")
"""ENTRY_HEAD and ATTR in one."""
ATTR_OUT = struct.Struct("<QIIQQQQQQIIIIIIIIII")
"""timeout, its nanoseconds, padding, ATTR"""
OPEN_IN = struct.Struct("<II")
OPEN_OUT = struct.Struct("<QII")
WRITE_OUT = struct.Struct("<II")
STATFS_OUT = struct.Struct("<QQQQQIIII24x")
INIT_IN = struct.Struct("<IIII")
INIT_OUT = struct.Struct("<IIIIHHIIHHII24x")
"""major, minor, readahead, flags, background, congestion, max write, time unit, max pages, alignment, flags2, 0"""
DIRENT = struct.Struct("<QQII")
"""ino, cookie, name length, type"""

SETATTR_IN = struct.Struct("<IIQQQqqqIIIIIIII")
"""valid, padding, fh, size, lock owner, atime, mtime, ctime, their nanoseconds, mode, unused, uid, gid, unused"""
READ_IN = struct.Struct("<QQI")
WRITE_IN = struct.Struct("<QQI")
WRITE_FLAGS = IN_HEADER.size + 20
WRITE_CACHE = 1
"""A bit in the first byte of the flags: the data are pages of a mapped file, sent later and in nobody's name."""
WRITE_DATA = IN_HEADER.size + 40
CREATE_IN = struct.Struct("<IIII")
MKNOD_IN = struct.Struct("<IIII")
MKDIR_IN = struct.Struct("<II")
RENAME_IN = struct.Struct("<Q")
RENAME2_IN = struct.Struct("<QII")
LINK_IN = struct.Struct("<Q")
FORGET_IN = struct.Struct("<Q")
BATCH_FORGET_IN = struct.Struct("<II")
FORGET_ONE = struct.Struct("<QQ")
FALLOCATE_IN = struct.Struct("<QQQII")
INTERRUPT_IN = struct.Struct("<Q")

INVAL_INODE_OUT = struct.Struct("<Qqq")
INVAL_ENTRY_OUT = struct.Struct("<QII")

MAX_REQUEST = 1 << 20
"""The most bytes that one READ asks for, and that one WRITE could carry."""
MAX_WRITE = 256 << 10
"""The most bytes that the kernel is to send in one WRITE: all other requests wait while it is written."""
CAPABILITIES = (
    Init.ASYNC_READ
    | Init.BIG_WRITES
    | Init.DO_READDIRPLUS
    | Init.READDIRPLUS_AUTO
    | Init.PARALLEL_DIROPS
    | Init.MAX_PAGES
    | Init.CACHE_SYMLINKS
    | Init.INIT_EXT
    | Init.HAS_RESEND
)
"""The capabilities that the direct engine asks of the kernel."""
