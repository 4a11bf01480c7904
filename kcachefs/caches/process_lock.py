"""The lock of one key between processes: a flock on a file that exists only while somebody holds or wants it."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os

from kcachefs import filelock

_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC

# Descriptors of the locks held or waited for here. A forked child inherits them, and with them the locks: it would keep
# others waiting after this process has died.
_open_files: set[int] = set()


class Attempt(enum.Enum):
    """How an attempt to take a lock ended."""

    HELD = enum.auto()
    BUSY = enum.auto()
    UNAVAILABLE = enum.auto()
    """There is no folder, permission, space or support for locks: each process goes on by itself."""


class ProcessLock:
    """A lock on `path`; without a path there is nothing to lock.

    The file is removed while it is still locked, so that the folder does not fill up.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._file = -1

    def attempt(self) -> Attempt:
        """Take the lock if nobody holds it."""
        return self._acquire(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def wait(self) -> Attempt:
        """Take the lock as soon as nobody holds it."""
        return self._acquire(fcntl.LOCK_EX)

    def release(self) -> None:
        """Give the lock back, where it is held."""
        if self._file >= 0:
            assert self._path is not None
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            _close(self._file)
            self._file = -1

    def _acquire(self, how: int) -> Attempt:
        if self._path is None:
            return Attempt.UNAVAILABLE
        while True:
            try:
                file = _open(self._path)
            except OSError:
                return Attempt.UNAVAILABLE
            _open_files.add(file)
            try:
                if filelock.lock(file, self._path, how):
                    self._file = file
                    return Attempt.HELD
            except BlockingIOError:
                _close(file)
                return Attempt.BUSY
            except OSError:
                _close(file)
                return Attempt.UNAVAILABLE
            except BaseException:
                _close(file)
                raise
            _close(file)


def _open(path: str) -> int:
    try:
        return os.open(path, _OPEN, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, _OPEN, 0o666)


def _close(file: int) -> None:
    _open_files.discard(file)
    os.close(file)


def _close_inherited() -> None:
    for file in _open_files:
        with contextlib.suppress(OSError):
            os.close(file)
    _open_files.clear()


os.register_at_fork(after_in_child=_close_inherited)
