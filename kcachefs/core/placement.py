"""Placement: which entry a name belongs to, by the layout of its namespace and by its place in it.

Everything below the folder of an entry belongs to that entry. Elsewhere `layouts.place` decides. The entry of a folder
has the folder's inode as its number; a group of files has a number of its own.
"""

from __future__ import annotations

import time

from kcachefs.core.layouts import Kind, Spot, is_temporary, place
from kcachefs.core.namespaces import Namespaces
from kcachefs.core.nodes import Nodes
from kcachefs.store.catalog import Transaction
from kcachefs.store.entry_table import EntryTable, new_entry
from kcachefs.store.inode_numbers import GROUP_BASE
from kcachefs.store.records import Inode

_STRUCTURE = Spot(Kind.STRUCTURE)


class Placement:
    """Looks up, and for groups makes, the entry of a name."""

    def __init__(self, nodes: Nodes, namespaces: Namespaces, table: EntryTable) -> None:
        self._nodes = nodes
        self._namespaces = namespaces
        self._table = table

    def spot(self, parent: int, folder: Inode, name: bytes, is_dir: bool) -> Spot:
        """What a name is, or would be, in a folder that belongs to no entry."""
        namespaces = self._namespaces
        if parent in namespaces.roots or parent == namespaces.tenants:
            return _STRUCTURE if is_dir else Spot(Kind.GROUP, name)
        namespace, path = namespaces.path(parent, folder)
        return place(self._nodes.get(namespace).target, (*path, name), is_dir)

    def kind_at(self, parent: int, name: bytes, *, is_dir: bool) -> Kind:
        """What a name in that folder is, or would be, by the layout alone."""
        return self.spot(parent, self._nodes.get(parent), name, is_dir).kind

    def group_at(self, parent: int, name: bytes, txn: Transaction | None = None) -> int:
        """The entry of the group that a file of that name would belong to; 0 if there is none."""
        spot = self.spot(parent, self._nodes.get(parent), name, False)
        return self._table.group(parent, spot.group, txn) if spot.kind is Kind.GROUP else 0

    def entry_under(self, txn: Transaction, ino: int, node: Inode, parent: int, name: bytes) -> tuple[int, Kind]:
        """The entry that an inode belongs to by one of its names, and what that name makes of it."""
        folder = self._nodes.get(parent)
        if folder.entry:
            return folder.entry, Kind.TEMP if is_temporary(name) else Kind.TREE
        spot = self.spot(parent, folder, name, node.is_dir)
        return self.entry_at(txn, ino, parent, spot, node.is_dir, node.uid), spot.kind

    def entry_at(self, txn: Transaction, ino: int, parent: int, spot: Spot, is_dir: bool, uid: int) -> int:
        """The entry of an inode at a spot; 0 for none. The first file of a group makes the group."""
        if spot.kind is Kind.TREE or (spot.kind is Kind.TEMP and is_dir):
            return ino
        if spot.kind is not Kind.GROUP:
            return 0
        entry = self._table.group(parent, spot.group, txn)
        if entry:
            return entry
        entry = GROUP_BASE | ino
        if self._table.get(entry, txn) is not None:  # the file began another group, which others may still be in
            entry = GROUP_BASE | self._nodes.allocate(txn)
        record = new_entry(self._namespaces.of(parent), parent, uid, spot.group, time.time_ns())
        self._table.put_group(txn, entry, record)
        return entry
