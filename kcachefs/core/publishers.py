"""Who owns an entry under the policy `publish`: the user who published in it first, whoever made its folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kcachefs.bounded import BoundedDict
from kcachefs.core.nodes import Nodes
from kcachefs.core.temporaries import Temporaries
from kcachefs.core.walk import Walk
from kcachefs.errors import FsError
from kcachefs.store.entry_table import EntryTable
from kcachefs.store.inode_numbers import GROUP_BASE, ROOT_INO
from kcachefs.store.records import Inode

LOOKED_AT = 1000
"""How many names of an entry are looked at: more would keep everybody waiting."""
_REMEMBERED = 16384


class Publishers:
    """Who published first in the entries of one filesystem. Any thread."""

    def __init__(self, nodes: Nodes, table: EntryTable, temporaries: Temporaries, walk: Walk) -> None:
        self._nodes = nodes
        self._table = table
        self._temporaries = temporaries
        self._walk = walk
        self._first: BoundedDict[int, int] = BoundedDict(_REMEMBERED)
        """The first file of each entry."""

    def owner_of(self, entry: int) -> int | None:
        """Who published first in an entry; None if nobody has."""
        first = self.first_file(entry)
        return first.uid if first is not None else None

    def first_file(self, entry: int) -> Inode | None:
        """The first file made in an entry, whose owner owns the entry; of a very large entry, one of its files."""
        ino = self._first.get(entry) or entry & ~GROUP_BASE  # a group usually has the number of its first file
        with contextlib.suppress(FsError):
            node = self._nodes.get(ino)
            if node.is_file and node.nlink and node.entry == entry and not self.is_temporary(ino, node):
                return node
        files = list(self.files_of(entry))
        record = self._table.get(entry)
        # Inode numbers give the order only until the entry has a record: then another user may move an older file in.
        own = [row for row in files if record is not None and row[1].uid == record.uid]
        found = min(own or files, key=lambda row: row[0], default=None)
        if found is None:
            return None
        self._first[entry] = found[0]
        return found[1]

    def files_of(self, entry: int) -> Iterator[tuple[int, Inode]]:
        """The files of an entry that have their final names, among the names that are looked at."""
        for ino, node in self._walk.some_files(entry, LOOKED_AT):
            if not self.is_temporary(ino, node):
                yield ino, node

    def is_temporary(self, ino: int, node: Inode) -> bool:
        """Whether an inode has a temporary name, or is in a folder that has one."""
        temporary = self._temporaries.inodes
        if ino in temporary:
            return True
        above = node.parent
        while temporary and above != ROOT_INO:
            if above in temporary:
                return True
            found = self._nodes.get(above)
            if found.entry == 0:
                return False
            above = found.parent
        return False
