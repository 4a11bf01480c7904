"""Walks over the tree: what lies below a folder, and what belongs to an entry."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kcachefs.core.nodes import Nodes
from kcachefs.core.tree import Tree
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.entry_table import EntryTable
from kcachefs.store.inode_numbers import GROUP_BASE
from kcachefs.store.records import name_of, names_prefix, unpack_name

_BATCH = 256
"""Inodes read at a time, while requests wait."""
Member = tuple[int, int, bytes]
"""An inode, its folder and its name there."""


class Walk:
    """Finds everything under a folder or in an entry."""

    def __init__(self, store: Store, nodes: Nodes, tree: Tree, table: EntryTable) -> None:
        self._catalog = store.catalog
        self._nodes = nodes
        self._tree = tree
        self._table = table

    def below(self, ino: int) -> Iterator[Member]:
        """Everything in a folder, folders before what is in them."""
        folders = [ino] if self._nodes.get(ino).is_dir else []
        while folders:
            folder = folders.pop()
            rows = [(unpack_name(raw)[0], name_of(key)[1]) for key, raw in self._catalog.scan(names_prefix(folder))]
            for start in range(0, len(rows), _BATCH):
                batch = rows[start : start + _BATCH]
                self._nodes.prefetch(child for child, _ in batch)
                for child, name in batch:
                    yield child, folder, name
                    if self._nodes.get(child).is_dir:
                        folders.append(child)

    def members(self, entry: int) -> Iterator[Member]:
        """Everything that belongs to an entry, folders before what is in them."""
        for parent, name in self.top_names(entry):
            ino = self._tree.find(parent, name)
            if ino is None or (entry < GROUP_BASE and ino != entry):
                continue  # it is gone, and another folder may have its name
            yield ino, parent, name
            if self._nodes.get(ino).is_dir:
                yield from self.below(ino)

    def top_names(self, entry: int) -> list[tuple[int, bytes]]:
        """The names by which an entry is reached: its folder's, or those of its files."""
        if entry < GROUP_BASE:
            with contextlib.suppress(FsError):
                root = self._nodes.get(entry)
                return [(root.parent, root.target)]
            return []
        record = self._table.get(entry)
        if record is None:
            return []
        folder = record.folder
        rows = [(unpack_name(row)[0], name_of(key)[1]) for key, row in self._catalog.scan(names_prefix(folder))]
        return [(folder, name) for ino, name in rows if self._belongs(ino, entry)]

    def files_at_top(self, entry: int) -> dict[bytes, int]:
        """The inodes at the top of an entry by their names: what is in its folder, or the files of its group."""
        if entry < GROUP_BASE:
            rows = self._catalog.scan(names_prefix(entry))
            return {name_of(key)[1]: unpack_name(raw)[0] for key, raw in rows}
        return {
            name: ino for parent, name in self.top_names(entry) if (ino := self._tree.find(parent, name)) is not None
        }

    def names_of(self, ino: int) -> list[tuple[int, bytes]]:
        """The names of an inode in the folder of its newest name."""
        if not self._nodes.exists(ino):
            return []
        parent = self._nodes.get(ino).parent
        rows = self._catalog.scan(names_prefix(parent))
        return [(parent, name_of(key)[1]) for key, raw in rows if unpack_name(raw)[0] == ino]

    def _belongs(self, ino: int, entry: int) -> bool:
        with contextlib.suppress(FsError):
            return self._nodes.get(ino).entry == entry
        return False
