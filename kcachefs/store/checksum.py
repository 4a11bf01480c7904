"""The checksum after each value in LMDB: a CRC-32 of the key and the value.

LMDB has no checksums of its own, and a flipped bit in a name's inode number would serve one file's bytes under the name
of another. The key is part of the sum, so a value that turns up under another key fails too.
"""

from __future__ import annotations

import struct
from zlib import crc32

_CRC = struct.Struct("<I")
INTACT = 0x2144DF1C
"""The CRC-32 of anything that is followed by its own CRC-32."""


def with_checksum(key: bytes, value: bytes) -> bytes:
    """The value as LMDB keeps it; `[:-4]` undoes this."""
    return value + _CRC.pack(crc32(value, crc32(key)))


def is_intact(key: bytes, raw: bytes) -> bool:
    """Whether what LMDB keeps under `key` matches its checksum."""
    return crc32(raw, crc32(key)) == INTACT


def show_key(key: bytes) -> str:
    """A key for people to read: its table and the rest in hexadecimal."""
    return f"{key[:1].decode(errors='replace')}:{key[1:].hex()}"
