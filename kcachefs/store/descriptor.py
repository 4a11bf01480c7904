"""Descriptors that close when the last thread drops them, and helpers that make files survive a power cut.

Closing them so late keeps a descriptor's number from being reused while a thread reads from it.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from pathlib import Path


def share_of_descriptors(most: int) -> int:
    """How many files to keep open at once: `most`, or a quarter of this process's limit if that is less."""
    return min(most, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))


class Descriptor:
    """Owns `fd` and closes it when nothing refers to this object any more; -1 stands for none."""

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


def replace_file(path: Path, raw: bytes, *, sync: bool = True) -> None:
    """Replace a small file that only its owner may read. A kill leaves the old file or the new one.

    With `sync`, so does a power cut.
    """
    new = path.with_name(f"{path.name}.new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.write(fd, raw) != len(raw):
            raise OSError(errno.ENOSPC, "short write")
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(new, path)
    if sync:
        sync_directory(path.parent)


def remove_half_written(directory: Path, name: re.Pattern[str]) -> None:
    """Remove the half-written files that a killed `replace_file` left under names that match `name`.

    Nobody else may have the store open.
    """
    for found in os.listdir(directory):
        if found.endswith(".new") and name.fullmatch(found.removesuffix(".new")):
            os.unlink(directory / found)
