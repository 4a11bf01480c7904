"""The store's exclusive lock: one opener at a time, and a second one is told who the first is.

A flock on a file in the store: the kernel lets go of it when its holder dies, however it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from pathlib import Path

from kcachefs.errors import StoreBusy


class StoreLock:
    """Held from construction until `release`."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 512, 0).decode(errors="replace").strip() or "another process"
            os.close(self._fd)
            raise StoreBusy(
                f"{path.parent}: the store is in use by {holder}; unmount it, or wait until that is done"
            ) from None
        program = Path(sys.argv[0]).name or "python"
        os.ftruncate(self._fd, 0)
        with contextlib.suppress(OSError):  # on a full disk the lock is held all the same, by a nameless holder
            os.pwrite(self._fd, f"process {os.getpid()} ({program})\n".encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1
