"""The end of an inode's life: what happens when its last name, lookup or handle goes. `nodes.py` says when it goes."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence

from kcachefs.core.files import Files
from kcachefs.core.nodes import GONE, LIVES, Nodes
from kcachefs.errors import FsError, RecordDamaged
from kcachefs.store.catalog import Catalog, Transaction
from kcachefs.store.records import Inode, name_key, name_of, number_of, orphan_key

TOGETHER_MAX = 16
"""The most orphans that go in one transaction: requests wait while it lasts."""
TURN_SECONDS = 0.0001
"""Pause after each piece of work, even if no request was seen: a thread that waits for the lock gets it only if we
leave the lock free for a moment."""


class Lifetimes:
    """Removes inodes that nobody uses any more, with their bytes."""

    def __init__(self, catalog: Catalog, nodes: Nodes, files: Files) -> None:
        self._catalog = catalog
        self._nodes = nodes
        self._files = files
        self.leaving = set(nodes.orphans)
        """Folders without a name of their own that still contain names, which nobody may see; at first, all orphans."""
        self._untold: deque[tuple[int, int, bytes]] = deque()
        """Removed names that the kernel may still know, each as inode, folder and name."""

    def drop_name(self, txn: Transaction, ino: int, node: Inode) -> None:
        """Take one name off an inode; with its last name it goes, or becomes an orphan while something uses it."""
        fate = self._nodes.drop_name(ino, node)
        if fate is GONE and not _is_filled(node):
            self._remove(txn, ino, node)
            return
        if fate is not LIVES:
            self._files.orphaned(txn, node)
            self._nodes.add_orphan(txn, ino)
            if _is_filled(node):
                txn.undo(lambda: self.leaving.discard(ino))
                self.leaving.add(ino)
        self._nodes.save(txn, ino, node)

    def keep_name(self, txn: Transaction, ino: int, parent: int, name: bytes) -> None:
        """Note a name that a chore took away, not the kernel: if the kernel knows the inode, we must report the loss.

        An orphan's record keeps the name as well, because the worker may die before it reports the loss. A file that is
        not an orphan may still have another name.
        """
        if ino in self._nodes.orphans:
            txn.put(orphan_key(ino), name_key(parent, name))
        elif not self._nodes.has_references(ino):
            return
        self._untold.append((ino, parent, name))

    def take_untold(self) -> Iterator[tuple[int, bytes]]:
        """Take the names that were noted since the last call, to report them to the kernel.

        Unreported, an inode that was open at an eviction would stay after it was closed: the kernel would keep it under
        its name, in a folder that no path leads to.
        """
        while self._untold:
            ino, parent, name = self._untold.popleft()
            if self._nodes.exists(ino):
                yield parent, name

    def recall_names(self) -> None:
        """Note again the names that the worker before this one noted."""
        for ino in self._nodes.orphans:
            with contextlib.suppress(RecordDamaged):
                if key := self._catalog.get(orphan_key(ino)):
                    self._untold.append((ino, number_of(key), name_of(key)[1]))

    def release(self, ino: int, count: int) -> bool:
        """The kernel drops `count` references; returns whether the inode is now an orphan that it no longer knows."""
        return self._nodes.release(ino, count) and ino in self._nodes.orphans

    def close_handle(self, ino: int) -> None:
        if self._nodes.close_handle(ino):
            self.remove_unused(ino)

    def remove_unused(self, *inos: int) -> None:
        """Something stopped using these inodes: remove those that have no name and no other user."""
        nodes = self._nodes
        if nodes.orphans.isdisjoint(inos):
            return
        with nodes.change() as txn:
            for ino in inos:
                if ino in nodes.orphans and not nodes.has_references(ino):
                    self._remove_orphan(txn, ino)

    def _remove_orphan(self, txn: Transaction, ino: int) -> None:
        try:
            node = self._nodes.get(ino)
        except FsError:  # its record was damaged and set aside: fsck finds what the inode held
            self._nodes.remove_orphan(txn, ino)
            self._nodes.delete(txn, ino)
            return
        if not _is_filled(node):
            self._nodes.remove_orphan(txn, ino)
            self._remove(txn, ino, node)

    def remove_all_unused(self, inos: Sequence[int], pause_seconds: float = 0.0) -> None:
        """Do the same for any number of inodes, with pauses. A failure does not stop it, unless a whole batch fails."""
        failed: Exception | None = None
        for start in range(0, len(inos), TOGETHER_MAX):
            some = inos[start : start + TOGETHER_MAX]
            try:
                self.remove_unused(*some)
            except Exception:  # removing them one by one shows which of them fails
                failures = list(self._remove_each(some))
                failed = failed or next(iter(failures), None)
                if len(failures) == len(some):
                    break  # a full disk, which refuses the others as well
            if pause_seconds:
                time.sleep(pause_seconds)
        if failed is not None:
            raise failed

    def _remove_each(self, inos: Sequence[int]) -> Iterator[Exception]:
        for ino in inos:
            try:
                self.remove_unused(ino)
            except Exception as error:
                yield error

    def clear_orphans(self) -> int:
        """Remove orphans that the kernel forgot without telling us, or while the disk was too full to remove them."""
        gone = [ino for ino in list(self._nodes.orphans) if not self._nodes.is_known(ino)]
        self.remove_all_unused(gone, TURN_SECONDS)
        return len(gone)

    def filled_folders(self) -> list[int]:
        """Folders that were removed with everything in them, but are not cleared out yet."""
        for ino in list(self.leaving):
            try:
                is_filled = ino in self._nodes.orphans and _is_filled(self._nodes.get(ino))
            except FsError:  # the folder went just now
                is_filled = False
            if not is_filled:
                self.leaving.discard(ino)
        return list(self.leaving)

    def _remove(self, txn: Transaction, ino: int, node: Inode) -> None:
        self._files.gone(txn, ino, node)
        self._nodes.delete(txn, ino)


def _is_filled(node: Inode) -> bool:
    """Whether an inode is a folder with names in it, which `removal.py` has to clear out first."""
    return node.is_dir and node.size > 0
