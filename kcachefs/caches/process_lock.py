"""The lock of one key between processes: a flock on a file that exists only while somebody holds or wants it."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import io
import os

from kcachefs import filelock

_DESCRIPTORS = "/proc/self/fd"

# The locks that are held, taken or released here. A forked child inherits their descriptors, and with them the locks:
# it would keep others waiting after this process has died.
_open: set[ProcessLock] = set()


class Attempt(enum.Enum):
    """How an attempt to take a lock ended."""

    HELD = enum.auto()
    BUSY = enum.auto()
    UNAVAILABLE = enum.auto()
    """The folder, permission, space or support for locks is missing: each process goes on by itself."""


class ProcessLock:
    """A lock on `path`; without a path there is nothing to lock.

    The file is removed while it is still locked, so that the folder does not fill up. A signal handler may raise
    between any two steps here: `release` then gives back whatever has been taken.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        # A file object, not a number: if it is dropped before it is stored here, its descriptor is closed.
        self._file: io.FileIO | None = None
        self._is_held = False

    def attempt(self) -> Attempt:
        """Take the lock if nobody holds it."""
        if self._path is None:
            return Attempt.UNAVAILABLE
        how = fcntl.LOCK_EX | fcntl.LOCK_NB
        _open.add(self)
        try:
            filelock.open_locked(self._path, 0, how, opener=self._open_file, closer=self._close_file)
            self._is_held = True
        except BlockingIOError:
            return Attempt.BUSY
        except OSError:
            return Attempt.UNAVAILABLE
        finally:
            if self._file is None:
                _open.discard(self)
        return Attempt.HELD

    def release(self) -> None:
        """Give the lock back, where it is held."""
        # Noted first: once the file is unlinked, its name may stand for one that another process has locked.
        is_held, self._is_held = self._is_held, False
        try:
            if is_held and self._path is not None:
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
        finally:
            self._close()

    def leave_to_parent(self) -> None:
        """In a forked child: close its descriptor of the parent's lock, without unlocking that."""
        file, self._file, self._is_held = self._file, None, False
        with contextlib.suppress(OSError):
            if file is not None and not file.closed:
                file.close()
            elif self._path is not None:
                _close_copies(os.path.basename(self._path))

    def _open_file(self, path: str, flags: int, mode: int) -> int:
        try:
            self._file = io.FileIO(path, "a+")
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._file = io.FileIO(path, "a+")
        return self._file.fileno()

    def _close_file(self, _: int) -> None:
        file = self._file
        if file is None:
            return
        try:
            # Closing is not enough: a child that was forked without Python's knowledge may have the descriptor too.
            with contextlib.suppress(OSError, ValueError):
                fcntl.flock(file.fileno(), fcntl.LOCK_UN)
        finally:
            file.close()
            self._file = None

    def _close(self) -> None:
        self._close_file(-1)
        _open.discard(self)


def _close_copies(name: str) -> None:
    """Close every descriptor of a lock file of that name: the thread that opened or closed it does not exist here."""
    for number in os.listdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):
            target = os.readlink(f"{_DESCRIPTORS}/{number}").removesuffix(" (deleted)")
            if os.path.basename(target) == name:
                os.close(int(number))


def _leave_to_parent() -> None:
    for lock in list(_open):  # a computation that goes on in the child has nothing to release there
        lock.leave_to_parent()
    _open.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
