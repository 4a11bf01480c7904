"""The file of one entry: what is in it, and how a whole one is told from a damaged one.

`checksum 32 | magic 4 | flags u16 | meta length u16 | key length u32 | value length u64 | key | meta | value`

The checksum is BLAKE3 over everything after it, so a flipped, missing or added byte anywhere shows. The key is part of
the record: a file moved to another key's name is not served. Metadata is MessagePack of plain data. Nothing is ever a
pickle: whoever may write to a shared folder must not thereby run code in everyone who reads it.

`Cache` is imported by programs that count milliseconds. So there are no dataclasses, named tuples or msgspec at import
time: each of them would take longer than all the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from blake3 import blake3

from kcachefs.errors import UsageError

# Part of the path of every entry, so that versions with two formats can share one folder without meeting.
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
Value = bytes | bytearray | memoryview


class Entry:
    """A value and its small metadata. Not to be changed: it is shared by all who ask for it."""

    __slots__ = ("meta", "text_key", "value")

    value: bytes
    meta: dict[str, Any]
    text_key: bool
    """Whether the key was given as text, so that listing the keys gives it back as text."""

    def __init__(self, value: bytes, meta: dict[str, Any] | None = None, text_key: bool = False) -> None:
        self.value = value
        self.meta = {} if meta is None else meta
        self.text_key = text_key

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entry):
            return NotImplemented
        return (self.value, self.meta, self.text_key) == (other.value, other.meta, other.text_key)

    def __repr__(self) -> str:
        return f"Entry({self.value!r}, {self.meta!r}, text_key={self.text_key})"


class Head:
    """Everything of a record but the value."""

    __slots__ = ("checked", "checksum", "is_text", "key", "meta", "value_at", "value_size")

    checked: bytes
    """The bytes from the end of the checksum to the value, which the checksum covers too."""
    checksum: bytes
    key: bytes
    meta: bytes
    is_text: bool
    value_at: int
    value_size: int

    def __init__(
        self, checked: bytes, checksum: bytes, key: bytes, meta: bytes, is_text: bool, value_at: int, value_size: int
    ) -> None:
        self.checked = checked
        self.checksum = checksum
        self.key = key
        self.meta = meta
        self.is_text = is_text
        self.value_at = value_at
        self.value_size = value_size

    @property
    def size(self) -> int:
        """The size of the whole record."""
        return self.value_at + self.value_size

    def is_valid(self, value: Value) -> bool:
        """Whether the value, and this head, are those that were stored."""
        hasher = blake3(self.checked)
        hasher.update(value)
        return hasher.digest() == self.checksum

    def entry(self, value: bytes) -> Entry | None:
        """The entry, or None where the metadata cannot be read."""
        meta = self.told()
        return None if meta is None else Entry(value, meta, self.is_text)

    def told(self) -> dict[str, Any] | None:
        """The metadata, or None where it cannot be read."""
        if not self.meta:
            return {}
        import msgspec

        try:
            return msgspec.msgpack.decode(self.meta, type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError, RecursionError):  # a text that is not UTF-8 is a ValueError
            return None

    def given_key(self) -> Key | None:
        """The key as its owner gave it; None if it cannot be one."""
        if not self.is_text:
            return self.key
        try:
            return self.key.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return None


def pack(key: bytes, is_text: bool, value: Value, meta: Meta | None) -> list[Any]:
    """The record's pieces, ready for one gathering write."""
    told = b""
    if meta:
        told = _told(dict(meta))
    if len(told) > META_LIMIT:
        raise UsageError(f"metadata of {len(told)} bytes is more than {META_LIMIT}; put it into the value")
    size = value.nbytes if isinstance(value, memoryview) else len(value)
    head = _HEADER.pack(MAGIC, _TEXT_KEY if is_text else 0, len(told), len(key), size) + key + told
    hasher = blake3(head)
    hasher.update(value)
    return [hasher.digest(), head, value]


def _told(meta: dict[str, Any]) -> bytes:
    import msgspec

    for name in meta:
        if not isinstance(name, str):
            raise UsageError(f"metadata has the key {name!r}; its keys are text")
    try:
        return msgspec.msgpack.encode(meta)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise UsageError(f"metadata is plain data (texts, bytes, numbers, lists), and this is not: {error}") from None


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
    if not meta_size:
        return Entry(record[value_at:], {}, bool(flags & _TEXT_KEY))
    head = head_of(record[:value_at])
    return None if head is None else head.entry(record[value_at:])


def head_size(start: bytes) -> int | None:
    """How long the head of a record is, by the record's beginning; None if it is not one of ours."""
    if len(start) < _START:
        return None
    magic, _, meta_size, key_size, _ = _HEADER.unpack_from(start, _CHECKSUM)
    return None if magic != MAGIC else _START + key_size + meta_size


def head_of(start: bytes) -> Head | None:
    """The head of a record that has been read at least to the end of its head; None if it is not one of ours."""
    size = head_size(start)
    if size is None or len(start) < size:
        return None
    _, flags, _, key_size, value_size = _HEADER.unpack_from(start, _CHECKSUM)
    meta_at = _START + key_size
    return Head(
        checked=start[_CHECKSUM:size],
        checksum=start[:_CHECKSUM],
        key=start[_START:meta_at],
        meta=start[meta_at:size],
        is_text=bool(flags & _TEXT_KEY),
        value_at=size,
        value_size=value_size,
    )


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
