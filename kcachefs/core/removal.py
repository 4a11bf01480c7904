"""Removal: takes entries and folders out of the tree, whole for everybody who looks, in pieces for the lock.

What holds few names goes in one transaction. A folder with more loses its own name first, which takes everything in it
out of sight in one step, and is then cleared out a few names at a time, with the lock let go in between. A kill leaves
a folder without a name, which stands among the orphans; the next turn, or the next mount, goes on with it.

A group of files has no folder of its own. One of more than `PIECE` files, which no framework makes, goes in pieces
that can be seen.

Any thread; hold no lock.
"""

from __future__ import annotations

import contextlib
import itertools
import time

from kcachefs.core.kernel import Kernel
from kcachefs.core.lifetimes import Lifetimes
from kcachefs.core.nodes import Nodes
from kcachefs.core.tree import Tree
from kcachefs.core.walk import Member, Name, Walk
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.inode_numbers import GROUP_BASE
from kcachefs.store.records import name_of, names_prefix, unpack_name

PIECE = 64
"""Names removed in one transaction: requests wait for as long as that takes."""
BREATH_SECONDS = 0.001
"""Pause after each piece while requests come: both want the interpreter, and a piece takes it for longer."""


class Remover:
    """Removes much at once from the tree of one filesystem."""

    def __init__(
        self, store: Store, nodes: Nodes, tree: Tree, walk: Walk, lifetimes: Lifetimes, kernel: Kernel
    ) -> None:
        self._catalog = store.catalog
        self._nodes = nodes
        self._tree = tree
        self._walk = walk
        self._lifetimes = lifetimes
        self._kernel = kernel
        self._requests = 0

    def inodes(self, entry: int, names: list[Name]) -> set[int]:
        """Every inode of an entry with these names."""
        return {ino for ino, _, _ in self._walk.members(entry, names)}

    def at_once(self, entry: int, names: list[Name]) -> list[Member]:
        """What of an entry goes in one transaction: all of it, or its folder, or some of its files. The lock is held.

        `Tree.remove_all` takes it away. If that was a folder that is not empty, `clear_out` comes after it.
        """
        members = list(itertools.islice(self._walk.members(entry, names), PIECE + 1))
        if len(members) <= PIECE:
            return members
        return members[:PIECE] if entry >= GROUP_BASE else members[:1]

    def drop(self, txn: Transaction, ino: int, parent: int, name: bytes) -> None:
        """Take away a file, or a folder with everything in it. `clear_out` comes after the transaction."""
        members = list(itertools.islice(self._walk.below(ino), PIECE))
        self._tree.remove_all(txn, [(ino, parent, name), *(members if len(members) < PIECE else ())])

    def clear_out(self) -> list[int]:
        """Remove what is in folders that were taken away; returns these."""
        tops = self._lifetimes.filled_folders()
        for top in tops:
            folders = [top]
            while folders:
                self._clear_piece(folders)
                self.breathe()
            if not self._nodes.is_held(top):
                self._lifetimes.let_go(top)
        return tops

    def _clear_piece(self, folders: list[int]) -> None:
        """Remove a few names from the last of these folders, or the folder itself once it is empty."""
        folder = folders[-1]
        with contextlib.suppress(FsError), self._nodes.change() as txn:
            rows = self._catalog.scan(names_prefix(folder), limit=PIECE)
            if not rows:
                folders.pop()
                if folders:
                    node = self._nodes.get(folder)
                    self._tree.remove(txn, folders[-1], node.target, folder, node)
            for key, raw in rows:
                ino, name = unpack_name(raw)[0], name_of(key)[1]
                node = self._nodes.get(ino)
                if node.is_dir and node.size:
                    folders.append(ino)
                    break
                self._tree.remove(txn, folder, name, ino, node)
            return
        del folders[-1:]  # something of it went meanwhile, in another thread

    def breathe(self) -> None:
        """Let requests go first if any came."""
        before, self._requests = self._requests, self._kernel.request_count()
        if self._requests != before:
            time.sleep(BREATH_SECONDS)
