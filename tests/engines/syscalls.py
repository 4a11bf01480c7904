"""System calls that `os` does not offer; each raises OSError as `os` would."""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass
from pathlib import Path

AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

FALLOC_KEEP_SIZE = 1
FALLOC_PUNCH_HOLE = 2
FALLOC_ZERO_RANGE = 16

UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2

DT_FIFO, DT_DIR, DT_REG, DT_LNK, DT_SOCK = 1, 4, 8, 10, 12

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate64.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_libc.getdents64.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
_libc.getdents64.restype = ctypes.c_ssize_t

_DIRENT = struct.Struct("=QqHB")


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


@dataclass(frozen=True)
class DirectoryEntry:
    """One record of getdents64; a listing continues at `offset` after this entry."""

    inode: int
    offset: int
    kind: int
    name: str


def renameat2(source: Path, target: Path, flags: int) -> None:
    _check(_libc.renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), ctypes.c_uint(flags)))


def fallocate(descriptor: int, mode: int, offset: int, length: int) -> None:
    _check(_libc.fallocate64(descriptor, mode, offset, length))


def set_times(path: Path, atime: tuple[int, int], mtime: tuple[int, int], *, follow: bool = True) -> None:
    """utimensat with seconds and nanoseconds as given, so that UTIME_NOW and UTIME_OMIT can be passed."""
    times = (_Timespec * 2)(_Timespec(*atime), _Timespec(*mtime))
    flags = 0 if follow else AT_SYMLINK_NOFOLLOW
    _check(_libc.utimensat(AT_FDCWD, os.fsencode(path), times, flags))


def read_directory(descriptor: int, size: int = 32768) -> list[DirectoryEntry]:
    """One getdents64 call with a buffer of `size` bytes; an empty list means the end."""
    buffer = ctypes.create_string_buffer(size)
    filled = _check(_libc.getdents64(descriptor, buffer, size))
    entries = []
    position = 0
    while position < filled:
        inode, offset, length, kind = _DIRENT.unpack_from(buffer, position)
        name = buffer.raw[position + _DIRENT.size : position + length].split(b"\0", 1)[0]
        entries.append(DirectoryEntry(inode, offset, kind, os.fsdecode(name)))
        position += length
    return entries


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
