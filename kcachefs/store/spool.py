"""The spool: plain files for bytes that are not sealed yet, or that change too often to be sealed.

A spool file is handed out by number. It comes back once no inode refers to it any more and the disk has recorded that.
Empty files are kept for reuse: making a new one is a large part of what a small write costs.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path

from kcachefs.errors import ObjectMissing, or_no_space

_NAME = re.compile(r"[0-9a-f]{16}")

KEEP = 256
"""Empty files kept for reuse."""


class Spool:
    """Spool files by number. Any thread may use it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._free: list[int] = []
        self._used = set(self.numbers())
        """Files that may hold bytes: only these are examined when the bytes are added up."""
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """The number of an empty file that nothing refers to, to be opened with `create`; None if there is none."""
        with self._lock:
            return self._free.pop() if self._free else None

    def open(self, number: int, *, create: bool = False) -> int:
        """A descriptor of a spool file. Without `create`, a missing file is an error: it must not come back empty."""
        path = self.path(number)
        if create:
            with self._lock:
                self._used.add(number)
        try:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        except FileNotFoundError:
            raise ObjectMissing(f"{path}: the spool file is gone") from None
        except OSError as error:
            raise or_no_space(error, path) from error

    def recycle(self, number: int) -> None:
        """Take back a file that no record on disk refers to any more. Empties it for reuse, or removes it."""
        path = self.path(number)
        with self._lock:
            keep = len(self._free) < KEEP
        try:
            if keep:
                _empty(path)
                with self._lock:
                    self._used.discard(number)
                    if number not in self._free:
                        self._free.append(number)
            else:
                self.remove(number)
        except FileNotFoundError:
            pass

    def numbers(self) -> list[int]:
        """Every file that exists, in use or not."""
        return sorted(int(name, 16) for name in os.listdir(self._directory) if _NAME.fullmatch(name))

    def allocated_bytes(self) -> int:
        with self._lock:
            used = list(self._used)
        total = 0
        for number in used:
            with contextlib.suppress(FileNotFoundError):  # the file was recycled
                total += os.stat(f"{self._directory}/{number:016x}").st_blocks * 512
        return total

    def sync(self) -> None:
        """When this returns, the files' content survives a power cut. Called at a clean close."""
        for number in self.numbers():
            fd = os.open(self.path(number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(fd).st_size:
                    os.fdatasync(fd)
            finally:
                os.close(fd)

    def remove(self, number: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(number))
        with self._lock:
            self._used.discard(number)

    def path(self, number: int) -> Path:
        return self._directory / f"{number:016x}"

    def close(self) -> None:
        with self._lock:
            free, self._free = self._free, []
        for number in free:
            self.remove(number)


def _empty(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
    os.close(fd)
