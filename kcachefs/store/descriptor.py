"""Descriptors that close when the last thread lets go of them: no number is reused while somebody reads from it."""

from __future__ import annotations

import os
from pathlib import Path


class Descriptor:
    """Owns `fd` and closes it when nothing refers to this any more; -1 stands for none."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def sync_directory(directory: Path) -> None:
    """When this returns, names that were made, moved or removed in `directory` survive a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
