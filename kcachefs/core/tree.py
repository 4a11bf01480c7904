"""Names: directories and what they hold. Every change is one transaction over the names and inodes that it touches.

The kernel checks modes and owners (default_permissions), and the policy whatever else it forbids. Only changes that
would break the tree are refused here: a directory removed with names in it, moved into itself, or replaced by a file.
"""

from __future__ import annotations

import errno
import stat
import time
from collections.abc import Callable

from kcachefs.core.caller import Caller
from kcachefs.core.entry_counts import EntryCounts, Standing
from kcachefs.core.layouts import ADOPTING
from kcachefs.core.lifetimes import Lifetimes
from kcachefs.core.membership import Membership
from kcachefs.core.namespaces import Namespaces
from kcachefs.core.nodes import Nodes, new_inode
from kcachefs.core.options import NAME_MAX
from kcachefs.core.replay import ReplayGuard
from kcachefs.core.temporaries import Temporaries
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.entry_table import EntryTable
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.records import (
    Content,
    Inode,
    inode_key,
    name_key,
    names_after,
    names_of,
    names_prefix,
    pack_name,
    unpack_name,
)

TARGET_MAX = 4095
LINK_MAX = 65000
DEPTH_MAX = 256
"""How deep folders may be nested, so that walking up or down the tree stays quick."""
ROOT_NAMES_MAX = 1024
"""Names in a root, each of which counts as a namespace in every report."""
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2

DOT, DOTDOT = 1, 2
"""Cookies of `.` and `..`; those of names are larger."""
COOKIE_END = 1 << 63
"""All cookies of names are smaller than this."""

Row = tuple[int, bytes, int, int]
"""A name in a listing: cookie, name, inode, type."""
AfterMove = Callable[[Transaction, int, int, bytes], None]
"""What else a rename does in its transaction, given the inode, its new folder and its new name."""


class Tree:
    """The directory tree of one filesystem."""

    def __init__(
        self,
        store: Store,
        nodes: Nodes,
        namespaces: Namespaces,
        membership: Membership,
        temporaries: Temporaries,
        lifetimes: Lifetimes,
        counts: EntryCounts,
        table: EntryTable,
        replay: ReplayGuard,
    ) -> None:
        self._catalog = store.catalog
        self._nodes = nodes
        self._protected = namespaces.protected
        self._roots = namespaces.roots
        self._membership = membership
        self._temporaries = temporaries
        self._temporary = temporaries.inodes
        self._lifetimes = lifetimes
        self._counts = counts
        self._table = table
        self._replay = replay

    # --- looking ------------------------------------------------------------------------------------------------------

    def find(self, parent: int, name: bytes) -> int | None:
        """The inode that a name leads to, or None."""
        if len(name) > NAME_MAX:
            raise FsError(errno.ENAMETOOLONG)
        raw = self._catalog.get(name_key(parent, name))
        if raw is None:
            return None
        return unpack_name(raw)[0]

    def listing(self, ino: int, cookie: int, limit: int) -> list[Row]:
        """At most `limit` names after `cookie`; 0 starts from the top."""
        node = self._directory(ino)
        rows: list[Row] = []
        if cookie >= COOKIE_END:
            return rows
        if cookie < DOT:
            rows.append((DOT, b".", ino, stat.S_IFDIR >> 12))
        if cookie < DOTDOT:
            rows.append((DOTDOT, b"..", node.parent, stat.S_IFDIR >> 12))
        found = self._catalog.scan(names_prefix(ino), names_after(ino, max(cookie, DOTDOT)), limit - len(rows))
        rows += names_of(found)
        return rows

    # --- making -------------------------------------------------------------------------------------------------------

    def make_root(self, uid: int, gid: int) -> None:
        """The root of a store that has never been mounted."""
        if self._catalog.get(inode_key(ROOT_INO)) is None:
            with self._nodes.change() as txn:
                root = new_inode(stat.S_IFDIR | 0o1777, uid, gid, ROOT_INO)
                root.nlink = 2
                self._nodes.save(txn, ROOT_INO, root)

    def create(
        self, caller: Caller, parent: int, name: bytes, mode: int, rdev: int = 0, target: bytes = b""
    ) -> tuple[int, Inode]:
        """Make an inode of any type, owned by the caller, under a new name. EEXIST if the name is taken."""
        check_name(name)
        if len(target) > TARGET_MAX:
            raise FsError(errno.ENAMETOOLONG)
        nodes = self._nodes
        key = name_key(parent, name)
        with nodes.change() as txn:
            folder = self._directory(parent)
            if folder.nlink == 0:
                raise FsError(errno.ENOENT)
            if txn.get(key) is not None:
                raise FsError(errno.EEXIST)
            if folder.size >= ROOT_NAMES_MAX:
                self._refuse_names(parent)
            is_dir, gid = stat.S_ISDIR(mode), caller.gid
            if is_dir:
                self._refuse_nesting(parent)
            ino = nodes.allocate(txn)
            if folder.mode & stat.S_ISGID:
                gid = folder.gid
                if is_dir:
                    mode |= stat.S_ISGID
            node = new_inode(mode, caller.uid, gid, parent)
            node.rdev = rdev
            self._membership.assign(txn, caller, ino, node, parent, folder, name)
            if name.startswith(ADOPTING):
                node.flags |= Inode.ADOPTED
            if is_dir:
                node.nlink = 2
                node.target = name
                folder.nlink += 1
            elif stat.S_ISLNK(mode):
                node.target, node.size = target, len(target)
            nodes.save(txn, ino, node)
            self._touch(txn, parent, folder, node.ctime, +1)
            txn.put(key, pack_name(ino, mode))
            self._replay.note(txn, caller, ino)
        return ino, node

    def link(self, caller: Caller, ino: int, parent: int, name: bytes) -> Inode:
        check_name(name)
        key = name_key(parent, name)
        with self._nodes.change() as txn:
            node, folder = self._nodes.get(ino), self._directory(parent)
            if node.is_dir:
                raise FsError(errno.EPERM)
            if node.nlink == 0 or folder.nlink == 0:
                raise FsError(errno.ENOENT)
            if node.nlink >= LINK_MAX:
                raise FsError(errno.EMLINK)
            if txn.get(key) is not None:
                raise FsError(errno.EEXIST)
            self._refuse_names(parent)
            node.nlink += 1
            node.ctime = time.time_ns()
            self._membership.linked(txn, ino, node, parent, name)
            self._nodes.save(txn, ino, node)
            self._touch(txn, parent, folder, node.ctime, +1)
            txn.put(key, pack_name(ino, node.mode))
            self._replay.note(txn, caller, ino)
        return node

    # --- removing -----------------------------------------------------------------------------------------------------

    def unlink(self, caller: Caller, parent: int, name: bytes) -> int:
        """Remove a name that is not a directory's; returns the inode that it led to."""
        with self._nodes.change() as txn:
            ino, node = self._child(txn, parent, name)
            if node.is_dir:
                raise FsError(errno.EISDIR)
            self.remove(txn, parent, name, ino, node)
            self._replay.note(txn, caller)
        return ino

    def rmdir(self, caller: Caller, parent: int, name: bytes) -> int:
        with self._nodes.change() as txn:
            ino, node = self._child(txn, parent, name)
            if not node.is_dir:
                raise FsError(errno.ENOTDIR)
            if node.size > 0 or ino in self._protected:
                raise FsError(errno.ENOTEMPTY)
            self.remove(txn, parent, name, ino, node)
            self._replay.note(txn, caller)
        return ino

    def remove(self, txn: Transaction, parent: int, name: bytes, ino: int, node: Inode) -> None:
        """Remove a name, and with its last name the inode; a folder goes with everything in it (see `removal.py`)."""
        now = time.time_ns()
        folder = self._nodes.get(parent)
        if node.is_dir and folder.nlink:
            folder.nlink -= 1
        node.ctime = now
        txn.delete(name_key(parent, name))
        if ino in self._temporary and (node.nlink <= 1 or node.is_dir or self._membership.is_unfinished(parent, name)):
            self._temporaries.remove(txn, ino)
        if node.nlink > 1 and not node.is_dir:
            self._membership.unlinked(txn, ino, node, parent, name)
        self._touch(txn, parent, folder, now, -1)
        self._lifetimes.drop_name(txn, ino, node)

    def remove_all(self, txn: Transaction, members: list[tuple[int, int, bytes]]) -> None:
        """Remove the members that a walk found, as (inode, folder, name): a folder goes after everything in it."""
        nodes = {ino: self._nodes.get(ino) for ino, _, _ in members}
        # Together: one by one, each would change the counts of its entry again.
        going = [(ino, one) for ino, one in nodes.items() if one.content == Content.OBJECT and one.nlink == 1]
        self._counts.uncount_all(txn, going)
        for ino, parent, name in reversed(members):
            self.remove(txn, parent, name, ino, nodes[ino])
            self._lifetimes.keep_name(txn, ino, parent, name)

    # --- moving -------------------------------------------------------------------------------------------------------

    def rename(
        self,
        caller: Caller,
        parent: int,
        name: bytes,
        new_parent: int,
        new_name: bytes,
        flags: int = 0,
        after: AfterMove | None = None,
    ) -> None:
        if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE) or flags == RENAME_NOREPLACE | RENAME_EXCHANGE:
            raise FsError(errno.EINVAL)
        check_name(new_name)
        with self._nodes.change() as txn:
            self._replay.note(txn, caller)
            ino, node = self._child(txn, parent, name)
            raw = txn.get(name_key(new_parent, new_name))
            if self._directory(new_parent).nlink == 0:
                raise FsError(errno.ENOENT)
            if node.is_dir:
                self._refuse_nesting(new_parent, ino)
            if raw is None:
                if flags & RENAME_EXCHANGE:
                    raise FsError(errno.ENOENT)
                if parent != new_parent:
                    self._refuse_names(new_parent)
            else:
                if flags & RENAME_NOREPLACE:
                    raise FsError(errno.EEXIST)
                other = unpack_name(raw)[0]
                if other == ino:
                    return
                if flags & RENAME_EXCHANGE:
                    self._exchange(txn, caller, (parent, name, ino), (new_parent, new_name, other))
                    if after is not None:
                        after(txn, ino, new_parent, new_name)
                        after(txn, other, parent, name)
                    return
            if ino in self._protected:
                raise FsError(errno.EBUSY, "a namespace stays where it is")
            lost = self._make_way(txn, node, new_parent, new_name, other) if raw is not None else None
            self._move(txn, caller, ino, node, parent, name, new_parent, new_name)
            if after is not None:
                after(txn, ino, new_parent, new_name)
            if raw is not None:
                self._membership.replaced(ino, node, other)
            if lost is not None:
                self._counts.inherit(txn, ino, node, lost)

    def _move(
        self,
        txn: Transaction,
        caller: Caller,
        ino: int,
        node: Inode,
        parent: int,
        name: bytes,
        new_parent: int,
        new_name: bytes,
    ) -> None:
        now = time.time_ns()
        nodes = self._nodes
        old_folder, new_folder = nodes.get(parent), nodes.get(new_parent)
        txn.delete(name_key(parent, name))
        txn.put(name_key(new_parent, new_name), pack_name(ino, node.mode))
        if parent != new_parent:
            if node.is_dir:
                old_folder.nlink -= 1
                new_folder.nlink += 1
            node.parent = new_parent
            self._touch(txn, parent, old_folder, now, -1)
            self._touch(txn, new_parent, new_folder, now, +1)
        else:
            self._touch(txn, parent, old_folder, now, 0)
        if node.is_dir:
            node.target = new_name
        self._membership.moved(txn, caller, ino, node, new_parent, new_name)
        node.ctime = now
        nodes.save(txn, ino, node)

    def _make_way(self, txn: Transaction, node: Inode, new_parent: int, new_name: bytes, other: int) -> Standing | None:
        """Remove the inode that a rename replaces. Returns what its entry had gained, if the entry went with it."""
        replaced = self._nodes.get(other)
        if node.is_dir and not replaced.is_dir:
            raise FsError(errno.ENOTDIR)
        if replaced.is_dir and not node.is_dir:
            raise FsError(errno.EISDIR)
        if replaced.is_dir and (replaced.size > 0 or other in self._protected):
            raise FsError(errno.ENOTEMPTY)
        standing = self._counts.standing(txn, replaced.entry)
        self.remove(txn, new_parent, new_name, other, replaced)
        return standing if standing is not None and self._table.get(standing.entry, txn) is None else None

    def _exchange(
        self, txn: Transaction, caller: Caller, one: tuple[int, bytes, int], two: tuple[int, bytes, int]
    ) -> None:
        now = time.time_ns()
        for (parent, _, ino), (new_parent, new_name, _) in ((one, two), (two, one)):
            if ino in self._protected:
                raise FsError(errno.EBUSY, "a namespace stays where it is")
            node = self._nodes.get(ino)
            if node.is_dir:
                self._refuse_nesting(new_parent, ino)
                if parent != new_parent:
                    self._nodes.get(parent).nlink -= 1
                    self._nodes.get(new_parent).nlink += 1
            node.parent = new_parent
            node.ctime = now
            if node.is_dir:
                node.target = new_name
            self._membership.moved(txn, caller, ino, node, new_parent, new_name)
            txn.put(name_key(new_parent, new_name), pack_name(ino, node.mode))
            self._nodes.save(txn, ino, node)
        for parent in {one[0], two[0]}:
            self._touch(txn, parent, self._nodes.get(parent), now, 0)

    def _refuse_nesting(self, parent: int, moved: int = 0) -> None:
        """Refuse a folder below `parent` that would be nested too deeply, or `moved` into itself."""
        get, above, depth = self._nodes.get, parent, 1
        while above != ROOT_INO:
            if above == moved:
                raise FsError(errno.EINVAL)
            if depth >= DEPTH_MAX:
                raise FsError(errno.ENAMETOOLONG, f"folders are nested {DEPTH_MAX} deep at most")
            above = get(above).parent
            depth += 1
        if moved and get(moved).parent != parent:
            self._membership.refuse_deep(moved, DEPTH_MAX - depth)

    def _refuse_names(self, parent: int) -> None:
        if parent in self._roots and self._nodes.get(parent).size >= ROOT_NAMES_MAX:
            raise FsError(errno.ENOSPC, f"a root holds {ROOT_NAMES_MAX} names at most")

    # --- inside -------------------------------------------------------------------------------------------------------

    def _directory(self, ino: int) -> Inode:
        node = self._nodes.get(ino)
        if not stat.S_ISDIR(node.mode):
            raise FsError(errno.ENOTDIR)
        return node

    def _child(self, txn: Transaction, parent: int, name: bytes) -> tuple[int, Inode]:
        if name in (b".", b".."):
            raise FsError(errno.EINVAL if name == b"." else errno.ENOTEMPTY)
        if len(name) > NAME_MAX:
            raise FsError(errno.ENAMETOOLONG)
        raw = txn.get(name_key(parent, name))
        if raw is None:
            raise FsError(errno.ENOENT)
        ino = unpack_name(raw)[0]
        return ino, self._nodes.get(ino)

    def _touch(self, txn: Transaction, ino: int, folder: Inode, now: int, names: int) -> None:
        folder.size += names
        folder.mtime = folder.ctime = now
        self._nodes.save(txn, ino, folder)


def check_name(name: bytes) -> None:
    """Refuse what cannot be a name."""
    if not name or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise FsError(errno.EINVAL)
    if len(name) > NAME_MAX:
        raise FsError(errno.ENAMETOOLONG)
