"""Membership: which entry a file belongs to, kept as its names come, move and go.

The entry is settled when a file gets its name, and follows the name. A file with several names stays with the entry of
the first one until that name goes.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator

from kcachefs.core.caller import Caller
from kcachefs.core.entry_counts import EntryCounts
from kcachefs.core.layouts import Kind, is_temporary
from kcachefs.core.namespaces import Namespaces
from kcachefs.core.nodes import Nodes
from kcachefs.core.placement import Placement
from kcachefs.core.temporaries import Temporaries
from kcachefs.core.uses import Uses
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.records import Inode, name_key, name_of, names_prefix, number_of, unpack_name

MOVED_MAX = 128
"""A folder with more names in and below it cannot move to another entry or namespace: every inode would change."""
SEEN_MAX = 1000
"""Names that are looked at, at most, when a folder with folders in it is moved to another folder."""
_FOLDER_COST = 10
"""Names that can be looked up one by one in the time that it takes to open a folder."""
_LOOKED_AT = 256
"""Names of a folder that are searched, while requests wait, for another name of a file."""


class Membership:
    """Which entry each file of one filesystem belongs to."""

    def __init__(
        self,
        store: Store,
        nodes: Nodes,
        namespaces: Namespaces,
        placement: Placement,
        counts: EntryCounts,
        temporaries: Temporaries,
        uses: Uses,
    ) -> None:
        self._catalog = store.catalog
        self._nodes = nodes
        self._namespaces = namespaces
        self._placement = placement
        self._counts = counts
        self._temporaries = temporaries
        self._uses = uses

    def assign(
        self, txn: Transaction, caller: Caller, ino: int, node: Inode, parent: int, folder: Inode, name: bytes
    ) -> None:
        """Say which entry a new inode belongs to, and note who writes it."""
        node.flags |= folder.flags & Inode.FRESH
        if node.is_file:
            self._uses.note_author(ino, caller)
        if folder.entry:
            node.entry = folder.entry
            if is_temporary(name):
                self._begin(txn, caller, ino, node)
            return
        is_dir = node.is_dir
        spot = self._placement.spot(parent, folder, name, is_dir)
        node.entry = self._placement.entry_at(txn, ino, parent, spot, is_dir, caller.uid)
        if spot.kind is Kind.TEMP:
            self._begin(txn, caller, ino, node)
        elif spot.kind is Kind.KEPT:
            node.flags |= Inode.PUBLISHED
        elif node.entry:
            self._uses.note_writer(node.entry, caller)

    def _begin(self, txn: Transaction, caller: Caller, ino: int, node: Inode) -> None:
        node.flags |= Inode.FRESH
        self._temporaries.add(txn, ino, caller.pid)

    def moved(self, txn: Transaction, caller: Caller, ino: int, node: Inode, new_parent: int, new_name: bytes) -> None:
        """A name moved, so its inode may belong to another entry now."""
        temporary, folder, is_dir = self._temporaries.inodes, self._nodes.get(new_parent), node.is_dir
        if ino in temporary and not is_temporary(new_name):
            self._temporaries.remove(txn, ino)
        if is_dir:
            self._namespaces.folder_moved()
        entry, kind = self._placement.entry_under(txn, ino, node, new_parent, new_name)
        self._mark(txn, caller, ino, node, kind)
        if kind is not Kind.TEMP and not folder.flags & Inode.FRESH:
            node.flags &= ~Inode.FRESH
        if entry and entry != folder.entry:
            self._uses.note_writer(entry, caller)
        if entry == node.entry:
            if entry == ino:
                if self._counts.changes_namespace(txn, entry, new_parent):
                    self._refuse_large(ino)
                self._counts.relocate(txn, entry, new_parent, new_name)
        elif is_dir:
            self._move_folder(txn, caller, ino, node, entry)
        else:
            self._counts.move(txn, ino, node, entry)

    def _mark(self, txn: Transaction, caller: Caller, ino: int, node: Inode, kind: Kind) -> None:
        """Mark an inode by its new name: only its owner may write to it, or it is reaped if its writer dies."""
        if kind is Kind.KEPT:
            node.flags |= Inode.PUBLISHED
        elif kind is Kind.TEMP and ino not in self._temporaries:
            self._temporaries.add(txn, ino, caller.pid)

    def _mark_kept(self, node: Inode, parent: int, name: bytes) -> None:
        """Mark a file that a framework reads: having no entry, it would pass for a lock, which all may write to."""
        folder = self._nodes.get(parent)
        if not folder.entry and self._placement.spot(parent, folder, name, node.is_dir).kind is Kind.KEPT:
            node.flags |= Inode.PUBLISHED

    def replaced(self, ino: int, node: Inode, other: int) -> None:
        """A file took the name of another one."""
        if node.entry and node.is_file:
            self._uses.note_replaced(node.entry, ino, other)

    def linked(self, txn: Transaction, ino: int, node: Inode, parent: int, name: bytes) -> None:
        """A file got one more name. It stays in its entry; a temporary file comes to the entry of the new name."""
        self._mark_kept(node, parent, name)
        if ino not in self._temporaries:
            node.parent = parent
        elif not node.entry:  # its folder stays that of the temporary name, which is the one to be reaped
            self._counts.move(txn, ino, node, self._placement.entry_under(txn, ino, node, parent, name)[0])

    def unlinked(self, txn: Transaction, ino: int, node: Inode, parent: int, name: bytes) -> None:
        """One of a file's several names goes. If that name was in the file's entry, another name decides the entry.

        Looks only where another name can be found quickly. If none is, the evictor looks when it finds the entry empty.
        """
        if (self._nodes.get(parent).entry or self._placement.group_at(parent, name, txn)) == node.entry:
            for key in self._names_near(node.parent, parent, name):
                raw = txn.get(key)
                if raw is not None and unpack_name(raw)[0] == ino:
                    self.rehome(txn, ino, node, number_of(key), name_of(key)[1])
                    return

    def rehome(self, txn: Transaction, ino: int, node: Inode, parent: int, name: bytes) -> None:
        """Move a file to the entry of this name, which is one of its own."""
        self._mark_kept(node, parent, name)
        node.parent = parent
        entry, _ = self._placement.entry_under(txn, ino, node, parent, name)
        if entry != node.entry:
            self._counts.move(txn, ino, node, entry)

    def is_unfinished(self, parent: int, name: bytes) -> bool:
        """Whether a name is a temporary one."""
        folder = self._nodes.get(parent)
        if folder.entry:
            return is_temporary(name)
        return self._placement.spot(parent, folder, name, False).kind is Kind.TEMP

    def is_lock(self, ino: int, node: Inode) -> bool:
        """Whether a file is in no entry because it is a lock, and not because it is unfinished or lost its name."""
        return not (node.entry or node.nlink == 0 or node.flags & Inode.PUBLISHED or ino in self._temporaries)

    def _names_near(self, newest: int, parent: int, name: bytes) -> Iterator[bytes]:
        """Where a file that had this name may have another: in the folder of its newest name, or beside the old one."""
        yield name_key(newest, name)
        for folder in (newest, parent):
            for key, _ in self._catalog.scan(names_prefix(folder), limit=_LOOKED_AT):
                yield key

    def refuse_deep(self, ino: int, height: int) -> None:
        """Refuse to move a folder whose folders are nested deeper than `height`, or are too many to look at."""
        seen, depth, folders = 0, 0, [ino]
        while folders := [folder for folder in folders if self._nodes.get(folder).nlink > 2]:
            depth += 1
            if depth > height:
                raise FsError(errno.ENAMETOOLONG, "folders would be nested too deeply")
            rows: list[tuple[bytes, bytes]] = []
            for folder in folders:
                rows += self._catalog.scan(names_prefix(folder), limit=SEEN_MAX + 1)
                seen += _FOLDER_COST
                if seen + len(rows) > SEEN_MAX:
                    raise FsError(errno.EXDEV, "a folder that holds too many others cannot be moved to another folder")
            seen += len(rows)
            folders = [child for child, kind in (unpack_name(raw) for _, raw in rows) if kind == stat.S_IFDIR >> 12]

    def _refuse_large(self, ino: int) -> None:
        """Refuse to move a folder to another entry if it holds too many names; then `mv` copies it."""
        count, folders = 0, [ino]
        while folders:
            rows = self._catalog.scan(names_prefix(folders.pop()), limit=MOVED_MAX + 1)
            count += len(rows)
            if count > MOVED_MAX:
                raise FsError(errno.EXDEV, f"a folder with more than {MOVED_MAX} names in it stays in its entry")
            folders += [child for child, kind in (unpack_name(raw) for _, raw in rows) if kind == stat.S_IFDIR >> 12]

    def _move_folder(self, txn: Transaction, caller: Caller, ino: int, node: Inode, entry: int) -> None:
        """Move a folder to another entry, with everything below it that belonged to the same entry.

        If its new place makes it a folder of entries, each child gets the entry of its own name.
        """
        old = node.entry
        if old:
            self._refuse_large(ino)
        self._counts.move(txn, ino, node, entry)
        below = [ino]
        while below:
            for key, raw in self._catalog.scan(names_prefix(below.pop())):
                child_ino = unpack_name(raw)[0]
                child = self._nodes.get(child_ino)
                if child.entry == old and old != 0:
                    new = entry
                    if not entry:
                        parent, name = number_of(key), name_of(key)[1]
                        new, kind = self._placement.entry_under(txn, child_ino, child, parent, name)
                        self._mark(txn, caller, child_ino, child, kind)
                        if new:
                            self._uses.note_writer(new, caller)
                    self._counts.move(txn, child_ino, child, new)
                    self._nodes.save(txn, child_ino, child)
                    if child.is_dir:
                        below.append(child_ino)
