"""fsck's look at entries: each adds up to its sealed files, stands once in the order, and counts in its namespace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from kcachefs.store.inspection import Inspection
from kcachefs.store.records import (
    GROUP_BASE,
    ROOT_INO,
    TENANTS,
    Content,
    EntryRecord,
    Inode,
    NamespaceRecord,
    counts_key,
    entry_key,
    group_key,
    name_key,
    names_prefix,
    number_of,
    order_key,
    pack_number,
    share_key,
    share_of,
    unpack_name,
    unpack_number,
)


def check_entries(look: Inspection) -> None:
    """Every entry's files and bytes are those of its sealed files; one that has none is not listed."""
    held = _held(look)
    for key, raw in list(look.store.catalog.walk(b"e")):
        if raw is None:
            continue
        record, entry = EntryRecord.unpack(raw), number_of(key)
        files, plain, stored = held.get(entry, (0, 0, 0))
        if (record.files, record.plain, record.stored) != (files, plain, stored):
            problem = f"{record.files} files of {record.plain} bytes, where there are {files} of {plain}"
            record.files, record.plain, record.stored = files, plain, stored
            mend = partial(_write, look, entry, record)
            look.found("entry", f"entry {entry} ({record.name!r})", problem, "counted afresh", mend)
        held.pop(entry, None)
    for entry, sums in held.items():
        problem, relist = "is not listed, and would never be evicted", partial(_relist, look, entry, sums)
        look.found("entry", f"entry {entry}", problem, "listed again", relist)


def check_order(look: Inspection) -> None:
    """Every entry that may be evicted stands in the order once, at its time of use, and nothing else does."""
    look.store.fold()
    expected = {}
    for key, raw in look.store.catalog.walk(b"e"):
        record = EntryRecord.unpack(raw) if raw is not None else None
        if record is not None and record.used and not record.flags & EntryRecord.PINNED:
            expected[order_key(record.namespace, record.used)] = pack_number(number_of(key))
    present = {key: raw for key, raw in look.store.catalog.walk(b"l") if raw is not None}
    for key in present.keys() - expected.keys():
        look.found("order", key.hex(), "no entry stands there", "removed", partial(look.delete, key))
    for key, value in expected.items():
        if present.get(key) != value:
            problem = "is not in the order, and would never be evicted"
            look.found("order", f"entry {unpack_number(value)}", problem, "put back", partial(look.put, key, value))


def check_namespaces(look: Inspection) -> None:
    """The numbers of a namespace are the sum of its entries'; a user's are of entries they made and files they own."""
    look.store.fold()
    sums: dict[bytes, NamespaceRecord] = {}
    namespaces: dict[int, int] = {}
    for key, raw in look.store.catalog.walk(b"e"):
        record = EntryRecord.unpack(raw) if raw is not None else None
        if record is not None and record.used:
            namespaces[number_of(key)] = record.namespace
            for account in (counts_key(record.namespace), share_key(record.uid, record.namespace)):
                sums.setdefault(account, NamespaceRecord()).entries += 1
    for inode, stored in _sealed(look):
        if inode.entry in namespaces:
            namespace = namespaces[inode.entry]
            for account in (counts_key(namespace), share_key(inode.uid, namespace)):
                total = sums.setdefault(account, NamespaceRecord())
                total.files += 1
                total.plain += inode.size
                total.stored += stored
    for key, raw in [*look.store.catalog.walk(b"c"), *look.store.catalog.walk(b"u")]:
        recorded, total = NamespaceRecord.unpack(raw), sums.pop(key, NamespaceRecord())
        if _sizes(recorded) != _sizes(total):
            problem = f"{recorded.entries} entries of {recorded.stored} bytes, where there are {total.entries}"
            recorded.entries, recorded.files, recorded.plain, recorded.stored = _sizes(total)
            mend = partial(look.put, key, recorded.pack())
            look.found("namespace", _account(key), problem, "counted afresh", mend)
    for key, total in sums.items():
        mend = partial(look.put, key, total.pack())
        look.found("namespace", _account(key), "its entries are not counted", "counted afresh", mend)


def check_groups(look: Inspection) -> None:
    """A group of files leads to an entry that is there."""
    for key, raw in list(look.store.catalog.walk(b"g")):
        if raw is not None and look.store.catalog.get(entry_key(unpack_number(raw))) is None:
            look.found("group", f"{key[9:]!r}", "its entry is gone", "removed", partial(look.delete, key))


def _held(look: Inspection) -> dict[int, tuple[int, int, int]]:
    held: dict[int, tuple[int, int, int]] = {}
    for inode, length in _sealed(look):
        files, plain, stored = held.get(inode.entry, (0, 0, 0))
        held[inode.entry] = (files + 1, plain + inode.size, stored + length)
    return held


def _sealed(look: Inspection) -> Iterator[tuple[Inode, int]]:
    """The files of entries that are objects, each with the bytes that are stored for it."""
    for _, inode in look.inodes():
        if inode.entry and inode.content == Content.OBJECT:
            record = look.store.objects.record(inode.digest)
            yield inode, record.length if record else 0


def _relist(look: Inspection, entry: int, sums: tuple[int, int, int]) -> None:
    """Give an entry a record again, from its folder, or from what says which files are its group."""
    folder, name = 0, b""
    if entry >= GROUP_BASE:
        for key, raw in look.store.catalog.walk(b"g"):
            if raw == pack_number(entry):
                folder, name = number_of(key), key[9:]
    elif (root := look.inode(entry)) is not None:
        folder, name = root.parent, root.target
    if not folder:
        return
    roots = _roots(look)
    namespace, above = folder, look.inode(folder)
    while above is not None and above.parent not in roots and namespace not in roots:
        namespace = above.parent
        above = look.inode(namespace)
    now, owner = time.time_ns(), look.inode(entry & ~GROUP_BASE)
    uid = owner.uid if owner is not None else 0
    record = EntryRecord(namespace, folder, now, now, sums[0], 0, sums[1], sums[2], uid, 0, name)
    look.put(entry_key(entry), record.pack())


def _roots(look: Inspection) -> set[int]:
    """Folders that hold namespaces: the root, and those of users who have a tree of their own."""
    raw = look.store.catalog.get(name_key(ROOT_INO, TENANTS))
    rows = look.store.catalog.scan(names_prefix(unpack_name(raw)[0])) if raw is not None else []
    return {ROOT_INO, *(unpack_name(row)[0] for _, row in rows)}


def _account(key: bytes) -> str:
    if key[:1] == b"c":
        return f"namespace {number_of(key)}"
    uid, namespace = share_of(key)
    return f"user {uid} in namespace {namespace}"


def _write(look: Inspection, entry: int, record: EntryRecord) -> None:
    with look.store.transaction() as txn:
        if record.files:
            txn.put(entry_key(entry), record.pack())
            return
        txn.delete(entry_key(entry))
        if entry >= GROUP_BASE:
            txn.delete(group_key(record.folder, record.name))


def _sizes(record: NamespaceRecord) -> tuple[int, int, int, int]:
    return record.entries, record.files, record.plain, record.stored
