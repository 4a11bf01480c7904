"""Calls into the C library that Python's os module lacks, each declared once with its argument types.

Every function but `write_in_one_go` raises OSError with the errno of a failed call. The declared types matter: without
them, ctypes passes an offset or an address as a 32-bit int.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2
MADV_DONTNEED = 4
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
MS_NOSUID = 2
MS_NODEV = 4
MNT_DETACH = 2
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

CAPABILITY_VERSION = 0x20080522
"""_LINUX_CAPABILITY_VERSION_3: capabilities as two 32-bit words each."""

_AT_FDCWD = -100
_AT_STATX_DONT_SYNC = 0x4000
_STATX_MNT_ID, _STATX_MNT_ID_UNIQUE = 0x1000, 0x4000
_STATX_BYTES, _STATX_MNT_ID_AT = 256, 0x90
"""The size of struct statx, and the offset of stx_mnt_id in it."""

_SECCOMP_SET_MODE_FILTER = 1
_INSTRUCTION_BYTES = 8
"""The size of struct sock_filter."""

_off_t = ctypes.c_long


class _FilterProgram(ctypes.Structure):
    """struct sock_fprog: the number of instructions, and their address."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """Allocate or free a range of an open file; `mode` combines FALLOC_FL_ flags."""
    if _fallocate(fd, mode, offset, length) != 0:
        raise failure()


def madvise(address: int, length: int, advice: int) -> None:
    if _madvise(address, length, advice) != 0:
        raise failure()


def malloc_trim() -> None:
    """Have the C library give free memory back to the kernel, if it is one that can."""
    if _malloc_trim is not None:
        _malloc_trim(0)


def malloced_bytes() -> int:
    """How much memory this process has from malloc and has not freed; 0 if it does not say (glibc before 2.33)."""
    if _mallinfo2 is None:
        return 0
    info = _mallinfo2()
    return int(info.uordblks + info.hblkhd)


def mallopt(option: int, value: int) -> None:
    """Set an option of the C library's malloc, if it has any."""
    if _mallopt is not None:
        _mallopt(option, value)


def mount(source: bytes, target: bytes, fstype: bytes, flags: int, options: bytes) -> None:
    if _mount(source, target, fstype, flags, options) != 0:
        raise failure()


def umount2(target: bytes, flags: int) -> None:
    if _umount2(target, flags) != 0:
        raise failure()


def mount_id(path: bytes) -> int:
    """The ID of the mount that a path is on, never reused from Linux 6.8 on; 0 if the system does not report it.

    The filesystem is not asked: it may be one of ours that nobody serves at the moment.
    """
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if _statx is None:
        return 0
    if _statx(_AT_FDCWD, path, _AT_STATX_DONT_SYNC, _STATX_MNT_ID | _STATX_MNT_ID_UNIQUE, found) != 0:
        raise failure()
    return int.from_bytes(found.raw[_STATX_MNT_ID_AT : _STATX_MNT_ID_AT + 8], sys.byteorder)


def prctl(option: int, *arguments: int) -> int:
    """Omitted arguments are passed as 0, as the kernel demands for most options."""
    result: int = _prctl(option, *arguments, *(0,) * (4 - len(arguments)))
    if result < 0:
        raise failure()
    return result


def capget(header: bytes) -> bytes:
    """The capabilities of the thread that `header` names (struct __user_cap_header): three words, low half first."""
    data = ctypes.create_string_buffer(24)
    if _capget(ctypes.create_string_buffer(header), data) != 0:
        raise failure()
    return data.raw


def capset(header: bytes, data: bytes) -> None:
    if _capset(ctypes.create_string_buffer(header), ctypes.create_string_buffer(data)) != 0:
        raise failure()


def syscall(number: int, *arguments: int | bytes | None) -> int:
    """A system call that the C library has no function for. Bytes are passed by address, None as a null pointer."""
    words = [ctypes.c_long(one) if isinstance(one, int) else ctypes.c_char_p(one) for one in arguments]
    result: int = _syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise failure()
    return result


def filter_calls(number: int, flags: int, program: bytes) -> None:
    """seccomp(2), which has this `number`: judge the thread's system calls by a program of 8-byte instructions."""
    described = _FilterProgram(len(program) // _INSTRUCTION_BYTES, program)
    syscall(number, _SECCOMP_SET_MODE_FILTER, flags, bytes(described))


def load(name: str) -> None:
    """Load a library for good. Raises OSError if it does not exist."""
    ctypes.CDLL(name)


def bytes_at(address: int, length: int) -> bytes:
    """A copy of our memory at that address."""
    return ctypes.string_at(address, length)


def failure() -> OSError:
    """The error of the last call in this thread that failed."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _declare(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        ("arena", ctypes.c_size_t),
        ("ordblks", ctypes.c_size_t),
        ("smblks", ctypes.c_size_t),
        ("hblks", ctypes.c_size_t),
        ("hblkhd", ctypes.c_size_t),
        ("usmblks", ctypes.c_size_t),
        ("fsmblks", ctypes.c_size_t),
        ("uordblks", ctypes.c_size_t),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    ]


_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = _declare(_libc, "fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int, _off_t, _off_t)
_madvise = _declare(_libc, "madvise", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_malloc_trim = _declare(_libc, "malloc_trim", ctypes.c_int, ctypes.c_size_t) if hasattr(_libc, "malloc_trim") else None
_mallinfo2 = _declare(_libc, "mallinfo2", _Mallinfo) if hasattr(_libc, "mallinfo2") else None
_mallopt = _declare(_libc, "mallopt", ctypes.c_int, ctypes.c_int, ctypes.c_int) if hasattr(_libc, "mallopt") else None
_mount = _declare(
    _libc,
    "mount",
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
)
_umount2 = _declare(_libc, "umount2", ctypes.c_int, ctypes.c_char_p, ctypes.c_int)
_statx = (
    _declare(_libc, "statx", ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)
    if hasattr(_libc, "statx")
    else None
)
_prctl = _declare(_libc, "prctl", ctypes.c_int, ctypes.c_int, *[ctypes.c_ulong] * 4)
_capget = _declare(_libc, "capget", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_capset = _declare(_libc, "capset", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long  # no argument types: the function takes any number of words
write_in_one_go = _declare(
    ctypes.PyDLL(None, use_errno=True), "write", ctypes.c_ssize_t, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t
)
"""write(2) without releasing the interpreter's lock: (descriptor, bytes, length) → bytes written, or -1.

It is for short writes that the kernel only copies: os.write releases the lock, and getting the lock back from other
busy threads takes far longer than the write. A write that may wait for a disk would stop every other thread. This is
the one call here that reports failure by its result, with `failure` for the error: it is on the path of every change.
"""
