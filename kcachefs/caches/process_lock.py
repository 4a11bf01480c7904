"""The lock of one key between processes: a flock on a file that exists only while somebody holds or wants it."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os

from kcachefs import filelock

_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC

# The locks held or waited for here. A forked child inherits their descriptors, and with them the locks: it would keep
# others waiting after this process has died.
_open: set[ProcessLock] = set()


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
            self._close()

    def _acquire(self, how: int) -> Attempt:
        if self._path is None:
            return Attempt.UNAVAILABLE
        _open.add(self)
        try:
            filelock.open_locked(self._path, _OPEN, how, 0o666, opener=self._open_file, closer=self._close_file)
        except BlockingIOError:
            return Attempt.BUSY
        except OSError:
            return Attempt.UNAVAILABLE
        finally:
            if self._file < 0:
                _open.discard(self)
        return Attempt.HELD

    def _open_file(self, path: str, flags: int, mode: int) -> int:
        try:
            self._file = os.open(path, flags, mode)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._file = os.open(path, flags, mode)
        return self._file

    def _close_file(self, file: int) -> None:
        self._file = -1
        os.close(file)

    def _close(self) -> None:
        _open.discard(self)
        if self._file >= 0:
            self._close_file(self._file)


def _close_inherited() -> None:
    for lock in list(_open):  # a computation that goes on in the child has nothing to release there
        with contextlib.suppress(OSError):
            lock._close()


os.register_at_fork(after_in_child=_close_inherited)
