"""Private: each user has a tree of namespaces of their own, over one store in which equal bytes are kept once.

How. The kernel keeps one cache of names for all users, so a name can lead two users to two folders only if the kernel
looks it up each time. And when a name turns out to lead elsewhere, the kernel drops all that it has cached below that
name, so users who take turns would lose their names and pages at every turn. A symbolic link has no such cost: the
kernel asks us to read the link for each walk, on behalf of the user who walks, and keeps what lies behind the link. So
a namespace in the root is a link, the same for all, and `readlink` answers with the caller's own folder,
`.tenants/<token>/<namespace>`. This costs one READLINK for each path that is walked (benchmarks/README.md has the
figure). The folders are real, belong to their user, and have mode 0700, which the kernel enforces for everything below
them. The root itself cannot be changed.

In the store a user's folder is named after the uid. The mount shows it under a token that is derived from a secret and
the uid, and under no other name, because the kernel shows a name that it knows to everybody. Root can list the tokens.
Inode numbers are shown permuted (`hidden_numbers.py`), and the folders that all users share do not reveal how many
users there are.

With `--base`, the shared tree of the same store (what the mount held under another policy) can be read below each
private one (`base_layer.py`). For its writers (the mount's owner if none are named) the links lead to that tree itself,
as `.shared/<namespace>`, and they write there. What anybody else writes goes to their own tree, and may shadow the
base; changing or removing a name of the base is refused with EROFS.
"""

from __future__ import annotations

import copy
import errno
import os
import stat
from collections.abc import Iterable

from kcachefs.core.caller import Caller
from kcachefs.core.layouts import NAMESPACES
from kcachefs.core.nodes import new_inode
from kcachefs.core.options import FOREVER_SECONDS, NAME_MAX
from kcachefs.core.parts import Parts
from kcachefs.core.policies.base_layer import BaseLayer
from kcachefs.core.policies.hidden_numbers import HiddenNumbers, hidden_numbers
from kcachefs.core.policies.policy import Policy
from kcachefs.core.report_folder import FOLDER
from kcachefs.core.tree import DOT, DOTDOT, Row
from kcachefs.core.uses import HEARTBEAT_SECONDS
from kcachefs.errors import FsError
from kcachefs.store.inode_numbers import (
    ALIAS_BASE,
    LINK_BASE,
    REPORT_INO,
    ROOT_INO,
    SHARED_INO,
    VIRTUAL_BASE,
    alias,
    aliased,
    first_alias,
)
from kcachefs.store.records import TENANTS, Inode

SHARED = b".shared"
_FOLDER_TYPE, _LINK_TYPE = 4, 10


class NamespaceLinks:
    """The links in the root, one per namespace, which lead each user elsewhere."""

    def __init__(self, parts: Parts) -> None:
        self._options = parts.options
        self._nodes = parts.nodes
        self.names = {LINK_BASE + index: name.encode() for index, name in enumerate(NAMESPACES)}
        self.inodes = {name: ino for ino, name in self.names.items()}

    def node(self, ino: int) -> Inode:
        node = new_inode(stat.S_IFLNK | 0o777, self._options.uid, self._options.gid, ROOT_INO)
        node.atime = node.mtime = node.ctime = self._nodes.get(ROOT_INO).ctime
        node.size = len(self.names[ino])
        return node

    def listing(self, tenants: int, cookie: int) -> list[Row]:
        """The listing of the root, which holds only these links, the report and the users' trees."""
        names = [(FOLDER, REPORT_INO, _FOLDER_TYPE), (TENANTS, tenants, _FOLDER_TYPE)]
        names += [(name, ino, _LINK_TYPE) for ino, name in self.names.items()]
        rows = [(DOT, b".", ROOT_INO, _FOLDER_TYPE), (DOTDOT, b"..", ROOT_INO, _FOLDER_TYPE)]
        rows += [(DOTDOT + 1 + index, *row) for index, row in enumerate(names)]
        return [row for row in rows if row[0] > cookie]


class UserTrees:
    """The users' own trees, each made at the user's first visit."""

    def __init__(self, parts: Parts, numbers: HiddenNumbers) -> None:
        self._tree = parts.tree
        self._nodes = parts.nodes
        self._namespaces = parts.namespaces
        self._numbers = numbers
        self._by_token: dict[bytes, int] = {}
        """Each user's root by the name that is shown for it."""
        self._roots: dict[int, int] = {}
        """The roots of the users who were here, by uid."""
        owner = Caller(parts.options.uid, 0)
        self.folder = self._tree.find(ROOT_INO, TENANTS) or self.make(owner, ROOT_INO, TENANTS, 0o711)
        self._namespaces.add_tenants_folder(self.folder)
        for _, token, ino, _ in self.listing(DOTDOT, 1 << 30):
            self._by_token[token] = ino

    def _token(self, name: bytes) -> bytes:
        return self._numbers.folder_of(int(name))

    def find(self, caller: Caller, token: bytes) -> int | None:
        """The root that is shown under a name, to its user and to root."""
        found = self._by_token.get(token)
        return found if found is not None and caller.uid in (0, self._nodes.get(found).uid) else None

    def listing(self, cookie: int, limit: int) -> list[Row]:
        """The users' roots as they are shown."""
        rows = self._tree.listing(self.folder, cookie, limit)
        dots = [row for row in rows if row[0] <= DOTDOT]
        trees = [row for row in rows if row[1].isdigit()]
        return [*dots, *((at, self._token(name), ino, kind) for at, name, ino, kind in trees)]

    def visit(self, caller: Caller, namespace: bytes) -> bytes:
        """Make a namespace of the caller's own, and their root, if they are missing. Returns the path that is shown."""
        root = self._roots.get(caller.uid)
        if root is None:
            name = b"%d" % caller.uid
            root = self._tree.find(self.folder, name) or self.make(caller, self.folder, name, 0o700)
            self._namespaces.add_root(root)
            self._roots[caller.uid] = root
            self._by_token[self._token(name)] = root
        found = self._tree.find(root, namespace) or self.make(caller, root, namespace, 0o700)
        self._namespaces.protected.add(found)
        return b"%s/%s/%s" % (TENANTS, self._numbers.folder_of(caller.uid), namespace)

    def make(self, caller: Caller, parent: int, name: bytes, mode: int) -> int:
        """Make a folder that is missing on the way, or find it."""
        try:
            return self._tree.create(caller.aside(), parent, name, stat.S_IFDIR | mode)[0]
        except FsError as error:
            found = self._tree.find(parent, name) if error.errno == errno.EEXIST else None
            if found is None:
                raise
            return found  # a lookup that waited for a remote tier was quicker


class Private(Policy):
    """What `--policy private` shows and allows."""

    is_asked = True
    links_differ = True
    allows_kept_listings = False

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.numbers = hidden_numbers(parts.store)
        self._links = NamespaceLinks(parts)
        self._users = UserTrees(parts, self.numbers)
        self._tenants = self._users.folder
        sharing = parts.options.sharing
        self._base = BaseLayer(parts) if sharing.base else None
        self.judges_opens = self.lists_afresh = sharing.base
        self.lists_attributes = not sharing.base

    # --- who ----------------------------------------------------------------------------------------------------------

    def _is_writer(self, caller: Caller) -> bool:
        """Whether the caller works in the base itself."""
        sharing = self._options.sharing
        if self._base is None:
            return False
        if not (sharing.writer_uids or sharing.writer_gids):
            return caller.uid == self._options.uid
        return sharing.is_writer(caller)

    # --- looking ------------------------------------------------------------------------------------------------------

    def find(self, caller: Caller, parent: int, name: bytes) -> int | None:
        if len(name) > NAME_MAX:
            raise FsError(errno.ENAMETOOLONG)
        if parent == ROOT_INO:
            if name == SHARED and self._base is not None:
                return SHARED_INO
            return self._tenants if name == TENANTS else self._links.inodes.get(name)
        if parent == self._tenants:
            return self._find_tenant(caller, name)
        if parent == SHARED_INO:
            return self._tree.find(ROOT_INO, name) if name not in (FOLDER, TENANTS) else None
        if parent >= ALIAS_BASE:
            return self._find_in_alias(parent, name)
        found = self._tree.find(parent, name)
        return found if found is not None or self._base is None else self._find_in_base(self._base, parent, name)

    def _find_tenant(self, caller: Caller, name: bytes) -> int | None:
        found = self._users.find(caller, name)
        if found is None:
            raise FsError(errno.ENOENT)  # not a miss, which the kernel would remember for all, and for too long
        return found

    def _find_in_alias(self, parent: int, name: bytes) -> int | None:
        found = self._tree.find(aliased(parent), name)
        return alias(parent, found) if found is not None and self._nodes.get(found).is_dir else found

    def _find_in_base(self, base: BaseLayer, parent: int, name: bytes) -> int | None:
        below = base.folder_below(parent)
        if below is None:
            return None
        found = base.find(parent, below, name)
        if found is None:
            raise FsError(errno.ENOENT)  # not a miss, which the kernel would remember: the base may gain it any time
        node = self._nodes.get(found)
        if not node.is_dir:
            return found
        if node.entry == 0:
            owner = self._nodes.get(parent)
            return self._users.make(Caller(owner.uid, owner.gid), parent, name, 0o700)
        return first_alias(base.root_above(parent), found)

    def real_inode(self, ino: int) -> int | None:
        return aliased(ino) if ino >= ALIAS_BASE else None

    def node(self, ino: int) -> Inode:
        if ino in self._links.names:
            return self._links.node(ino)
        if ino == SHARED_INO:
            return self.shown(ROOT_INO, self._nodes.get(ROOT_INO))
        if ino >= ALIAS_BASE:
            seen = copy.copy(self._files.attributes(aliased(ino)))
            seen.mode &= ~0o222
            return seen
        raise FsError(errno.ENOENT)

    def shown(self, ino: int, node: Inode) -> Inode:
        if ino not in self._namespaces.roots and ino != self._tenants:
            return node
        seen = copy.copy(node)
        if ino == ROOT_INO:
            seen.mode = stat.S_IFDIR | 0o755
        seen.nlink = 2
        seen.atime = seen.mtime = seen.ctime = self._nodes.get(ROOT_INO).ctime
        return seen

    def name_seconds(self, ino: int, node: Inode, usual: int) -> int:
        if ino >= ALIAS_BASE:
            return HEARTBEAT_SECONDS  # once evicted from the base, it is gone for every user
        return FOREVER_SECONDS if ino in self._links.names or ino == SHARED_INO else usual

    def readlink(self, caller: Caller, ino: int) -> bytes:
        name = self._links.names.get(ino)
        if name is None:
            return super().readlink(caller, ino)
        if not caller.is_known:
            raise FsError(errno.EACCES, "the kernel does not say who asks")
        if self._is_writer(caller):
            return SHARED + b"/" + name
        return self._users.visit(caller, name)

    def listing(self, ino: int, cookie: int, limit: int) -> list[Row]:
        if ino == ROOT_INO:
            return self._links.listing(self._tenants, cookie)
        if ino == self._tenants:
            return self._users.listing(cookie, limit)
        if ino == SHARED_INO:
            return [row for row in self._tree.listing(ROOT_INO, cookie, limit) if row[1] != TENANTS]
        if ino >= ALIAS_BASE:
            rows = self._tree.listing(aliased(ino), cookie, limit)
            return [
                (at, name, child if kind != _FOLDER_TYPE else alias(ino, child), kind) for at, name, child, kind in rows
            ]
        rows = self._tree.listing(ino, cookie, limit)
        below = self._base.folder_below(ino) if self._base is not None else None
        return rows if self._base is None or below is None else self._base.merge(ino, rows, below, cookie, limit)

    def also_named_in(self, parent: int) -> Iterable[int]:
        return [*self._base.folders_above(parent), *self._base.aliases(parent)] if self._base is not None else ()

    # --- changing -----------------------------------------------------------------------------------------------------

    def authorize_add(self, caller: Caller, parent: int, name: bytes) -> None:
        if parent in (ROOT_INO, self._tenants):
            raise FsError(errno.EPERM, "the root holds only namespaces")
        if parent >= ALIAS_BASE or parent == SHARED_INO or self._is_forbidden(caller, parent):
            raise FsError(errno.EROFS, "the base is not yours to change")

    def _is_forbidden(self, caller: Caller, ino: int) -> bool:
        """Whether an inode is in the base, however it was reached, and the caller is not a writer of the base."""
        if self._base is None or ino >= VIRTUAL_BASE or not caller.is_known:
            return False
        node = self._nodes.get(ino)
        try:
            root = self._base.root_above(ino if node.is_dir else node.parent)
        except FsError:  # its folder is gone, but somebody still has it open
            return caller.uid not in (0, node.uid)
        return root == ROOT_INO and not self._is_writer(caller)

    def _refuse_changing(self, caller: Caller, ino: int) -> None:
        if ino >= SHARED_INO:
            raise FsError(errno.EPERM if ino in self._links.names else errno.EROFS)
        if self._is_forbidden(caller, ino):
            raise FsError(errno.EROFS, "the base is not yours to change")

    def authorize_link(self, caller: Caller, ino: int, parent: int, name: bytes) -> None:
        self._refuse_changing(caller, ino)

    def authorize_remove(self, caller: Caller, parent: int, name: bytes, *, is_dir: bool) -> None:
        self.authorize_add(caller, parent, name)
        if self._base is not None and parent < VIRTUAL_BASE and self._tree.find(parent, name) is None:
            below = self._base.folder_below(parent)
            if below is not None and self._base.find(parent, below, name) is not None:
                raise FsError(errno.EROFS, "a name of the base cannot be removed")

    def authorize_rename(
        self, caller: Caller, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> bool:
        self.authorize_remove(caller, parent, name, is_dir=False)
        self.authorize_add(caller, new_parent, new_name)
        return False

    def authorize_open(self, caller: Caller, ino: int, flags: int) -> bool:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            self._refuse_changing(caller, ino)
        return True

    def authorize_write(self, caller: Caller, ino: int) -> None:
        self._refuse_changing(caller, ino)

    def authorize_change(self, caller: Caller, ino: int, *, size: int | None, owner: bool) -> None:
        self._refuse_changing(caller, ino)
        if ino == ROOT_INO or ino == self._tenants or ino in self._namespaces.roots:
            raise FsError(errno.EPERM, "the root holds only namespaces")

    def allowed_mode(self, mode: int) -> int:
        """The mode without setuid and setgid; a folder may have them."""
        return mode if stat.S_ISDIR(mode) else mode & ~0o6000
