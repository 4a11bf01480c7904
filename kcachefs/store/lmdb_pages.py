"""Finds records with damaged sizes in LMDB's pages.

LMDB puts the records of a page side by side, without gaps, and believes the size that each record states. Deleting a
record with a wrong size moves the others to places where they are not found, or garbles them. `lmdb.verify` looks at
each record by itself, so it does not notice a size that only reaches into the next record.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

_MAGIC = struct.Struct("=I").pack(0xBEEFC0DE)
_BRANCH, _OVERFLOW, _NO_ROOT = 0x01, 0x01, (1 << 64) - 1
_LAYOUTS = {16: (0, 8, 1), 24: (24, 24, 2)}
"""By the length of a page's header (LMDB 0.9, 1.0): where offsets count from, the length of a reference to overflow
pages, and to how many bytes a key is aligned."""
_DATABASES, _DATABASE, _ROOT, _TRANSACTION = 24, 48, 40, 24 + 2 * 48 + 8
"""Places in a meta page, counted from the end of its header: where the records of the two trees begin, how long each
record is, where the root is in a record, and where the number of the last transaction is."""
_NODE = struct.Struct("=HHHH")
"""A value's size in two halves, flags, and the key's size. In a branch page the first three form a page number."""
_ENDS = struct.Struct("=HHH")
"""A page's flags, and where its free space begins and ends."""
_U32, _U64 = struct.Struct("=I"), struct.Struct("=Q")


def badly_packed(data: Path) -> list[str]:
    """The first page of LMDB's file `data` in which records do not lie side by side. `lmdb.verify` must pass first."""
    fd = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for number, page, header in _pages(fd):
            if not _is_packed(page, header):
                return [f"in page {number} the sizes of records are wrong"]
    finally:
        os.close(fd)
    return []


def _pages(fd: int) -> Iterator[tuple[int, bytes, int]]:
    """Every branch and leaf of both trees: its number, its bytes, and how long its header is."""
    header = os.pread(fd, 64, 0).index(_MAGIC)
    size = _U32.unpack(os.pread(fd, 4, header + _DATABASES))[0]
    metas = [os.pread(fd, size, start)[header:] for start in (0, size)]
    newest = max(metas, key=lambda meta: int(_U64.unpack_from(meta, _TRANSACTION)[0]))
    roots = [_U64.unpack_from(newest, _DATABASES + tree * _DATABASE + _ROOT)[0] for tree in (0, 1)]
    left = [root for root in roots if root != _NO_ROOT]
    while left:
        number = left.pop()
        page = os.pread(fd, size, number * size)
        yield number, page, header
        flags, _, _ = _ENDS.unpack_from(page, header - _ENDS.size)
        if flags & _BRANCH:
            for at in _offsets(page, header):
                low, high, highest, _ = _NODE.unpack_from(page, at)
                left.append(low | high << 16 | highest << 32)


def _offsets(page: bytes, header: int) -> list[int]:
    """Where the records of a page begin, from the first to the last."""
    base = _LAYOUTS[header][0]
    _, end, _ = _ENDS.unpack_from(page, header - _ENDS.size)
    count = (end - (header - base)) // 2
    return sorted(base + offset for offset in struct.unpack_from(f"={count}H", page, header))


def _is_packed(page: bytes, header: int) -> bool:
    base, reference, alignment = _LAYOUTS[header]
    flags, _, start = _ENDS.unpack_from(page, header - _ENDS.size)
    expected = base + start
    for at in _offsets(page, header):
        if at != expected:
            return False
        low, high, node_flags, key = _NODE.unpack_from(page, at)
        length = _NODE.size + -(-key // alignment) * alignment
        if not flags & _BRANCH:
            length += reference if node_flags & _OVERFLOW else low | high << 16
        expected = at + length + length % 2
    return bool(expected == len(page))
