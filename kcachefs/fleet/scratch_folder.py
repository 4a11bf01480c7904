"""A temporary folder for the work of one command. If a command is killed, the next one removes its folder.

A file in the folder is locked for as long as its command lives. So a folder whose lock is free belongs to nobody any
more, whatever container its command ran in.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "kcachefs-scratch-"
_LOCK = ".kcachefs-scratch"
"""The lock file's name, which nothing else has: a store has a file `lock`."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that is empty but for its lock. It is removed with everything in it."""
    with contextlib.suppress(OSError):
        _remove_leftovers()
    with contextlib.ExitStack() as held:
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            held.callback(os.close, _locked(folder))  # after the folder is gone
            yield Path(folder)


def _locked(folder: str) -> int:
    """A locked file in the folder. It gets its name only once it is locked, so that nobody takes the lock before us."""
    new = os.path.join(folder, f"{_LOCK}.new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # a disk without locks: then this folder is never taken for a leftover
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(new, os.path.join(folder, _LOCK))
    return fd


def _remove_leftovers() -> None:
    """Remove this user's folders whose commands were killed. Folders without a lock stay, to be safe."""
    place = tempfile.gettempdir()
    for name in os.listdir(place):
        if re.fullmatch(PREFIX + r"\w{8}", name):  # as tempfile calls them
            with contextlib.suppress(OSError):  # somebody else's, or being removed by another command
                _remove_if_left(os.path.join(place, name))


def _remove_if_left(path: str) -> None:
    with contextlib.ExitStack() as held:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        held.callback(os.close, folder)
        found = os.fstat(folder)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:
            return
        lock = os.open(_LOCK, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        held.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in sorted(os.listdir(folder), key=_LOCK.__eq__):  # the lock last, in case we are killed
            try:
                os.unlink(name, dir_fd=folder)
            except IsADirectoryError:
                shutil.rmtree(name, dir_fd=folder)
        os.rmdir(path)
