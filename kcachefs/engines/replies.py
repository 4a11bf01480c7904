"""The bodies of the direct engine's replies about inodes and names, in the kernel's layout."""

from __future__ import annotations

from kcachefs.core.options import FOREVER_SECONDS as FOREVER
from kcachefs.core.options import PREFERRED_SIZE
from kcachefs.core.remote import MISS_SECONDS
from kcachefs.engines import protocol as p
from kcachefs.store.records import Inode

MISS = p.ENTRY_HEAD.pack(0, 0, FOREVER, 0, 0, 0) + bytes(p.ATTR.size)
"""The reply for a missing name, for the kernel to remember."""
BRIEF_MISS = p.ENTRY_HEAD.pack(0, 0, MISS_SECONDS, 0, 0, 0) + bytes(p.ATTR.size)
"""The reply where a remote tier may get the name at any time: the kernel forgets it soon."""
NO_ENTRY = bytes(p.ENTRY.size)
"""In a listing: a name without its attributes."""
OPENED = p.OPEN_OUT.pack(0, p.Fopen.KEEP_CACHE, 0)
OPENED_UNCACHED = p.OPEN_OUT.pack(0, p.Fopen.DIRECT_IO | p.Fopen.KEEP_CACHE, 0)
LISTING_AFRESH = p.OPEN_OUT.pack(0, 0, 0)
LISTING_NEW = p.OPEN_OUT.pack(0, p.Fopen.CACHE_DIR, 0)
LISTING_KEPT = p.OPEN_OUT.pack(0, p.Fopen.CACHE_DIR | p.Fopen.KEEP_CACHE, 0)

_PADDING = [bytes(-length % 8) for length in range(8)]
_NS = 1_000_000_000
_U64 = (1 << 64) - 1


def pack_entry(ino: int, node: Inode, seconds: int, shown: int) -> bytes:
    """The reply for a name: its inode, how many seconds to trust the name, and attributes with the number to show."""
    return p.ENTRY.pack(ino, 0, seconds, FOREVER, 0, 0, *_attributes(shown, node))


def pack_attributes(ino: int, node: Inode) -> bytes:
    return p.ATTR_OUT.pack(FOREVER, 0, 0, *_attributes(ino, node))


def pack_name(cookie: int, name: bytes, ino: int, kind: int) -> bytes:
    """A name in a listing."""
    length = len(name)
    return p.DIRENT.pack(ino, cookie, length, kind) + name + _PADDING[length & 7]


def pack_names(rows: list[tuple[int, bytes, int, int]], size: int) -> bytes:
    """As many rows of a listing as fit into `size` bytes, like `pack_name` but without a call for each."""
    pack, padding = p.DIRENT.pack, _PADDING
    records = [
        pack(ino, cookie, length := len(name), kind) + name + padding[length & 7] for cookie, name, ino, kind in rows
    ]
    room = size - sum(map(len, records))
    while room < 0:
        room += len(records.pop())
    return b"".join(records)


def _attributes(ino: int, node: Inode) -> tuple[int, ...]:
    atime, atime_ns = divmod(node.atime, _NS)
    mtime, mtime_ns = divmod(node.mtime, _NS)
    ctime, ctime_ns = divmod(node.ctime, _NS)
    size = 4096 if node.mode & 0o170000 == 0o040000 else node.size
    return (
        ino,
        size,
        (size + 511) >> 9,
        atime & _U64,
        mtime & _U64,
        ctime & _U64,
        atime_ns,
        mtime_ns,
        ctime_ns,
        node.mode,
        node.nlink,
        node.uid,
        node.gid,
        node.rdev,
        PREFERRED_SIZE,
        0,
    )
