"""Landlock: how a process gives up access to files, sockets and signals for good. Callers say what to keep.

A domain is per thread, and new threads and processes inherit it. It governs opening, making, removing and renaming
files. It does not govern files that are open already, changes of modes, owners and times, or connecting to a socket
that has a path.
"""

from __future__ import annotations

import os
import struct
from enum import IntFlag
from pathlib import Path
from types import TracebackType
from typing import Self

from kcachefs import libc

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls; they are the same on every architecture."""
_VERSION = 1
_PATH_BENEATH = 1
_RULESET = struct.Struct("<QQQ")
_RULE = struct.Struct("<Qi")
_TCP = 0b11
_SCOPES = 0b11
"""Connections to abstract sockets, and signals: neither can leave the domain."""
_NET_ABI, _SCOPE_ABI = 4, 6


class Right(IntFlag):
    """Rights to files and folders, as the kernel numbers them."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


READ = Right.READ_FILE | Right.READ_DIR
WRITE = (
    Right.WRITE_FILE
    | Right.MAKE_REG
    | Right.MAKE_DIR
    | Right.REMOVE_FILE
    | Right.REMOVE_DIR
    | Right.REFER
    | Right.TRUNCATE
)
_OF_FILES = Right.EXECUTE | Right.WRITE_FILE | Right.READ_FILE | Right.TRUNCATE | Right.IOCTL_DEV
"""The rights that a rule for a single file may grant."""
_SINCE = {Right.REFER: 2, Right.TRUNCATE: 3, Right.IOCTL_DEV: 5}
"""The version of Landlock that introduced a right; the others were there from the first."""


def version() -> int:
    """The kernel's version of Landlock, or 0 where it has none or is not booted with it."""
    try:
        return libc.syscall(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


class Ruleset:
    """The access that is kept. Everything else that the kernel knows to restrict is denied."""

    def __init__(self, *, network: bool = False) -> None:
        """`network`: connections are not restricted."""
        found = version()
        self._handled = Right(0)
        for right in Right:
            if _SINCE.get(right, 1) <= found:
                self._handled |= right
        raw = _RULESET.pack(self._handled, _TCP * (found >= _NET_ABI and not network), _SCOPES * (found >= _SCOPE_ABI))
        self._fd = libc.syscall(_CREATE_RULESET, raw, len(raw), 0)

    def allow(self, path: str | Path, rights: Right) -> None:
        """Allow these rights to a file, or to a folder and everything below it. A missing path is skipped."""
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return
        try:
            if not os.path.isdir(f"/proc/self/fd/{place}"):
                rights &= _OF_FILES
            libc.syscall(_ADD_RULE, self._fd, _PATH_BENEATH, _RULE.pack(rights & self._handled, place), 0)
        finally:
            os.close(place)

    def enforce(self) -> None:
        """Give up everything else, in this thread and in all threads that it starts. Needs no_new_privs."""
        libc.syscall(_RESTRICT_SELF, self._fd, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
