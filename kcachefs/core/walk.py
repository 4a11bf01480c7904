"""Walks over the tree: what lies below a folder, and what belongs to an entry."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterable, Iterator

from kcachefs.core.nodes import Nodes
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.entry_table import EntryTable
from kcachefs.store.inode_numbers import GROUP_BASE
from kcachefs.store.records import Inode, name_key, name_of, names_prefix, unpack_name

_BATCH = 256
"""Inodes read at a time, while requests wait."""
_FOLDER_COST = 64
"""Names that can be read in the time that it takes to open a folder."""
Member = tuple[int, int, bytes]
"""An inode, its folder and its name there."""
Name = tuple[int, bytes]
"""A folder and a name in it."""


class Walk:
    """Finds everything under a folder or in an entry."""

    def __init__(self, store: Store, nodes: Nodes, table: EntryTable) -> None:
        self._catalog = store.catalog
        self._nodes = nodes
        self._table = table

    def below(self, ino: int) -> Iterator[Member]:
        """Everything in a folder, folders before what is in them."""
        if self._nodes.get(ino).is_dir:
            yield from self._below_folder(ino)

    def _below_folder(self, top: int) -> Iterator[Member]:
        folders = [top]
        while folders:
            folder = folders.pop()
            for child, name in self._names_in(folder):
                try:
                    is_dir = self._nodes.get(child).is_dir
                except FsError:
                    continue  # it is gone
                yield child, folder, name
                if is_dir:
                    folders.append(child)

    def _names_in(self, folder: int) -> Iterator[tuple[int, bytes]]:
        """A folder's inodes and names, a few at a time: a caller that needs only some does not wait for all."""
        start = b""
        while rows := self._catalog.scan(names_prefix(folder), start, _BATCH):
            found = [(unpack_name(raw)[0], name_of(key)[1]) for key, raw in rows]
            self._nodes.prefetch(child for child, _ in found)
            yield from found
            if len(rows) < _BATCH:
                return
            start = rows[-1][0] + b"\0"

    def members(self, entry: int, names: list[Name] | None = None) -> Iterator[Member]:
        """Everything that belongs to an entry, folders before what is in them. `names`: what `top_names` returned."""
        for parent, name in self.top_names(entry) if names is None else names:
            ino = self._find(parent, name)
            if ino is None or (ino != entry if entry < GROUP_BASE else not self._belongs(ino, entry)):
                continue  # it is gone, and another may have its name
            try:
                is_dir = self._nodes.get(ino).is_dir
            except FsError:
                continue  # it is gone
            yield ino, parent, name
            if is_dir:
                yield from self._below_folder(ino)

    def some_files(self, entry: int, limit: int) -> Iterator[tuple[int, Inode]]:
        """Files of an entry, found among the first `limit` names: for callers that cannot wait for all.

        Those in the topmost folders come first; opening a folder counts as much as many names.
        """
        record = self._table.get(entry) if entry >= GROUP_BASE else None
        folders = deque([record.folder if record is not None else entry] if record or entry < GROUP_BASE else [])
        while folders and limit > 0:
            limit -= _FOLDER_COST
            with contextlib.suppress(FsError):
                for ino, _ in itertools.islice(self._names_in(folders.popleft()), max(limit, 0)):
                    limit -= 1
                    node = self._nodes.get(ino)
                    if node.entry == entry and node.is_file:
                        yield ino, node
                    elif node.entry == entry and node.is_dir:
                        folders.append(ino)

    def top_names(self, entry: int) -> list[Name]:
        """The names by which an entry is reached: its folder's, or those of its files."""
        return self.top_names_of([entry])[entry]

    def top_names_of(self, entries: Iterable[int]) -> dict[int, list[Name]]:
        """The same for several: a folder with groups of files is searched once for all of them. Hold no lock."""
        found: dict[int, list[Name]] = {entry: [] for entry in entries}
        folders: set[int] = set()
        for entry, names in found.items():
            if entry < GROUP_BASE:
                with contextlib.suppress(FsError):
                    root = self._nodes.get(entry)
                    names.append((root.parent, root.target))
            elif (record := self._table.get(entry)) is not None:
                folders.add(record.folder)
        for folder in folders:
            for ino, name in self._names_in(folder):
                with contextlib.suppress(FsError):
                    entry = self._nodes.get(ino).entry
                    if entry >= GROUP_BASE and entry in found:
                        found[entry].append((folder, name))
        return found

    def files_at_top(self, entry: int) -> dict[bytes, int]:
        """The inodes at the top of an entry by their names: what is in its folder, or the files of its group."""
        if entry < GROUP_BASE:
            rows = self._catalog.scan(names_prefix(entry))
            return {name_of(key)[1]: unpack_name(raw)[0] for key, raw in rows}
        return {name: ino for parent, name in self.top_names(entry) if (ino := self._find(parent, name)) is not None}

    def names_of(self, inodes: Iterable[int]) -> dict[int, list[Name]]:
        """The names of inodes in the folders of their newest names; each folder is searched once. Hold no lock."""
        found: dict[int, list[Name]] = {}
        folders: set[int] = set()
        for ino in inodes:
            with contextlib.suppress(FsError):
                folders.add(self._nodes.get(ino).parent)
                found[ino] = []
        for folder in folders:
            for ino, name in self._names_in(folder):
                if ino in found:
                    found[ino].append((folder, name))
        return found

    def _find(self, parent: int, name: bytes) -> int | None:
        raw = self._catalog.get(name_key(parent, name))
        return unpack_name(raw)[0] if raw is not None else None

    def _belongs(self, ino: int, entry: int) -> bool:
        with contextlib.suppress(FsError):
            return self._nodes.get(ino).entry == entry
        return False
