"""Files that cannot be trusted: all their names are removed, so that the next process that needs one makes it again."""

from __future__ import annotations

from collections.abc import Iterator

from kcachefs.core.nodes import Nodes
from kcachefs.core.tree import Tree
from kcachefs.store import Store
from kcachefs.store.records import name_of, names_prefix, number_of, unpack_name


class Distrust:
    """Removes the names of damaged and doubtful files. Any thread."""

    def __init__(self, store: Store, nodes: Nodes, tree: Tree) -> None:
        self._catalog = store.catalog
        self._nodes = nodes
        self._tree = tree

    def drop_files(self, doomed: set[int]) -> Iterator[tuple[int, bytes]]:
        """Remove every name of files that cannot be trusted; yields each folder and name after removing it."""
        parents = {self._nodes.get(ino).parent for ino in doomed}
        for parent in parents:
            yield from self._drop_names(doomed, self._catalog.scan(names_prefix(parent)))
        if any(self._nodes.exists(ino) and ino not in self._nodes.orphans for ino in doomed):
            # Hard links elsewhere: search all names.
            self._catalog.fold()
            every = [(key, raw) for key, raw in self._catalog.walk(b"n") if raw is not None]
            yield from self._drop_names(doomed, every)

    def _drop_names(self, doomed: set[int], rows: list[tuple[bytes, bytes]]) -> Iterator[tuple[int, bytes]]:
        for key, raw in rows:
            ino = unpack_name(raw)[0]
            if ino in doomed:
                parent, name = number_of(key), name_of(key)[1]
                with self._nodes.change() as txn:
                    if txn.get(key) != raw:
                        continue  # the name is gone, or is another file's now
                    self._tree.remove_all(txn, [(ino, parent, name)])
                yield parent, name
