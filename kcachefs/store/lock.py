"""The store's exclusive lock: only one process has a store open, and a second one gets an error that names the first.

The lock is a flock on a file in the store: the kernel drops it when its holder dies, in whatever way. A forked child
inherits the lock's descriptor and closes it at once, so that only the parent holds the lock: otherwise the child would
still hold it after the parent's death.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import weakref
from pathlib import Path

from kcachefs import pid_namespace
from kcachefs.errors import NotAStore, StoreBusy
from kcachefs.filelock import open_locked
from kcachefs.store.places import NO_FILE


class StoreLock:
    """Held from construction until `release`."""

    is_inherited = False
    """Whether the process that took the lock has forked this one: the store is the parent's."""

    def __init__(self, path: Path) -> None:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = open_locked(path, flags, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreBusy(
                f"{path.parent}: the store is in use by {_holder(path)}; unmount it, or wait until that has ended"
            ) from None
        except IsADirectoryError:  # fsck needs the lock too, so it cannot repair this
            raise NotAStore(f"{path}: {NO_FILE}; move it away") from None
        program = Path(sys.argv[0]).name or "python"
        os.ftruncate(self._fd, 0)
        with contextlib.suppress(OSError):  # on a full disk the lock is still held, but without the holder's name
            named = f"process {os.getpid()} ({program}){_COUNTED_IN}{pid_namespace.current()}\n"
            os.pwrite(self._fd, named.encode(), 0)
        _all.add(self)

    def release(self) -> None:
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            # Closing alone is not enough: a child that was just forked would still hold it.
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1

    def after_fork(self) -> None:
        """In a forked child: close the descriptor of the parent's lock without unlocking it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.is_inherited = True


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError):
        told, _, where = path.read_bytes()[:512].decode(errors="replace").strip().partition(_COUNTED_IN)
        if where in ("", "0", str(pid_namespace.current())):
            return told or "another process"
        return f"{told} of another PID namespace, such as a container's"
    return "another process"


_COUNTED_IN = " in PID namespace "


_all: weakref.WeakSet[StoreLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_all):
        lock.after_fork()


os.register_at_fork(after_in_child=_after_fork)
