"""The catalog's schema: every key and every record. This table is the authority on meaning, docs/format.md on bytes.

The keyspace is ordered. The first byte of a key names its table; integers in keys are big-endian, so that keys sort by
number. Values are little-endian with fixed layouts, never pickled. The catalog puts a checksum after each value; the
table shows values without it. Keys and codecs of `o`, `v` and `t` are in object_records.py, those of `e`, `g`, `l`, `c`
and `u` in entry_records.py, those of `d` in history_records.py, all others are here.

| table | key after the first byte | value |
| --- | --- | --- |
| `m` meta | ASCII name | u64 each. `ino`, `volume`, `spool`: lower numbers may be in use · `active`: the open volume |
| | `reset` | u64: when hits, misses and evictions were last counted from 0 |
| | `synced` | u64: 1 once fsync(2) was called for any file |
| | `answered` | u64 request, u64 inode: the last request that changed a name, and the inode it returned |
| | `private` | 32 random bytes: the key with which private mounts hide inode numbers and users |
| | `folded` | u64 segment, u64 offset: the journal before that place is in LMDB; written by the fold alone |
| `t` totals | (none) | Totals: sums over all objects and volumes |
| `o` object | digest, 32 bytes | ObjectRecord: where the bytes are, and how many inodes and holders refer to them |
| `v` volume | u32 | VolumeRecord: bytes appended, and how many of them belong to objects |
| `i` inode | u64 | Inode, followed by the target of a symbolic link or the name of a directory |
| `n` name | u64 parent inode, u64 cookie of the name, name | u64 inode, u8 type (the upper four bits of its mode) |
| `s` spool | u64 | u64 inode whose bytes are in the spool file of that number |
| `a` slot | u64 | u64 inode whose bytes are in the slot of that number |
| `e` entry | u64 | EntryRecord, followed by its name: files that are used and evicted together |
| `d` making | u64 entry | MakingRecord: when, by which run and at what cost the entry was made |
| `g` group | u64 folder, group's name | u64 entry: the files of a folder that belong together |
| `l` order | u64 namespace, u64 time of use | u64 entry: each namespace's entries, oldest first; not the pinned ones |
| `c` counts | u64 namespace | NamespaceRecord: sums over its entries, and counts of hits, misses and evictions |
| `u` share | u32 uid, u64 namespace | NamespaceRecord: the same for one user: entries made, files owned |
| `w` temporary | u64 inode | u64 time, u64 process: written under a temporary name and not renamed yet |
| `x` orphan | u64 inode | empty: no name leads to the inode; it may be in use, or hold names to remove |

The names of a directory are sorted by their cookies, 63 bits of a hash. So a listing resumes from a cookie alone, with
no other state: in a later request, after names came and went, or in a daemon that was started since.

Deleting a `v`, `s` or `a` record frees the file or slot that it stands for: the fold does so once the deletion is on
disk, never before. A kill may leave a file without a record; opening the store removes such a file.
"""

from __future__ import annotations

import operator
import stat
import struct
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import ClassVar, Self

from blake3 import blake3

FORMAT = 4
"""Written into every store; `header.py` says which older formats can be opened."""

TENANTS = b".tenants"
"""The folder in the root that holds a tree of namespaces for each user who has one of their own."""

DIGEST_SIZE = 32

_U64 = struct.Struct(">Q")
_NAME_KEY = struct.Struct(">cQQ")


META_INO = b"mino"
META_SPOOL = b"mspool"
META_FOLDED = b"mfolded"
META_ANSWERED = b"manswered"
META_SYNCED = b"msynced"
META_PRIVATE = b"mprivate"
META_RESET = b"mreset"

EXPENDABLE = frozenset(b"oind")
"""Tables whose damaged records count as absent: the file is then gone, and the framework makes it again. If a volume, a
spool file, a total or a counter counted as absent, live bytes would be deleted or numbers assigned twice."""


def inode_key(ino: int) -> bytes:
    return b"i" + _U64.pack(ino)


def name_cookie(name: bytes) -> int:
    """A name's position in its directory; the numbers below 16 are left free for `.` and `..`."""
    return (int.from_bytes(blake3(name).digest(8), "big") >> 1) | 16


@lru_cache(8192)  # a lookup is usually followed by the creation or a rename of the same name
def name_key(parent: int, name: bytes) -> bytes:
    return _NAME_KEY.pack(b"n", parent, name_cookie(name)) + name


def name_of(key: bytes) -> tuple[int, bytes]:
    """The cookie and the name of a name's key."""
    return _U64.unpack_from(key, 9)[0], key[17:]


def names_of(records: list[tuple[bytes, bytes]]) -> list[tuple[int, bytes, int, int]]:
    """Cookie, name, inode and type of each name; like `name_of` and `unpack_name`, for many at once."""
    cookie, leads_to = _U64.unpack_from, _NAME.unpack
    return [(cookie(key, 9)[0], key[17:], *leads_to(raw)) for key, raw in records]


def names_prefix(parent: int) -> bytes:
    return b"n" + _U64.pack(parent)


def names_after(parent: int, cookie: int) -> bytes:
    """The smallest key of a name that comes after `cookie`."""
    return _NAME_KEY.pack(b"n", parent, cookie + 1)


def orphan_key(ino: int) -> bytes:
    return b"x" + _U64.pack(ino)


def temporary_key(ino: int) -> bytes:
    return b"w" + _U64.pack(ino)


def slot_key(number: int) -> bytes:
    return b"a" + _U64.pack(number)


def spool_key(number: int) -> bytes:
    return b"s" + _U64.pack(number)


def number_of(key: bytes) -> int:
    """The integer after the table's letter in a key; in a name's key, the parent's inode."""
    return int.from_bytes(key[1:5] if key[:1] == b"v" else key[1:9], "big")


_NUMBER = struct.Struct("<Q")


def pack_number(value: int) -> bytes:
    return _NUMBER.pack(value)


_PAIR = struct.Struct("<QQ")


def pack_pair(first: int, second: int) -> bytes:
    return _PAIR.pack(first, second)


def unpack_pair(raw: bytes) -> tuple[int, int]:
    return _PAIR.unpack_from(raw)


def unpack_number(raw: bytes) -> int:
    number: int = _NUMBER.unpack(raw)[0]
    return number


_TIME = struct.Struct("<q")


def pack_time(nanoseconds: int) -> bytes:
    return _TIME.pack(nanoseconds)


def unpack_time(raw: bytes) -> int:
    time: int = _TIME.unpack(raw)[0]
    return time


class Content:
    """Where an inode's bytes are."""

    NONE = 0
    """Nowhere: a directory, a symbolic link, a FIFO, a socket or an empty file."""
    OBJECT = 1
    """In the sealed object `digest`."""
    SPOOL = 2
    """In the spool file numbered `spool`. The inode's size is that of the spool file, not the one in the record."""
    SLOT = 3
    """In the slot numbered `spool` of the slot file: a small file that is not sealed yet."""


@dataclass(slots=True)
class Inode:
    """A file, directory or anything else with a mode. Times are nanoseconds.

    `parent` is the directory that holds it; for a file with several names, the directory of the newest name. A
    directory's `size` is the number of names in it, and its `target` is its own name. `entry` is the entry that it
    belongs to, or 0.

    A file that was synced and then written again *keeps* its synced state, in case of a power cut: `digest` is the
    synced object, or NO_DIGEST if the file was empty, and `target` holds the synced mtime.
    """

    MUTABLE: ClassVar[int] = 1
    """Was written again after it was sealed or synced: stays unsealed until it has been quiet for a long time."""
    SYNCED: ClassVar[int] = 2
    """Was synced (fsync(2)): if it is written again, it keeps the synced state until the new bytes are safe."""
    ADOPTED: ClassVar[int] = 4
    """Was adopted from another cache: the entry it begins does not count as a miss."""
    PUBLISHED: ClassVar[int] = 8
    """Is not a lock: under some policies, only its owner may change it. Set when a rename gives a file its final name,
    when an inode gets a KEPT name, when a file arrives from another cache, and when a file loses its entry. If a
    renamed folder holds too many files to mark each of them, the mark on the folder covers them."""

    FRESH: ClassVar[int] = 16
    """Was made under a temporary name and never had another one: the kernel keeps no name that leads to it."""

    DOOMED: ClassVar[int] = 32
    """Was evicted while somebody had it open: until it is closed, it is on nobody's account."""

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

    def __copy__(self) -> Inode:
        """Quicker than the copy module; listings copy every inode that they show."""
        return Inode(*_fields_of(self))

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
    def keeps_synced(self) -> bool:
        """Whether the inode keeps an older, synced state of its file."""
        return bool(self.target) and stat.S_ISREG(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)


_fields_of = operator.attrgetter(*(each.name for each in fields(Inode)))

NO_DIGEST = bytes(DIGEST_SIZE)


def _start(name: str) -> int:
    """Where a field of an inode begins in its record: the codec's format has one letter for each field before it."""
    place = [each.name for each in fields(Inode)].index(name)
    return struct.calcsize(Inode.CODEC.format[: 1 + place])


INODE_TYPE, INODE_FLAGS = _start("mode") + 1, _start("flags")
"""The bytes of an inode's record that hold its type (in the upper four bits) and its flags."""
INODE_HEAD, INODE_UID, INODE_SIZE, INODE_PLACE, INODE_DIGEST = (
    slice(_start("mode"), _start("gid")),
    slice(_start("uid"), _start("gid")),
    slice(_start("size"), _start("atime")),
    slice(_start("spool"), Inode.CODEC.size),
    slice(_start("digest"), Inode.CODEC.size),
)
"""Parts of an inode's record: (mode, links, owner), owner, size, (spool, content, flags, digest), digest."""

_NAME = struct.Struct("<QB")


def pack_name(ino: int, mode: int) -> bytes:
    return _NAME.pack(ino, mode >> 12)


def unpack_name(raw: bytes) -> tuple[int, int]:
    """The inode's number and its type, as READDIR wants it."""
    return _NAME.unpack(raw)
