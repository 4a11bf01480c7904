"""fsck's checks of entries, by the definitions in `entry_table.py`: sizes, the order of use, accounts, groups."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from kcachefs.store.entry_records import EntryRecord, NamespaceRecord, entry_key, group_key, group_of, share_of
from kcachefs.store.entry_table import (
    NOTHING,
    Holding,
    erase,
    find_roots,
    held_by,
    held_for,
    namespace_of,
    new_entry,
    order_of,
    sums_of,
)
from kcachefs.store.inode_numbers import GROUP_BASE, ROOT_INO
from kcachefs.store.inspection import Inspection
from kcachefs.store.records import Content, Inode, inode_key, number_of, pack_number, unpack_number


def check_grouped_entries(look: Inspection) -> None:
    """The group of an entry leads to that entry. Otherwise later files of the group would begin another entry."""
    look.store.fold()
    groups = dict(look.store.catalog.walk(b"g"))
    for entry, record in list(_entries(look)):
        key = group_key(record.folder, record.name)
        if entry < GROUP_BASE or (key in groups and groups[key] in (None, pack_number(entry))):
            continue  # `check_records` has reported a group that cannot be read
        if (other := groups.get(key)) is None:
            problem, mend = "does not lead to its entry", partial(look.put, key, pack_number(entry))
            look.report("group", _group(key), problem, "leads there again", mend)
            groups[key] = pack_number(entry)
        else:
            mend = partial(_merge, look, entry, unpack_number(other))
            look.report("group", _group(key), "has two entries", "merged", mend)


def check_entries(look: Inspection) -> None:
    """Every entry's counts match its sealed files; an entry without sealed files is not listed."""
    held = _held(look)
    for entry, record in list(_entries(look)):
        found = held.pop(entry, NOTHING)
        if held_by(record) != found:
            problem = f"{record.files} files of {record.plain} bytes, but there are {found.files} of {found.plain}"
            record.files, record.plain, record.stored = found
            mend = partial(_write, look, entry, record)
            look.report("entry", f"entry {entry} ({record.name!r})", problem, "counted afresh", mend)
    for entry, found in held.items():
        problem, relist = "is not listed, and would never be evicted", partial(_relist, look, entry, found)
        look.report("entry", f"entry {entry}", problem, "listed again", relist)


def check_order(look: Inspection) -> None:
    """Every entry that may be evicted is in the order of use once, at its time of use. Nothing else is in the order."""
    look.store.fold()
    expected = {key: pack_number(entry) for entry, record in _entries(look) if (key := order_of(record)) is not None}
    present = {key: raw for key, raw in look.store.catalog.walk(b"l") if raw is not None}
    for key in present.keys() - expected.keys():
        look.report("order", key.hex(), "no entry has this place in the order", "removed", partial(look.delete, key))
    for key, value in expected.items():
        if present.get(key) != value:
            problem = "is not in the order, and would never be evicted"
            look.report("order", f"entry {unpack_number(value)}", problem, "put back", partial(look.put, key, value))


def check_namespaces(look: Inspection) -> None:
    """The accounts of namespaces, and of users in them, equal the sums over the listed entries."""
    look.store.fold()
    listed = {entry: record for entry, record in _entries(look) if record.used}
    holdings: dict[int, dict[int, Holding]] = {}
    for inode, held in _sealed(look):
        owners = holdings.setdefault(inode.entry, {})
        owners[inode.uid] = owners.get(inode.uid, NOTHING).plus(held)
    sums: dict[bytes, NamespaceRecord] = {}
    for entry, record in listed.items():
        for key, entries, held in sums_of(record, holdings.get(entry, {})):
            total = sums.setdefault(key, NamespaceRecord())
            total.entries += entries
            total.files += held.files
            total.plain += held.plain
            total.stored += held.stored
    for key, raw in [*look.store.catalog.walk(b"c"), *look.store.catalog.walk(b"u")]:
        recorded, total = NamespaceRecord.unpack(raw), sums.pop(key, NamespaceRecord())
        if _sizes(recorded) != _sizes(total):
            problem = f"{recorded.entries} entries of {recorded.stored} bytes, but there are {total.entries}"
            recorded.entries, recorded.files, recorded.plain, recorded.stored = _sizes(total)
            mend = partial(look.put, key, recorded.pack())
            look.report("namespace", _account(key), problem, "counted afresh", mend)
    for key, total in sums.items():
        mend = partial(look.put, key, total.pack())
        look.report("namespace", _account(key), "its entries are not counted", "counted afresh", mend)


def check_makings(look: Inspection) -> None:
    """Every record of a making belongs to an entry that exists."""
    for key, _ in list(look.store.catalog.walk(b"d")):
        if look.store.catalog.get(entry_key(number_of(key))) is None:
            look.report("making", f"entry {number_of(key)}", "is gone", "removed", partial(look.delete, key))


def check_groups(look: Inspection) -> None:
    """Every group of files leads to an entry that exists."""
    for key, raw in list(look.store.catalog.walk(b"g")):
        if raw is not None and look.store.catalog.get(entry_key(unpack_number(raw))) is None:
            look.report("group", _group(key), "its entry is gone", "removed", partial(look.delete, key))


def _entries(look: Inspection) -> Iterator[tuple[int, EntryRecord]]:
    for key, raw in look.store.catalog.walk(b"e"):
        if raw is not None:
            yield number_of(key), EntryRecord.unpack(raw)


def _held(look: Inspection) -> dict[int, Holding]:
    held: dict[int, Holding] = {}
    for inode, one in _sealed(look):
        held[inode.entry] = held.get(inode.entry, NOTHING).plus(one)
    return held


def _sealed(look: Inspection) -> Iterator[tuple[Inode, Holding]]:
    """The sealed files of entries, each with the sizes that it counts for."""
    for _, inode in look.inodes():
        if inode.entry and inode.content == Content.OBJECT:
            yield inode, held_for(inode, look.store.objects.record(inode.digest))


def _relist(look: Inspection, entry: int, held: Holding) -> None:
    """Give an entry a record again, from its folder, or from the group that leads to it."""
    folder, name = 0, b""
    if entry >= GROUP_BASE:
        for key, raw in look.store.catalog.walk(b"g"):
            if raw == pack_number(entry):
                folder, name = group_of(key)
    elif (root := look.inode(entry)) is not None:
        folder, name = root.parent, root.target
    if not folder:
        return
    owner = look.inode(entry & ~GROUP_BASE)
    roots = find_roots(look.store.catalog)[1]
    record = new_entry(
        namespace_of(folder, partial(_parent, look), roots),
        folder,
        owner.uid if owner is not None else 0,
        name,
        time.time_ns(),
    )
    record.used = record.created
    record.files, record.plain, record.stored = held
    look.put(entry_key(entry), record.pack())


def _parent(look: Inspection, ino: int) -> int:
    """The folder above. For a missing folder this is the root, so that a walk upwards stops."""
    inode = look.inode(ino)
    return inode.parent if inode is not None else ROOT_INO


def _group(key: bytes) -> str:
    folder, name = group_of(key)
    return f"{name!r} in directory {folder}"


def _account(key: bytes) -> str:
    if key[:1] == b"c":
        return f"namespace {number_of(key)}"
    uid, namespace = share_of(key)
    return f"user {uid} in namespace {namespace}"


def _merge(look: Inspection, entry: int, into: int) -> None:
    """Move an entry's files to another entry; the following checks correct the counts."""
    files = [(ino, inode) for ino, inode in look.inodes() if inode.entry == entry]
    with look.store.transaction() as txn:
        for ino, inode in files:
            inode.entry = into
            txn.put(inode_key(ino), inode.pack())
        txn.delete(entry_key(entry))


def _write(look: Inspection, entry: int, record: EntryRecord) -> None:
    with look.store.transaction() as txn:
        if record.files:
            txn.put(entry_key(entry), record.pack())
        else:
            erase(txn, entry, record)


def _sizes(record: NamespaceRecord) -> tuple[int, int, int, int]:
    return record.entries, record.files, record.plain, record.stored
