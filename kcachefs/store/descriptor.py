"""Descriptors that are closed when the last thread that uses them lets go: no number is reused under a reader."""

from __future__ import annotations

import os
from pathlib import Path


class Descriptor:
    """Owns `fd`; -1 is none."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def sync_directory(directory: Path) -> None:
    """Names made, moved and removed in `directory` survive power loss when this returns."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
