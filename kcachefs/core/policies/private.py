"""Private: each user has a tree of namespaces of their own, over one store in which equal bytes are kept once.

How. The kernel keeps one cache of names for all users, so one name cannot lead two users to two folders without being
asked for each time; and when a name turns out to lead elsewhere, the kernel drops all that it has cached below it, so
users who take turns would lose their names and pages at every turn. A symbolic link can: the kernel asks us to read it
for each walk, on behalf of whoever walks, and keeps what lies behind it. So a namespace in the root is a link, the same
for all, and `readlink` answers with the caller's own folder, `.tenants/<uid>/<namespace>`. It costs one READLINK per
path that is walked: measured, 24 µs instead of 7 for open, read and close of a file that the kernel has cached, and 17
instead of 3 for a stat. The folders are real ones, belong to their user, and have mode 0700, which the kernel enforces
for everything below them. Other users' folders are not found by name either. The root itself cannot be changed.

The base. With `--base` the shared tree of the same store, which is what the mount held under another policy, lies below
each private one, to be read. Its writers (the mount's owner if none are named) have the links lead to it, as
`.shared/<namespace>`, and write there. For everybody else:

- An entry comes whole from their own tree or whole from the base, never mixed: a group of files from the base is
  hidden as soon as their own tree holds one file of that group.
- A folder that only holds entries is made in their own tree when they come to it; the folder of an entry of the base is
  shown under a number of its own per user, for the kernel allows a folder one place only. Files keep their number, so
  all users share the pages of a file of the base.
- Locks and temporary files are never taken from the base.
- What is written goes to their own tree, and may shadow what is below; changing or removing a name of the base is
  refused with EROFS.
"""

from __future__ import annotations

import copy
import errno
import heapq
import itertools
import os
import stat
from collections.abc import Iterator
from typing import Unpack

from kcachefs.core.entries import HEARTBEAT_SECONDS
from kcachefs.core.filesystem import BLOCK, FOREVER_SECONDS, UNKNOWN, AttributeChanges, Filesystem, FsOptions, Statfs
from kcachefs.core.layouts import NAMESPACES, Kind
from kcachefs.core.nodes import new_inode
from kcachefs.core.report import FOLDER, FOLDER_INO, VIRTUAL_BASE
from kcachefs.core.tree import DOT, DOTDOT, NAME_MAX
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.records import ROOT_INO, TENANTS, Inode

SHARED = b".shared"
SHARED_INO = VIRTUAL_BASE | 1 << 58
LINK_BASE = VIRTUAL_BASE | 1 << 59
ALIAS_BASE = 1 << 63
"""A folder of the base as one user sees it: this, the number of the user's root, the folder's own."""
_ALIAS_BITS = 32
_FILES = 1 << 32
_Row = tuple[int, bytes, int, int]


class Private(Filesystem):
    """What `--policy private` serves."""

    links_differ = True

    def __init__(self, store: Store, options: FsOptions) -> None:
        super().__init__(store, options)
        self._links = {LINK_BASE + index: name.encode() for index, name in enumerate(NAMESPACES)}
        self._link_of = {name: ino for ino, name in self._links.items()}
        self._roots: dict[int, int] = {}
        """Each user's root, as far as they were here."""
        self._base = self.judges_opens = options.sharing.base
        self._tenants = self.tree.find(ROOT_INO, TENANTS) or self._make(ROOT_INO, TENANTS, 0o711, options.uid, 0)
        self.entries.tenants = self._tenants
        self.tree.protected |= {self._tenants, *self.entries.roots}

    # --- who ----------------------------------------------------------------------------------------------------------

    def _is_writer(self) -> bool:
        """Whether the caller works in the base itself."""
        sharing = self.options.sharing
        if not self._base:
            return False
        if not (sharing.writer_uids or sharing.writer_gids):
            return self.uid == self.options.uid
        return sharing.is_writer(self.uid, self.gid, self.pid)

    def _root_of(self, uid: int, gid: int) -> int:
        """A user's own root, made at their first visit."""
        root = self._roots.get(uid)
        if root is None:
            name = b"%d" % uid
            root = self.tree.find(self._tenants, name) or self._make(self._tenants, name, 0o700, uid, gid)
            self.entries.roots.add(root)
            self.tree.protected.add(root)
            self._roots[uid] = root
        return root

    def _namespace_of(self, uid: int, gid: int, name: bytes) -> int:
        root = self._root_of(uid, gid)
        found = self.tree.find(root, name) or self._make(root, name, 0o700, uid, gid)
        self.tree.protected.add(found)
        return found

    def _make(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> int:
        """A folder that is needed on the way. It is not what the request at hand asked for, and not its answer."""
        request, self.recall.request = self.recall.request, 0
        try:
            return self.tree.create(parent, name, stat.S_IFDIR | mode, uid, gid)[0]
        finally:
            self.recall.request = request

    # --- looking ------------------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> int | None:
        if len(name) > NAME_MAX:
            raise FsError(errno.ENAMETOOLONG)
        if parent == ROOT_INO:
            return self._lookup_in_root(name)
        if parent == self._tenants:
            return self._lookup_tenant(name)
        if parent == SHARED_INO:
            return super().lookup(ROOT_INO, name) if name not in (FOLDER, TENANTS) else None
        if parent >= ALIAS_BASE:
            return self._lookup_in_alias(parent, name)
        if parent >= VIRTUAL_BASE:
            return super().lookup(parent, name)
        found = super().lookup(parent, name)
        return self._lookup_below(parent, name) if found is None and self._base else found

    def _lookup_in_root(self, name: bytes) -> int | None:
        if name == FOLDER:
            return FOLDER_INO
        if name == SHARED and self._base:
            return SHARED_INO
        if name in self._link_of:
            return self._link_of[name]
        if name == TENANTS:
            return self.found(self._tenants)
        return self.found(ROOT_INO) if name in (b".", b"..") else None

    def _lookup_tenant(self, name: bytes) -> int | None:
        if name in (b".", b".."):
            return super().lookup(self._tenants, name)
        found = super().lookup(self._tenants, name) if self.uid == 0 or name == b"%d" % self.uid else None
        if found is None:
            raise FsError(errno.ENOENT)  # not as a miss, which the kernel would remember for all, and for too long
        return found

    def readlink(self, ino: int) -> bytes:
        name = self._links.get(ino)
        if name is None:
            return super().readlink(ino)
        if self.uid == UNKNOWN:
            raise FsError(errno.EACCES, "the kernel does not say who asks")
        if self._is_writer():
            return SHARED + b"/" + name
        self._namespace_of(self.uid, self.gid, name)
        return b"%s/%d/%s" % (TENANTS, self.uid, name)

    def attributes(self, ino: int) -> Inode:
        if ino in self._links:
            node = new_inode(stat.S_IFLNK | 0o777, self.options.uid, self.options.gid, ROOT_INO)
            node.atime = node.mtime = node.ctime = self.nodes.get(ROOT_INO).ctime
            node.size = len(self._links[ino])
            return node
        if ino in (ROOT_INO, SHARED_INO):
            seen = copy.copy(super().attributes(ROOT_INO))
            seen.mode = stat.S_IFDIR | 0o755
            return seen
        if ino >= ALIAS_BASE:
            seen = copy.copy(super().attributes(_aliased(ino)))
            seen.mode &= ~0o222
            return seen
        return super().attributes(ino)

    def name_seconds(self, ino: int, node: Inode) -> int:
        if ino >= ALIAS_BASE:
            return HEARTBEAT_SECONDS  # evicted from the base, it is gone for every user
        return FOREVER_SECONDS if ino in self._links or ino == SHARED_INO else super().name_seconds(ino, node)

    def forget(self, ino: int, count: int) -> None:
        if ino < SHARED_INO:
            super().forget(ino, count)
        else:
            self.nodes.lookups.pop(ino, None)

    def lists_afresh(self, ino: int) -> bool:
        return self._base  # a listing may change with the base, which is not the folder that is listed

    def listing(self, ino: int, cookie: int, limit: int) -> list[_Row]:
        if ino == ROOT_INO:
            return self._list_root(cookie)
        if ino == SHARED_INO:
            return [row for row in self.tree.listing(ROOT_INO, cookie, limit) if row[1] != TENANTS]
        if ino >= ALIAS_BASE:
            rows = self.tree.listing(_aliased(ino), cookie, limit)
            return [(at, name, child if kind != 4 else _alias(ino, child), kind) for at, name, child, kind in rows]
        rows = super().listing(ino, cookie, limit)
        below = self._base_of(ino) if self._base and ino < VIRTUAL_BASE else None
        return rows if below is None else self._merged(ino, rows, below, cookie, limit)

    def is_listed_whole(self, ino: int) -> bool:
        return ino < VIRTUAL_BASE and super().is_listed_whole(ino) and not self._base

    def _list_root(self, cookie: int) -> list[_Row]:
        names = [(FOLDER, FOLDER_INO, 4), (TENANTS, self._tenants, 4)]
        names += [(name, ino, 10) for ino, name in self._links.items()]
        rows = [(DOT, b".", ROOT_INO, 4), (DOTDOT, b"..", ROOT_INO, 4)]
        rows += [(DOTDOT + 1 + index, *row) for index, row in enumerate(names)]
        return [row for row in rows if row[0] > cookie]

    def statfs(self) -> Statfs:
        """To a user: their own quota and what they hold, as if they were alone. What the disk has left tells more."""
        if self.uid in (0, self.options.uid):
            return super().statfs()
        limits = self.options.limits
        limit = limits.max_size_per_uid or limits.max_size
        held = [record for _, _, record in self.entries.share(self.uid)]
        left = max(0, limit - sum(record.stored for record in held))
        files = _FILES - sum(record.files for record in held)
        return Statfs(blocks=limit // BLOCK, free=left // BLOCK, files=_FILES, files_free=files)

    # --- the base -----------------------------------------------------------------------------------------------------

    def _base_of(self, ino: int) -> int | None:
        """The folder of the base that lies below a folder of somebody's own tree: at the same path, if it is there."""
        node = self.nodes.get(ino)
        if node.entry or ino == ROOT_INO or ino in self.entries.roots:
            return None
        if node.parent in self.entries.roots:
            return self.tree.find(ROOT_INO, node.target) if node.parent != ROOT_INO else None
        above = self._base_of(node.parent)
        found = self.tree.find(above, node.target) if above is not None else None
        return found if found is not None and self.nodes.get(found).is_dir else None

    def _lookup_below(self, parent: int, name: bytes) -> int | None:
        below = self._base_of(parent)
        if below is None:
            return None
        found = self.tree.find(below, name)
        if found is None or not self._falls_through(parent, name, found):
            raise FsError(errno.ENOENT)  # not as a miss that the kernel remembers: the base may get it at any time
        node = self.nodes.get(found)
        if not node.is_dir:
            return super().lookup(below, name)
        if node.entry == 0:
            owner = self.nodes.get(parent)
            return self.found(self._make(parent, name, 0o700, owner.uid, owner.gid))
        super().lookup(below, name)  # a use of the entry
        self.nodes.forget(found, 1)
        return _alias(self._root_above(parent) << _ALIAS_BITS, found)

    def _falls_through(self, parent: int, name: bytes, found: int) -> bool:
        """Whether a name of the base is seen in a private folder that has none of that name itself."""
        is_dir = self.nodes.get(found).is_dir
        kind = self.entries.kind_at(parent, name, is_dir=is_dir)
        if kind is Kind.GROUP:
            return not self.entries.group_at(parent, name)
        return kind in (Kind.TREE, Kind.STRUCTURE) and found < 1 << _ALIAS_BITS

    def _root_above(self, ino: int) -> int:
        while ino not in self.entries.roots:
            ino = self.nodes.get(ino).parent
        return ino

    def _lookup_in_alias(self, parent: int, name: bytes) -> int | None:
        folder = _aliased(parent)
        found = self.tree.find(folder, name)
        if found is not None and self.nodes.get(found).is_dir:
            return _alias(parent, found)
        return super().lookup(folder, name)

    def name_gone(self, parent: int, name: bytes) -> None:
        super().name_gone(parent, name)
        if self._base:
            for folder in self._laid_over(parent):
                self.on_dropped(folder, name)

    def _laid_over(self, ino: int) -> Iterator[int]:
        """The folders of private trees that lie over a folder of the base. Looked for, so that no worker must know."""
        path: list[bytes] = []
        while ino != ROOT_INO:
            if ino in self.entries.roots or not self.nodes.exists(ino):
                return
            node = self.nodes.get(ino)
            path.insert(0, node.target)
            ino = node.parent
        for root in self.entries.roots - {ROOT_INO}:
            found: int | None = root
            for name in path:
                found = self.tree.find(found, name) if found is not None else None
            if found is not None:
                yield found

    def _merged(self, ino: int, rows: list[_Row], below: int, cookie: int, limit: int) -> list[_Row]:
        shown = [
            row
            for row in self.tree.listing(below, max(cookie, DOTDOT), limit)
            if self.tree.find(ino, row[1]) is None and self._falls_through(ino, row[1], row[2])
        ]
        if len(rows) >= limit:  # what stands behind the last of these comes with the next part
            shown = [row for row in shown if row[0] < rows[-1][0]]
        return list(itertools.islice(heapq.merge(rows, shown), limit))

    # --- changing -----------------------------------------------------------------------------------------------------

    def _refuse_place(self, parent: int) -> None:
        if parent in (ROOT_INO, self._tenants):
            raise FsError(errno.EPERM, "the root holds namespaces alone")
        if parent >= ALIAS_BASE or parent == SHARED_INO or self._is_forbidden(parent):
            raise FsError(errno.EROFS, "the base is not yours to change")

    def _is_forbidden(self, ino: int) -> bool:
        """Whether it is in the base, by whatever path it was reached and whosever it is, and the caller no writer."""
        if not self._base or ino >= VIRTUAL_BASE or self.uid == UNKNOWN:
            return False
        node = self.nodes.get(ino)
        try:
            root = self._root_above(ino if node.is_dir else node.parent)
        except FsError:  # its folder is gone, and somebody has it open still
            return self.uid not in (0, node.uid)
        return root == ROOT_INO and not self._is_writer()

    def _refuse_base_name(self, parent: int, name: bytes) -> None:
        self._refuse_place(parent)
        if self._base and parent < VIRTUAL_BASE and self.tree.find(parent, name) is None:
            below = self._base_of(parent)
            found = self.tree.find(below, name) if below is not None else None
            if found is not None and self._falls_through(parent, name, found):
                raise FsError(errno.EROFS, "a name of the base cannot be removed")

    def _refuse_changing(self, ino: int) -> None:
        if ino in self._links or ino >= SHARED_INO:
            raise FsError(errno.EPERM if ino in self._links else errno.EROFS)
        if self._is_forbidden(ino):
            raise FsError(errno.EROFS, "the base is not yours to change")

    def make(
        self, parent: int, name: bytes, mode: int, uid: int, gid: int, rdev: int = 0, target: bytes = b""
    ) -> tuple[int, Inode]:
        self._refuse_place(parent)
        return super().make(parent, name, _plain(mode), uid, gid, rdev, target)

    def create(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> tuple[int, Inode]:
        self._refuse_place(parent)
        return super().create(parent, name, _plain(mode), uid, gid)

    def link(self, ino: int, parent: int, name: bytes) -> Inode:
        self._refuse_place(parent)
        self._refuse_changing(ino)
        return super().link(ino, parent, name)

    def unlink(self, parent: int, name: bytes) -> None:
        self._refuse_base_name(parent, name)
        super().unlink(parent, name)

    def rmdir(self, parent: int, name: bytes) -> None:
        self._refuse_base_name(parent, name)
        super().rmdir(parent, name)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        self._refuse_base_name(parent, name)
        self._refuse_place(new_parent)
        super().rename(parent, name, new_parent, new_name, flags)

    def may_open(self, ino: int, flags: int) -> bool:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            self._refuse_changing(ino)
        return True

    def may_change(self, ino: int, *, size: int | None = None, owner: bool = False) -> None:
        self._refuse_changing(ino)
        if ino == ROOT_INO or ino == self._tenants or ino in self.entries.roots:
            raise FsError(errno.EPERM, "the root holds namespaces alone")
        super().may_change(ino, size=size, owner=owner)

    def is_quick_to_write(self, ino: int) -> bool:
        self._refuse_changing(ino)
        return super().is_quick_to_write(ino)

    def set_attributes(self, ino: int, **changes: Unpack[AttributeChanges]) -> Inode:
        mode = changes.get("mode")
        if mode is not None and self.nodes.get(ino).is_file:
            changes["mode"] = _plain(mode)
        return super().set_attributes(ino, **changes)


def _plain(mode: int) -> int:
    """A mode without setuid and setgid, which a folder may have."""
    return mode if stat.S_ISDIR(mode) else mode & ~0o6000


def _alias(under: int, folder: int) -> int:
    """The number under which a folder of the base is shown, to the user who has `under`, or whose root that is."""
    return ALIAS_BASE | (under & ~ALIAS_BASE) >> _ALIAS_BITS << _ALIAS_BITS | folder


def _aliased(ino: int) -> int:
    return ino & ((1 << _ALIAS_BITS) - 1)
