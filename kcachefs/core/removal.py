"""Removal: takes entries and folders out of the tree. Each vanishes in one step, but the lock is never held for long.

An entry or folder with few names goes in one transaction. A folder with more loses its own name first, which takes
everything in it out of sight in one step, and is then cleared out a few names at a time, with the lock released in
between. The kernel may still know the folder for a moment: `Lifetimes.leaving` lists the folders in which no name is
found any more. A kill leaves a folder without a name, which is an orphan; the next worker finishes clearing it.

A group of files has no folder of its own. A group of more than `PIECE` files, such as the bytecode of a large folder,
goes in visible pieces.

Any thread; hold no lock.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import math
import time
from array import array
from collections.abc import Iterable

from kcachefs.core.kernel import Kernel
from kcachefs.core.lifetimes import TURN_SECONDS, Lifetimes
from kcachefs.core.membership import Membership
from kcachefs.core.nodes import Nodes
from kcachefs.core.tree import Tree
from kcachefs.core.walk import Member, Name, Walk
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.entry_table import EntryTable
from kcachefs.store.inode_numbers import GROUP_BASE
from kcachefs.store.records import Inode, name_of, names_prefix, number_of, unpack_name

PIECE = 32
"""Names removed in one transaction: requests wait for as long as that takes."""
BREATH_SECONDS = 0.001
"""Pause after each piece while requests come: both need the interpreter, and a piece holds it for longer."""
BREATH_TIMES, BREATH_MAX_SECONDS = 4, 0.02
"""If nobody waits for the room that a piece makes, the pause is this many times as long as the piece took, up to a
bound: requests keep most of the interpreter."""
COMING_SECONDS = 0.05
"""How long after a request more are expected."""


class Pace(enum.Enum):
    """How much time an eviction leaves to requests while they come: both need the interpreter."""

    AT_ONCE = enum.auto()
    """No time: somebody waits for the room that the eviction makes."""
    BRISK = enum.auto()
    """A moment after each entry."""
    GENTLE = enum.auto()
    """Most of the time."""


class Remover:
    """Removes much at once from the tree of one filesystem."""

    def __init__(
        self,
        store: Store,
        nodes: Nodes,
        table: EntryTable,
        membership: Membership,
        lifetimes: Lifetimes,
        tree: Tree,
        walk: Walk,
        kernel: Kernel,
    ) -> None:
        self._store = store
        self._table = table
        self._membership = membership
        self._catalog = store.catalog
        self._nodes = nodes
        self._tree = tree
        self._walk = walk
        self._lifetimes = lifetimes
        self._kernel = kernel
        self._requests = 0
        self._request_seen = -math.inf

    def inodes(self, entry: int, names: list[Name]) -> array[int]:
        """Every inode of an entry with these names, in little memory."""
        return array("Q", (ino for ino, _, _ in self._walk.members(entry, names)))

    def known_inodes(self, entry: int, names: list[Name]) -> set[int] | None:
        """The inodes of an entry that the kernel knows; None if nothing is left of the entry."""
        inodes = self.inodes(entry, names)
        return {ino for ino in inodes if self._nodes.is_known(ino)} if inodes else None

    def at_once(self, entry: int, names: list[Name]) -> list[Member]:
        """The part of an entry that goes in one transaction: all of it, its folder, or some files. The lock is held.

        The caller passes it to `Tree.remove_all`, and then calls `clear_out` if it is a folder that is not empty.
        """
        members = list(itertools.islice(self._walk.members(entry, names), PIECE + 1))
        if len(members) <= PIECE:
            return members
        return members[:PIECE] if entry >= GROUP_BASE else members[:1]

    def drop(self, txn: Transaction, ino: int, parent: int, name: bytes) -> None:
        """Remove a file, or a folder with everything in it. The caller calls `clear_out` after the transaction."""
        members = list(itertools.islice(self._walk.below(ino), PIECE))
        self._tree.remove_all(txn, [(ino, parent, name), *(members if len(members) < PIECE else ())])

    def mark_doomed(self, members: Iterable[Member]) -> None:
        """Mark members: those in use go on nobody's account when `Tree.remove_all` removes them. The lock is held."""
        for ino, _, _ in members:
            doom(self._nodes.get(ino))

    def take_rest(self, entry: int, names: list[Name], inodes: Iterable[int], *, doom: bool = False) -> None:
        """Remove the rest of an entry that did not fit into one transaction, and let go of inodes that nobody uses.

        A worker that took over has to ask the kernel which inodes those are. Until they go, their bytes count as used,
        and other entries would be evicted in their place.
        """
        if entry >= GROUP_BASE:
            for start in range(PIECE, len(names), PIECE):
                with self._nodes.change() as txn:
                    members = self.at_once(entry, names[start : start + PIECE])
                    if doom:
                        self.mark_doomed(members)
                    self._tree.remove_all(txn, members)
                self.breathe()
        elif entry in self._nodes.orphans:
            self.clear_out()
        unused = {ino for ino in inodes if ino in self._nodes.orphans and not self._nodes.is_known(ino)}
        self._lifetimes.remove_all_unused(list(unused))

    def clear_out(self) -> None:
        """Clear the folders that lost their names, just now or by a worker that died while clearing them.

        A folder that fails does not stop the others.
        """
        failed: Exception | None = None
        for top in self._lifetimes.filled_folders():
            try:
                self._clear_folder(top)
            except Exception as error:
                failed = failed or error
        self._lifetimes.filled_folders()
        if failed is not None:
            raise failed

    def _clear_folder(self, top: int) -> None:
        folders = [(top, b"")]
        while folders:
            self._clear_piece(folders)
            self.breathe()
        if not self._nodes.is_known(top):
            self._lifetimes.remove_unused(top)
        if self._table.get(top) is not None:
            self.strike({top})

    def _clear_piece(self, folders: list[tuple[int, bytes]]) -> None:
        """Remove a few names from the last of these folders, or the folder itself once it is empty.

        With each folder comes the key up to which it was cleared, so that removed names that are not folded yet are not
        scanned again.
        """
        folder, start = folders[-1]
        with contextlib.suppress(FsError), self._nodes.change() as txn:
            rows = self._catalog.scan(names_prefix(folder), start, PIECE)
            if not rows and start:
                rows = self._catalog.scan(names_prefix(folder), limit=PIECE)  # somebody has added to it
            if rows:
                folders[-1] = folder, rows[-1][0] + b"\0"
            else:
                folders.pop()
                if folders:
                    node = self._nodes.get(folder)
                    self._tree.remove(txn, folders[-1][0], node.target, folder, node)
                    self._lifetimes.keep_name(txn, folder, folders[-1][0], node.target)
            is_doomed = bool(rows) and self._nodes.get(folder).flags & Inode.DOOMED
            for key, raw in rows:
                ino, name = unpack_name(raw)[0], name_of(key)[1]
                try:
                    node = self._nodes.get(ino)
                except FsError:
                    self._drop_damaged(txn, folder, key, ino)
                    continue
                if is_doomed:
                    doom(node)
                if node.is_dir and node.size:
                    folders[-1:] = [(folder, key), (ino, b"")]
                    self._nodes.save(txn, ino, node)
                    break
                self._tree.remove(txn, folder, name, ino, node)
                self._lifetimes.keep_name(txn, ino, folder, name)
            return
        del folders[-1:]  # another thread removed something in it

    def _drop_damaged(self, txn: Transaction, folder: int, key: bytes, ino: int) -> None:
        """Remove the name of an inode whose record was damaged and set aside; fsck finds the bytes that it held."""
        node = self._nodes.get(folder)
        node.size -= 1
        self._nodes.save(txn, folder, node)
        txn.delete(key)
        self._nodes.delete(txn, ino)

    def breathe_at(self, pace: Pace, worked_seconds: float) -> None:
        """Let requests go first, after an entry whose removal took this long."""
        if pace is not Pace.AT_ONCE:
            self.breathe(worked_seconds if pace is Pace.GENTLE else 0.0)

    def breathe(self, worked_seconds: float = 0.0) -> None:
        """Let requests go first, for longer after a piece that took long, if the caller says how long it took."""
        now, count = time.monotonic(), self._kernel.request_count()
        if count != self._requests:
            self._requests, self._request_seen = count, now
        breath = min(max(BREATH_SECONDS, BREATH_TIMES * worked_seconds), BREATH_MAX_SECONDS)
        time.sleep(breath if now - self._request_seen < COMING_SECONDS else TURN_SECONDS)

    # --- entries that have no name left -------------------------------------------------------------------------------

    def strike(self, empty: set[int]) -> None:
        """Strike entries that have no name left.

        Files still counted for them have a name elsewhere that was not found quickly when the name in the entry went.
        They move to the entry of that name.
        """
        if not empty:
            return
        self._store.fold()
        rows = ((number_of(key), raw) for key, raw in self._catalog.walk(b"i"))
        strays = {ino for ino, raw in rows if raw is not None and Inode.unpack(raw).entry in empty}
        for key, raw in self._catalog.walk(b"n") if strays else ():
            if raw is not None and (ino := unpack_name(raw)[0]) in strays:
                self._rehome(ino, key, raw, empty)
        for entry in empty:
            with self._nodes.change() as txn:
                if not any(self._walk.members(entry)):
                    self._table.strike(txn, entry)

    def _rehome(self, ino: int, key: bytes, raw: bytes, empty: set[int]) -> None:
        with contextlib.suppress(FsError), self._nodes.change() as txn:
            if txn.get(key) == raw and (node := self._nodes.get(ino)).entry in empty and not node.is_dir:
                self._membership.rehome(txn, ino, node, number_of(key), name_of(key)[1])
                self._nodes.save(txn, ino, node)


def doom(node: Inode) -> None:
    """Mark an inode that is about to lose its last name. A file with a name elsewhere stays on its owner's account."""
    if node.is_dir or node.nlink == 1:
        node.flags |= Inode.DOOMED
