"""The catalog's schema: every key and every record, each with its one codec. This comment is the authority.

One ordered keyspace. The first byte of a key is its table; integers in keys are big-endian, so that order in the
catalog is order in number. Values are little-endian, fixed, and never pickled. The catalog puts a checksum behind each
value; what is described here is the value without it.

| table | key behind the first byte | value |
| --- | --- | --- |
| `m` meta | ASCII name | u64 each. `ino`, `volume`, `spool`: those below may be in use · `active`: volume appended to |
| | `answered` | u64 request, u64 inode: the last request that changed a name, and the inode it gave back |
| | `folded` | u64 segment, u64 offset: the journal before that place is here already; kept by the fold alone |
| `t` totals | (none) | Totals: what the objects and volumes below add up to |
| `o` object | digest, 32 bytes | ObjectRecord: where the bytes are, and how many inodes (and holders) refer to them |
| `v` volume | u32 | VolumeRecord: bytes appended, and how many of them still belong to an object |
| `i` inode | u64 | Inode, followed by the target when it is a symbolic link |
| `n` name | u64 parent inode, u64 cookie of the name, name | u64 inode, u8 type (the upper four bits of its mode) |
| `s` spool | u64 | u64 inode whose bytes are in the spool file of that number |
| `a` slot | u64 | u64 inode whose bytes are in the slot of that number |
| `e` entry | u64 | EntryRecord, followed by its name: what is evicted together |
| `g` group | u64 folder, group's name | u64 entry: the files of a folder that belong together |
| `l` order | u64 namespace, u64 time of use | u64 entry: of each namespace the oldest first; pinned ones not |
| `c` counts | u64 namespace | NamespaceRecord: what its entries add up to, and what became of them |
| `u` share | u32 uid, u64 namespace | NamespaceRecord: the same, of the entries that this user made |
| `w` temporary | u64 inode | u64 time, u64 process: written under a temporary name and not renamed yet |
| `x` orphan | u64 inode | nothing: it has no name left, and something may still use it |

A directory's names stand in the order of their cookies, 63 bits of a hash. So a listing is resumed from a cookie alone,
with no state kept for it: by a later request, after names came and went, or by a daemon that was started since.

Deleting a `v`, `s` or `a` record is what frees the file or slot beneath it: the fold does so once the deletion is on
disk, and never before. A file without a record is what a kill leaves behind; opening the store removes it.
"""

from __future__ import annotations

import stat
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Self

from blake3 import blake3

FORMAT = 2
"""Written into every store; a store with another number is refused."""

ROOT_INO = 1
TENANTS = b".tenants"
"""The folder in the root that holds a tree of namespaces for each user who has one of their own."""

DIGEST_SIZE = 32

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_NAME_KEY = struct.Struct(">cQQ")
_SHARE_KEY = struct.Struct(">cIQ")

TOTALS_KEY = b"t"
GROUP_BASE = 1 << 62
"""Numbers of entries that are groups of files start here; that of a folder's entry is the folder's inode."""

META_INO = b"mino"
META_VOLUME = b"mvolume"
META_ACTIVE = b"mactive"
META_SPOOL = b"mspool"
META_FOLDED = b"mfolded"
META_ANSWERED = b"manswered"

EXPENDABLE = frozenset(b"oin")
"""Tables whose records count as absent when they are damaged: the file they belong to is then made again. A volume, a
spool file, a total or a counter taken for absent would get live bytes deleted, or numbers given out twice."""


def object_key(digest: bytes) -> bytes:
    return b"o" + digest


def volume_key(number: int) -> bytes:
    return b"v" + _U32.pack(number)


def inode_key(ino: int) -> bytes:
    return b"i" + _U64.pack(ino)


def name_cookie(name: bytes) -> int:
    """Where a name stands in its directory; small numbers are left free for `.` and `..`."""
    return (int.from_bytes(blake3(name).digest(8), "big") >> 1) | 16


@lru_cache(8192)  # a lookup is mostly followed by a creation or a rename of the same name
def name_key(parent: int, name: bytes) -> bytes:
    return _NAME_KEY.pack(b"n", parent, name_cookie(name)) + name


def name_of(key: bytes) -> tuple[int, bytes]:
    """The cookie and the name of a name's key."""
    return _U64.unpack_from(key, 9)[0], key[17:]


def names_prefix(parent: int) -> bytes:
    return b"n" + _U64.pack(parent)


def names_after(parent: int, cookie: int) -> bytes:
    """The smallest key of a name that stands behind `cookie`."""
    return _NAME_KEY.pack(b"n", parent, cookie + 1)


def orphan_key(ino: int) -> bytes:
    return b"x" + _U64.pack(ino)


def entry_key(entry: int) -> bytes:
    return b"e" + _U64.pack(entry)


def group_key(folder: int, name: bytes) -> bytes:
    return b"g" + _U64.pack(folder) + name


def order_key(namespace: int, used: int) -> bytes:
    return _NAME_KEY.pack(b"l", namespace, used)


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


def temporary_key(ino: int) -> bytes:
    return b"w" + _U64.pack(ino)


def slot_key(number: int) -> bytes:
    return b"a" + _U64.pack(number)


def spool_key(number: int) -> bytes:
    return b"s" + _U64.pack(number)


def number_of(key: bytes) -> int:
    """The integer of a `v`, `i`, `s`, `a` or `x` key, or a name's parent."""
    return int.from_bytes(key[1:5] if key[:1] == b"v" else key[1:9], "big")


_NUMBER = struct.Struct("<Q")


def pack_number(value: int) -> bytes:
    return _NUMBER.pack(value)


def unpack_number(raw: bytes) -> int:
    number: int = _NUMBER.unpack(raw)[0]
    return number


@dataclass(slots=True)
class ObjectRecord:
    """Where an object's bytes are. `length` counts everything in the volume: frames, frame table and trailer; it is 0
    when the object is damaged and its bytes have been given back."""

    HELD: ClassVar[int] = 1
    """A ContentStore user keeps it; counts as one of `refs`."""
    DAMAGED: ClassVar[int] = 2
    """Its bytes failed verification and were set aside; only a new put of the same bytes heals it."""

    CODEC: ClassVar[struct.Struct] = struct.Struct("<IIQQIIB")

    volume: int
    offset: int
    length: int
    plain: int
    frames: int
    refs: int
    flags: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Volume and offset: equal as long as nothing moved it."""
        return self.volume, self.offset

    def pack(self) -> bytes:
        return self.CODEC.pack(self.volume, self.offset, self.length, self.plain, self.frames, self.refs, self.flags)

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        return cls(*cls.CODEC.unpack(raw))


@dataclass(slots=True)
class VolumeRecord:
    """`size` bytes were appended to the volume, `live` of them belong to objects. A closed volume gets no more."""

    CLOSED: ClassVar[int] = 1

    CODEC: ClassVar[struct.Struct] = struct.Struct("<QQB")

    size: int
    live: int
    flags: int = 0

    def pack(self) -> bytes:
        return self.CODEC.pack(self.size, self.live, self.flags)

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        return cls(*cls.CODEC.unpack(raw))


@dataclass(slots=True)
class Totals:
    """What all object and volume records add up to; kept by the same transactions that change them."""

    CODEC: ClassVar[struct.Struct] = struct.Struct("<QQQQQ")

    objects: int = 0
    plain: int = 0
    """Plain bytes of all objects, each counted once."""
    referenced: int = 0
    """Plain bytes as their referrers see them: each object counted once per reference."""
    live: int = 0
    """Bytes in volumes that belong to an object."""
    volumes: int = 0
    """Bytes in volumes, dead ones included."""

    def pack(self) -> bytes:
        return self.CODEC.pack(self.objects, self.plain, self.referenced, self.live, self.volumes)

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        return cls(*cls.CODEC.unpack(raw))


@dataclass(slots=True)
class EntryRecord:
    """What is used, counted and evicted as one. Only sealed files count; `folder` and `name` say where it stands."""

    PINNED: ClassVar[int] = 1

    CODEC: ClassVar[struct.Struct] = struct.Struct("<QQqqIIQQIB")

    namespace: int
    folder: int
    created: int
    used: int
    """Nanoseconds; also its place in the order."""
    files: int
    hits: int
    plain: int
    stored: int
    uid: int
    """Who made it, and on whose account it is."""
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
    """What the entries of a namespace add up to now, and what has happened there since the store was made."""

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
    """Plain bytes of the entries that were hit, counted with each hit."""
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


class Content:
    """What holds an inode's bytes."""

    NONE = 0
    """Nothing: a directory, a symbolic link, a FIFO, a socket, an empty file."""
    OBJECT = 1
    """A sealed object, by `digest`."""
    SPOOL = 2
    """A plain file in the spool, by `spool`; its size and mtime are the truth, the record's are not."""
    SLOT = 3
    """A slot of the slot file, by `spool`; small, and not sealed yet."""


@dataclass(slots=True)
class Inode:
    """A file, directory or anything else with a mode. Times are nanoseconds.

    `parent` is a directory's parent (`..`); for other types the directory of its newest name. A directory's `size` is
    how many names it holds, and its `target` its own name. `entry` is the entry it belongs to, or 0.
    """

    MUTABLE: ClassVar[int] = 1
    """Was written again after its first close: stays in the spool until it has been quiet for long."""
    SYNCED: ClassVar[int] = 2
    """Its spool file was fsynced on request: keep it after a power loss."""
    ADOPTED: ClassVar[int] = 4
    """Was brought in from another cache: the entry it makes is no miss."""
    PUBLISHED: ClassVar[int] = 8
    """Was given its final name by a rename: whole, and where the policy says so, its owner's alone to change."""

    CODEC: ClassVar[struct.Struct] = struct.Struct("<IIIIIQqqqQQQBB32s")

    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    atime: int
    mtime: int
    ctime: int
    parent: int
    entry: int
    spool: int
    content: int
    flags: int
    digest: bytes
    target: bytes = field(default=b"")

    def pack(self) -> bytes:
        return (
            self.CODEC.pack(
                self.mode,
                self.nlink,
                self.uid,
                self.gid,
                self.rdev,
                self.size,
                self.atime,
                self.mtime,
                self.ctime,
                self.parent,
                self.entry,
                self.spool,
                self.content,
                self.flags,
                self.digest,
            )
            + self.target
        )

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        fields = cls.CODEC.unpack_from(raw)
        return cls(*fields, raw[cls.CODEC.size :])  # type: ignore[call-arg]

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)


NO_DIGEST = bytes(DIGEST_SIZE)

_NAME = struct.Struct("<QB")


def pack_name(ino: int, mode: int) -> bytes:
    return _NAME.pack(ino, mode >> 12)


def unpack_name(raw: bytes) -> tuple[int, int]:
    """The inode and its type, as READDIR wants it."""
    return _NAME.unpack(raw)
