"""Keys and records of entries, and of the sums over them. records.py has the schema; entry_table.py updates them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from kcachefs.store.records import number_of

_U64 = struct.Struct(">Q")
_ORDER_KEY = struct.Struct(">cQQ")
_SHARE_KEY = struct.Struct(">cIQ")


def entry_key(entry: int) -> bytes:
    return b"e" + _U64.pack(entry)


def group_key(folder: int, name: bytes) -> bytes:
    return b"g" + _U64.pack(folder) + name


def group_of(key: bytes) -> tuple[int, bytes]:
    """The folder and the name in a group's key."""
    return number_of(key), key[9:]


def order_key(namespace: int, used: int) -> bytes:
    return _ORDER_KEY.pack(b"l", namespace, used)


def used_of(key: bytes) -> int:
    """The time of use in a key of the order."""
    return int.from_bytes(key[9:17], "big")


def order_prefix(namespace: int) -> bytes:
    return b"l" + _U64.pack(namespace)


def counts_key(namespace: int) -> bytes:
    return b"c" + _U64.pack(namespace)


def share_key(uid: int, namespace: int) -> bytes:
    return _SHARE_KEY.pack(b"u", uid, namespace)


def shares_prefix(uid: int) -> bytes:
    return share_key(uid, 0)[:5]


def share_of(key: bytes) -> tuple[int, int]:
    """The user and the namespace of a share's key."""
    _, uid, namespace = _SHARE_KEY.unpack(key)
    return uid, namespace


@dataclass(slots=True)
class EntryRecord:
    """Files used, counted and evicted together. Only sealed files count. `folder` and `name` say where the entry is."""

    PINNED: ClassVar[int] = 1
    LEAVING: ClassVar[int] = 2
    """Its names are gone, and its files are being removed."""

    CODEC: ClassVar[struct.Struct] = struct.Struct("<QQqqIIQQIB")

    namespace: int
    folder: int
    created: int
    used: int
    """Time of the last use in nanoseconds; also its place in the order."""
    files: int
    hits: int
    plain: int
    stored: int
    uid: int
    """The user who made the entry, on whose account it counts. Its files count on the accounts of their owners."""
    flags: int
    name: bytes = b""

    def pack(self) -> bytes:
        return (
            self.CODEC.pack(
                self.namespace,
                self.folder,
                self.created,
                self.used,
                self.files,
                self.hits,
                self.plain,
                self.stored,
                self.uid,
                self.flags,
            )
            + self.name
        )

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        fields = cls.CODEC.unpack_from(raw)
        return cls(*fields, raw[cls.CODEC.size :])  # type: ignore[call-arg]


@dataclass(slots=True)
class NamespaceRecord:
    """The sums over a namespace's present entries, and counts of what has happened there.

    The counts begin when the store is made, and again at each `EntryTable.reset`.
    """

    CODEC: ClassVar[struct.Struct] = struct.Struct("<QQQQQQQQQq")

    entries: int = 0
    files: int = 0
    plain: int = 0
    stored: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    served: int = 0
    """Plain bytes of the entries that were hit, counted at each hit."""
    used: int = 0

    def pack(self) -> bytes:
        return self.CODEC.pack(
            self.entries,
            self.files,
            self.plain,
            self.stored,
            self.hits,
            self.misses,
            self.evictions,
            self.evicted_bytes,
            self.served,
            self.used,
        )

    @classmethod
    def unpack(cls, raw: bytes | None) -> Self:
        return cls(*cls.CODEC.unpack(raw)) if raw is not None else cls()
