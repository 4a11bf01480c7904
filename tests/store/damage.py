"""Ways to damage a file on a disk: flip a bit, zero a range, cut off the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, int, int], None]
"""Damages a file somewhere in `length` bytes from `offset` on."""


def flip(path: Path, offset: int, length: int) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.seek(offset + length // 2)
        byte = file.read(1)[0]
        file.seek(offset + length // 2)
        file.write(bytes([byte ^ 0x10]))


def zero(path: Path, offset: int, length: int) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.seek(offset)
        file.write(bytes(length))


def truncate(path: Path, offset: int, length: int) -> None:
    os.truncate(path, offset + length // 2)


WAYS: dict[str, Damage] = {"flipped": flip, "zeroed": zero, "truncated": truncate}


def find_value(directory: Path, value: bytes) -> list[int]:
    """Where a value is in the data file of a closed LMDB: every copy, since old pages are left in it."""
    raw = (directory / "data.mdb").read_bytes()
    places, start = [], raw.find(value)
    while start >= 0:
        places.append(start)
        start = raw.find(value, start + 1)
    assert places, "the value is not in the file"
    return places
