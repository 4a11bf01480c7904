"""The base: a tree that everybody with a private tree sees below their own, where their own has nothing.

For everybody but its writers:

- An entry comes whole from their own tree or whole from the base, never mixed: a group of files from the base is
  hidden as soon as their own tree holds one file of that group.
- A folder that only holds entries is made in their own tree when they look it up. The folder of an entry of the base is
  shown under a different inode number to each user, because the kernel allows a folder only one place. Files keep their
  number, so all users share the pages of a file of the base.
- Locks and temporary files are never taken from the base.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from kcachefs.core.layouts import Kind
from kcachefs.core.parts import Parts
from kcachefs.core.tree import DOTDOT, Row
from kcachefs.errors import FsError
from kcachefs.store.inode_numbers import ALIAS_BITS, ROOT_INO, first_alias


class BaseLayer:
    """Finds the part of the base that shows in a private tree."""

    def __init__(self, parts: Parts) -> None:
        self._nodes = parts.nodes
        self._tree = parts.tree
        self._roots = parts.namespaces.roots
        self._placement = parts.placement

    def folder_below(self, ino: int) -> int | None:
        """The folder of the base below a folder of a private tree: the one at the same path, if there is one."""
        node = self._nodes.get(ino)
        if node.entry or ino == ROOT_INO or ino in self._roots:
            return None
        path = []
        while node.parent not in self._roots:
            path.append(node.target)
            node = self._nodes.get(node.parent)
        if node.parent == ROOT_INO:
            return None
        path.append(node.target)
        found: int | None = ROOT_INO
        for name in reversed(path):
            found = self._tree.find(found, name) if found is not None else None
            if found is None or not self._nodes.get(found).is_dir:
                return None
        return found

    def find(self, folder: int, below: int, name: bytes) -> int | None:
        """The inode that a name of the base shows in the private folder above, which has no such name itself."""
        found = self._tree.find(below, name)
        return found if found is not None and self._falls_through(folder, name, found) else None

    def _falls_through(self, folder: int, name: bytes, found: int) -> bool:
        kind = self._placement.kind_at(folder, name, is_dir=self._nodes.get(found).is_dir)
        if kind is Kind.GROUP:
            return not self._placement.group_at(folder, name)
        return kind in (Kind.TREE, Kind.STRUCTURE) and found < 1 << ALIAS_BITS

    def root_above(self, ino: int) -> int:
        """The root of the tree that a folder is in."""
        while ino not in self._roots:
            ino = self._nodes.get(ino).parent
        return ino

    def folders_above(self, ino: int) -> Iterator[int]:
        """The folders of private trees above a folder of the base. Each tree is searched: there is no list of them."""
        path: list[bytes] = []
        while ino != ROOT_INO:
            if ino in self._roots or not self._nodes.exists(ino):
                return
            node = self._nodes.get(ino)
            path.insert(0, node.target)
            ino = node.parent
        for root in self._roots - {ROOT_INO}:
            found: int | None = root
            for name in path:
                found = self._tree.find(found, name) if found is not None else None
            if found is not None:
                yield found

    def aliases(self, ino: int) -> Iterator[int]:
        """The numbers under which users see a folder of an entry of the base, whether or not they ever looked."""
        try:
            node = self._nodes.get(ino)
            if node.nlink and not (node.entry and self.root_above(ino) == ROOT_INO):
                return
        except FsError:  # it, or a folder above it, is gone
            pass
        if ino < 1 << ALIAS_BITS:
            for root in self._roots - {ROOT_INO}:
                yield first_alias(root, ino)

    def merge(self, folder: int, rows: list[Row], below: int, cookie: int, limit: int) -> list[Row]:
        """A part of a private folder's listing, together with the names that show from the base."""
        shown = [
            row
            for row in self._tree.listing(below, max(cookie, DOTDOT), limit)
            if self._tree.find(folder, row[1]) is None and self._falls_through(folder, row[1], row[2])
        ]
        if len(rows) >= limit:  # names after the last of these rows are in the next part
            shown = [row for row in shown if row[0] < rows[-1][0]]
        return list(itertools.islice(heapq.merge(rows, shown), limit))
