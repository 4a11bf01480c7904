"""Namespaces: the first-level folders, one per framework, and the paths of everything below them.

Usually the root holds the namespaces. Under the `private` policy each user has a root of their own, in `.tenants`.
"""

from __future__ import annotations

import contextlib

from kcachefs.bounded import BoundedDict
from kcachefs.core.nodes import Nodes
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.entry_records import EntryRecord, NamespaceRecord
from kcachefs.store.entry_table import EntryTable, find_roots
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.records import TENANTS, Inode, names_prefix, unpack_name

_PATHS_MAX = 10_000
_FOLDER_TYPE = 4
Row = tuple[int, str, NamespaceRecord]
"""A namespace: its folder's inode, its name, its record."""


class Namespaces:
    """The namespaces of one filesystem, over all its roots."""

    def __init__(self, store: Store, nodes: Nodes, table: EntryTable) -> None:
        self._catalog = store.catalog
        self._nodes = nodes
        self._table = table
        self._paths: BoundedDict[int, tuple[int, tuple[bytes, ...]]] = BoundedDict(_PATHS_MAX)
        self.tenants, self.roots = find_roots(store.catalog)
        self.protected: set[int] = set()
        """Folders that can be neither removed nor moved: namespaces and roots."""

    def add_tenants_folder(self, ino: int) -> None:
        """Note the folder that holds the users' own roots."""
        self.tenants = ino
        self.protected |= {ino, *self.roots}

    def add_root(self, ino: int) -> None:
        """Note a user's own root."""
        self.roots.add(ino)
        self.protected.add(ino)

    def path(self, ino: int, node: Inode) -> tuple[int, tuple[bytes, ...]]:
        """A folder's namespace, and its path in that namespace."""
        found = self._paths.get(ino)
        if found is None:
            with self._catalog.lock:  # a path must not be kept once a folder in it has moved
                found = self._paths.get(ino) or self._find_path(ino, node)
        return found

    def _find_path(self, ino: int, node: Inode) -> tuple[int, tuple[bytes, ...]]:
        """Walk up to the namespace, then down again: recursion would fail for deeply nested folders."""
        found = None
        below: list[tuple[int, bytes]] = []
        while node.parent not in self.roots:
            below.append((ino, node.target))
            ino, node = node.parent, self._nodes.get(node.parent)
            if (found := self._paths.get(ino)) is not None:
                break
        found = self._paths[ino] = found or (ino, ())
        for ino, name in reversed(below):
            found = self._paths[ino] = (found[0], (*found[1], name))
        return found

    def folder_moved(self) -> None:
        """A folder has another name: paths may have changed."""
        self._paths.clear()

    def of(self, folder: int) -> int:
        """The namespace of a folder; for a root, the root itself."""
        return folder if folder in self.roots else self.path(folder, self._nodes.get(folder))[0]

    def path_of(self, record: EntryRecord) -> tuple[bytes, ...]:
        """An entry's full path: its namespace, the folders below that, its own name."""
        if record.folder in self.roots:
            return (*self._above(record.folder), record.name)
        namespace, path = self.path(record.folder, self._nodes.get(record.folder))
        return (*self._above_namespace(namespace), *path, record.name)

    def path_in(self, record: EntryRecord) -> tuple[bytes, ...]:
        """The same, relative to its namespace."""
        return self.path_of(record)[len(self._above_namespace(record.namespace)) :]

    def _above_namespace(self, namespace: int) -> tuple[bytes, ...]:
        if namespace in self.roots:
            return self._above(namespace)
        found = self._nodes.get(namespace)
        return (*self._above(found.parent), found.target)

    def _above(self, root: int) -> tuple[bytes, ...]:
        """The path of a root: nothing, or a user's folder."""
        return () if root == ROOT_INO else (TENANTS, self._nodes.get(root).target)

    def rows(self) -> list[Row]:
        """Every namespace of every root, and the roots, whose own files are in no namespace."""
        return [(number, label, self._table.counts(number)) for number, label in self._labels().items()]

    def rows_of(self, uid: int) -> list[Row]:
        """The same for what one user holds, at most a second old: anybody may ask as often as they like."""
        found = []
        for namespace, record in self._table.shares_of(uid):
            with contextlib.suppress(FsError):
                found.append((namespace, self.label_of(namespace), record))
        return found

    def label_of(self, namespace: int) -> str:
        """A namespace's name; empty for a root."""
        return "" if namespace in self.roots else self._nodes.get(namespace).target.decode(errors="replace")

    def _labels(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for root in sorted(self.roots):
            rows = (unpack_name(raw) for _, raw in self._catalog.scan(names_prefix(root)))
            for number in sorted({root, *(ino for ino, kind in rows if kind == _FOLDER_TYPE)}):
                with contextlib.suppress(FsError):
                    found[number] = self.label_of(number)
        return found
