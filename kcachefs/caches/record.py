"""The file of one entry: what is in it, and how it is told whole from damaged.

`checksum 32 | magic 4 | flags u16 | meta length u16 | key length u32 | value length u64 | key | meta | value`

The checksum is BLAKE3 over everything after it, so a flipped, missing or added byte anywhere shows. The key is part of
the record: a file moved to another key's name is not served. Metadata is MessagePack of plain data. Never a pickle:
whoever may write to a shared folder must not thereby run code in everyone who reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec
from blake3 import blake3

from kcachefs.errors import UsageError

# Names the folder of the entries, so that projects of two formats can share one directory without meeting.
FORMAT = 1
MAGIC = b"kcE" + bytes([FORMAT])
META_LIMIT = 0xFFFF
KEY_LIMIT = 1 << 20

_TEXT_KEY = 1
_CHECKSUM = 32
_HEADER = struct.Struct("<4sHHIQ")
_START = _CHECKSUM + _HEADER.size

Key = str | bytes
Meta = Mapping[str, Any]


class Entry(msgspec.Struct, frozen=True):
    """A value and its small metadata."""

    value: bytes
    meta: dict[str, Any] = {}
    # Whether the key was given as text, so that listing the keys gives it back so.
    text_key: bool = False


def pack(key: bytes, is_text: bool, value: bytes | bytearray | memoryview, meta: Meta | None) -> list[Any]:
    """The record's pieces, ready for one gathering write."""
    told = msgspec.msgpack.encode(dict(meta)) if meta else b""
    if len(told) > META_LIMIT:
        raise UsageError(f"metadata of {len(told)} bytes is more than {META_LIMIT}; put it into the value")
    size = value.nbytes if isinstance(value, memoryview) else len(value)
    head = _HEADER.pack(MAGIC, _TEXT_KEY if is_text else 0, len(told), len(key), size) + key + told
    hasher = blake3(head)
    hasher.update(value)
    return [hasher.digest(), head, value]


def unpack(key: bytes, record: bytes) -> Entry | None:
    """The entry in a record, or None where the record is not, to the last byte, one of `key`."""
    if len(record) < _START:
        return None
    magic, flags, meta_size, key_size, value_size = _HEADER.unpack_from(record, _CHECKSUM)
    meta_at = _START + key_size
    value_at = meta_at + meta_size
    if magic != MAGIC or len(record) != value_at + value_size or record[_START:meta_at] != key:
        return None
    if blake3(memoryview(record)[_CHECKSUM:]).digest() != record[:_CHECKSUM]:
        return None
    try:
        meta = msgspec.msgpack.decode(record[meta_at:value_at], type=dict[str, Any]) if meta_size else {}
    except msgspec.MsgspecError:
        return None
    return Entry(record[value_at:], meta, bool(flags & _TEXT_KEY))


def key_of(start: bytes) -> Key | None:
    """The key of a record of which the beginning has been read; None where it is none of ours."""
    if len(start) < _START:
        return None
    magic, flags, _, size, _ = _HEADER.unpack_from(start, _CHECKSUM)
    raw = start[_START : _START + size]
    if magic != MAGIC or len(raw) != size:
        return None
    if not flags & _TEXT_KEY:
        return raw
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None


def key_bytes(key: object) -> bytes:
    """A key as bytes: text and its UTF-8 bytes name the same entry."""
    if type(key) is str and len(key) < 1000:
        return key.encode("utf-8", "surrogatepass")
    if isinstance(key, str):
        raw = key.encode("utf-8", "surrogatepass")
    elif isinstance(key, bytes | bytearray):
        raw = bytes(key)
    else:
        raise TypeError(f"a cache key is text or bytes, not {type(key).__name__}; make one with kcachefs.keys")
    if len(raw) > KEY_LIMIT:
        raise UsageError(f"a key of {len(raw)} bytes is more than {KEY_LIMIT}; hash it with kcachefs.keys.hash_value")
    return raw
