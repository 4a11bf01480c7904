"""Idmapped mounts without mount(8): open_tree, mount_setattr, move_mount, and a user namespace that holds the map."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_CLONE_NEWUSER = 0x10000000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_IDMAP = 0x00100000


@contextmanager
def idmapped(source: Path, target: Path, inside: int, outside: int) -> Iterator[Path]:
    """Mount `source` at `target` too, where files of `inside` belong to `outside`; OSError if that is impossible."""
    target.mkdir(exist_ok=True)
    with _user_namespace(inside, outside) as namespace:
        tree = _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC)
        try:
            attributes = struct.pack("<4Q", _MOUNT_ATTR_IDMAP, 0, 0, namespace)
            _call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes))
            _call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
        finally:
            os.close(tree)
    try:
        yield target
    finally:
        if _libc.umount2(os.fsencode(target), 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


@contextmanager
def _user_namespace(inside: int, outside: int) -> Iterator[int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _libc.unshare(_CLONE_NEWUSER)
        os.write(writer, b"x")
        signal.pause()
    try:
        os.read(reader, 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text(f"{inside} {outside} 1\n")
        fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


def _call(number: int, *arguments: int | bytes) -> int:
    result = _libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)
