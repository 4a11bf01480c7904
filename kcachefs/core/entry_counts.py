"""When a file counts for its entry: from the transaction that seals it until it goes or is written again.

So the request path writes nothing to the table of entries. An entry's first sealed file lists it there, and it is
struck when its last sealed file goes. A file that is not sealed by then lists the entry again once it is. The entry
belongs to the owner of the file that lists it, unless `publishers.py` says that another user published first.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kcachefs.bounded import BoundedDict
from kcachefs.core.fresh_entries import FreshEntries
from kcachefs.core.layouts import Kind, Spot
from kcachefs.core.makings import Makings
from kcachefs.core.namespaces import Namespaces
from kcachefs.core.nodes import Nodes
from kcachefs.core.placement import Placement
from kcachefs.core.publishers import Publishers
from kcachefs.core.uses import Uses
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.entry_records import EntryRecord
from kcachefs.store.entry_table import EntryTable, Holding, held_by, held_for, new_entry
from kcachefs.store.history_records import MakingRecord
from kcachefs.store.inode_numbers import GROUP_BASE
from kcachefs.store.records import Content, Inode, name_of, names_prefix, unpack_name

_REMEMBERED = 16384


class Standing(NamedTuple):
    """What an entry has gained, and keeps even if all its files are replaced: pin, hits, and its making."""

    entry: int
    record: EntryRecord
    making: MakingRecord | None


class EntryCounts:
    """Enters the files of one filesystem into the table of entries."""

    def __init__(
        self,
        store: Store,
        nodes: Nodes,
        namespaces: Namespaces,
        placement: Placement,
        table: EntryTable,
        uses: Uses,
        makings: Makings,
        fresh: FreshEntries,
        publishers: Publishers | None,
    ) -> None:
        self._catalog = store.catalog
        self._objects = store.objects
        self._nodes = nodes
        self._namespaces = namespaces
        self._placement = placement
        self._table = table
        self._uses = uses
        self._fresh = fresh
        self._makings = makings
        self._publishers = publishers
        """Says who owns an entry; None: the owner of its first sealed file does."""
        self._struck: BoundedDict[int, tuple[int, bytes]] = BoundedDict(_REMEMBERED)
        """Folder and name of each group whose record is gone while some of its files may remain."""

    def count(self, txn: Transaction, files: Iterable[tuple[int, Inode]]) -> None:
        """Count files that were just sealed, or sealed files that moved to another entry, for the entry they are in."""
        for entry, members in _by_entry(files).items():
            record = self._table.get(entry, txn)
            if record is None and entry >= GROUP_BASE:
                for ino, node in members:  # each may have its name elsewhere, and so end up in another entry
                    self._count_in(txn, self._new_record(txn, ino, node), [(ino, node)])
            else:
                if record is None:
                    record = self._new_record(txn, *members[0])
                elif any(node.uid != record.uid for _, node in members):
                    record = self.attributed(txn, entry, record)
                self._count_in(txn, record, members)

    def attributed(self, txn: Transaction, entry: int, record: EntryRecord) -> EntryRecord:
        """The record of an entry in which several users may have files, with the right owner."""
        owner = self._publishers.owner_of(entry) if self._publishers is not None else None
        if owner is None or owner == record.uid:
            return record
        new = copy.copy(record)
        new.uid = owner
        self._table.put(txn, entry, record, new)
        return new

    def _count_in(self, txn: Transaction, record: EntryRecord | None, members: Sequence[tuple[int, Inode]]) -> None:
        """Count files for the one entry that all of them belong to."""
        nodes = [node for _, node in members]
        if record is None:  # their entry is gone and cannot be made again
            for node in nodes:
                node.entry, node.flags = 0, node.flags | Inode.PUBLISHED  # so that the file is not taken for a lock
            return
        entry = nodes[0].entry
        self._uses.sealed(entry)
        are_new = [not self._is_adopted(node) for node in nodes]
        if any(are_new):
            self._fresh.note(entry)
        makers = self._uses.take_makers(txn, entry, (ino for ino, _ in members))
        misses = self._makings.files_sealed(txn, entry, record, nodes, makers, is_miss=are_new[0])
        self._table.add_files(txn, entry, record, self._held_by_owner(txn, nodes), misses=misses)

    def uncount(self, txn: Transaction, node: Inode, *, gone: bool = True) -> None:
        """A sealed file goes, or (not `gone`) is about to be written again. Its object still exists."""
        if node.entry:
            self._uncount_in(txn, node.entry, [node], gone=gone)

    def uncount_all(self, txn: Transaction, files: Iterable[tuple[int, Inode]]) -> None:
        """Sealed files lose their only names, and with them their entries."""
        for entry, members in _by_entry(files).items():
            self._uncount_in(txn, entry, [node for _, node in members])
            for _, node in members:
                node.entry = 0

    def _uncount_in(self, txn: Transaction, entry: int, nodes: Sequence[Inode], *, gone: bool = True) -> None:
        record = self._table.get(entry, txn)
        if record is not None:
            record = self._table.remove_files(txn, entry, record, self._held_by_owner(txn, nodes))
            if gone and not record.files:
                self._strike(txn, entry, record)

    def abandon(self, txn: Transaction, node: Inode) -> None:
        """An unsealed file goes; if its entry holds no sealed file, the entry goes too."""
        record = self._table.get(node.entry, txn) if node.entry and not node.is_dir else None
        if record is not None and not record.files:
            self._strike(txn, node.entry, record)

    def _strike(self, txn: Transaction, entry: int, record: EntryRecord) -> None:
        if entry >= GROUP_BASE:
            self._struck[entry] = record.folder, record.name
        self._table.put(txn, entry, record, None)

    def move(self, txn: Transaction, ino: int, node: Inode, entry: int) -> None:
        """A file or folder comes to belong to another entry."""
        if node.content == Content.OBJECT:
            self.uncount(txn, node)
            node.entry = entry
            self.count(txn, ((ino, node),))
        else:
            self.abandon(txn, node)
            node.entry = entry

    def hand_over(self, txn: Transaction, node: Inode, uid: int) -> None:
        """A file is about to become another user's."""
        record = self._table.get(node.entry, txn) if node.entry and node.content == Content.OBJECT else None
        if record is not None:
            self._table.hand_over(txn, node.entry, record, node.uid, uid, self.holding_of(txn, node))

    def changes_namespace(self, txn: Transaction, entry: int, folder: int) -> bool:
        """Whether moving an entry to that folder changes its namespace."""
        record = self._table.get(entry, txn)
        return record is not None and self._namespaces.of(folder) != record.namespace

    def relocate(self, txn: Transaction, entry: int, folder: int, name: bytes) -> None:
        """The folder of an entry was moved or renamed."""
        record = self._table.get(entry, txn)
        if record is not None:
            namespace = self._namespaces.of(folder)
            holdings = self._holdings(txn, entry, record) if namespace != record.namespace else {}
            self._table.relocate(txn, entry, record, namespace, folder, name, holdings)

    def standing(self, txn: Transaction, entry: int) -> Standing | None:
        """What an entry keeps if all of its files are replaced; None if there is no such entry."""
        record = self._table.get(entry, txn) if entry else None
        return Standing(entry, record, self._makings.get(entry, txn)) if record is not None else None

    def inherit(self, txn: Transaction, ino: int, node: Inode, lost: Standing) -> None:
        """Keep pin and hits: a file took the name of an entry's last sealed file, and the entry's record went.

        An entry that is a folder also keeps the record of its making, so that a run that replaces its files counts as
        rewriting it.
        """
        is_pinned = lost.record.flags & EntryRecord.PINNED
        making = lost.making if lost.entry == node.entry < GROUP_BASE else None
        if not node.is_file or not node.entry or not (is_pinned or lost.record.hits or making):
            return
        old = self._table.get(node.entry, txn)
        record = copy.copy(old) or self._new_record(txn, ino, node)
        if record is not None:
            record.hits += lost.record.hits
            record.flags |= is_pinned
            self._table.put(txn, node.entry, old, record)
            if making is not None:
                self._makings.inherit(txn, node.entry, making)

    def holding_of(self, txn: Transaction, node: Inode) -> Holding:
        """What a sealed file counts for."""
        return held_for(node, self._objects.record_in(txn, node.digest))

    def _held_by_owner(self, txn: Transaction, nodes: Iterable[Inode]) -> dict[int, Holding]:
        holdings: dict[int, Holding] = {}
        for node in nodes:
            held, so_far = self.holding_of(txn, node), holdings.get(node.uid)
            holdings[node.uid] = held if so_far is None else held.plus(so_far)
        return holdings

    def _holdings(self, txn: Transaction, entry: int, record: EntryRecord) -> dict[int, Holding]:
        """What each user holds in an entry that is a folder. Files without a name in it count for the entry's owner."""
        sealed: dict[int, Inode] = {}
        folders = [entry]
        while folders:
            for _, raw in self._catalog.scan(names_prefix(folders.pop())):
                ino = unpack_name(raw)[0]
                node = self._nodes.get(ino)
                if node.is_dir:
                    folders.append(ino)
                elif node.content == Content.OBJECT and node.entry == entry:
                    sealed[ino] = node
        holdings = self._held_by_owner(txn, [node for node in sealed.values() if node.uid != record.uid])
        left = held_by(record)
        for held in holdings.values():
            left = left.minus(held)
        return holdings | {record.uid: left}

    def _new_record(self, txn: Transaction, ino: int, node: Inode) -> EntryRecord | None:
        if node.entry >= GROUP_BASE:
            return self._regroup(txn, ino, node)
        try:
            root = self._nodes.get(node.entry)
            namespace = self._namespaces.of(root.parent)
        except FsError:
            return None
        owner = self._publishers.owner_of(node.entry) if self._publishers is not None else None
        return new_entry(namespace, root.parent, node.uid if owner is None else owner, root.target, time.time_ns())

    def _regroup(self, txn: Transaction, ino: int, node: Inode) -> EntryRecord | None:
        """Make a group's record again, which was struck when another of its files went and none was sealed."""
        struck = self._struck.get(node.entry)
        if struck is not None and struck[0] == node.parent:
            spot = Spot(Kind.GROUP, struck[1])
            node.entry = self._placement.entry_at(txn, ino, node.parent, spot, False, node.uid)
            return self._table.get(node.entry, txn)
        with contextlib.suppress(FsError):
            folder = self._nodes.get(node.parent)
            for key, raw in self._catalog.scan(names_prefix(node.parent)):
                if unpack_name(raw)[0] == ino:
                    spot = self._placement.spot(node.parent, folder, name_of(key)[1], False)
                    node.entry = self._placement.entry_at(txn, ino, node.parent, spot, False, node.uid)
                    return self._table.get(node.entry, txn) if node.entry >= GROUP_BASE else None
        return None

    def _is_adopted(self, node: Inode) -> bool:
        with contextlib.suppress(FsError):
            root = node if node.entry >= GROUP_BASE else self._nodes.get(node.entry)
            return bool(root.flags & Inode.ADOPTED)
        return False


def _by_entry(files: Iterable[tuple[int, Inode]]) -> dict[int, list[tuple[int, Inode]]]:
    """Inodes and their numbers, by the entry that each belongs to; leaves out inodes that belong to none."""
    found: dict[int, list[tuple[int, Inode]]] = {}
    for ino, node in files:
        if node.entry:
            found.setdefault(node.entry, []).append((ino, node))
    return found
