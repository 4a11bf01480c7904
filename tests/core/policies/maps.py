"""Writes through a shared mapping, whose pages the kernel sends later and on nobody's behalf."""

from __future__ import annotations

import mmap
import os
from pathlib import Path


def write_through_map(path: Path, data: bytes) -> None:
    """Overwrite the beginning of a file that is at least this long, and return once the pages have been sent."""
    fd = os.open(path, os.O_RDWR)
    try:
        with mmap.mmap(fd, 0) as view:
            view[: len(data)] = data
            view.flush()
    finally:
        os.close(fd)


def read_afresh(path: Path) -> bytes:
    """What is stored, not what the kernel has cached."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.pread(fd, 1 << 20, 0)
    finally:
        os.close(fd)
