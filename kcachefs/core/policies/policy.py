"""The questions that the filesystem asks a policy, and the answers of `shared`, which forbids nothing.

The kernel checks modes and owners by itself (default_permissions) before it asks, and asks nothing at all for a flock
or for what it has cached, nor for an open unless the policy `judges_opens`. So a policy works in two places: in the
attributes that it shows, which the kernel then enforces, and in the requests that do come, each of which says who makes
it. Only the pages of a mapped file come later and in nobody's name: the user was judged when the file was opened for
writing.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterable

from kcachefs.core.caller import Caller
from kcachefs.core.parts import Parts
from kcachefs.core.policies.hidden_numbers import HiddenNumbers
from kcachefs.core.report_folder import FOLDER
from kcachefs.core.tree import DOTDOT, Row
from kcachefs.errors import FsError
from kcachefs.store.catalog import Transaction
from kcachefs.store.inode_numbers import REPORT_INO, ROOT_INO
from kcachefs.store.records import Inode

REPORT_COOKIE = DOTDOT + 1


class Policy:
    """What users of a mount may do to each other, and what each of them sees. One object per filesystem.

    Its methods are called in the thread that answers requests unless noted, and in a pool for requests that were handed
    to one: `find` for a lookup that takes long, `authorize_rename` once more for a rename that syncs, `ignores_changes`
    and `allowed_mode` for a slow change of attributes.

    | question | when | what it may do |
    | --- | --- | --- |
    | `is_asked` | at mount | say whether it restricts anything: if not, most of the rest is not asked |
    | `first_publisher_owns` | at mount, of its class | give an entry to the user who published in it first |
    | `judges_opens`, `links_differ` | at mount | say that every open must be asked for; that links differ by user |
    | `allows_kept_listings` | at mount | have `listing` asked each time, even if a listing was kept |
    | `withholds_writing` | at mount | keep a mask of modes (`--umask`) from giving back what `shown` took away |
    | `numbers` | at mount | show other inode numbers in attributes and listings |
    | `lists_afresh`, `lists_attributes` | per listing | keep the kernel from caching it; leave attributes out of it |
    | `find` | a name is looked up | lead the caller elsewhere, or nowhere; `private` may make a folder on the way |
    | `real_inode`, `node`, `forget` | an inode of the policy's own | say what it stands for, what it is; let it go |
    | `forgotten` | the kernel no longer knows an inode | forget what was noted about it |
    | `shown` | the kernel is given an inode (any thread) | show another mode or owner |
    | `name_seconds` | the kernel is given a name | say how long the kernel may trust the name |
    | `listing` | that request | list other names, or other numbers |
    | `readlink` | that request | answer otherwise, by caller |
    | `authorize_open` | every open, where opens are judged | refuse; keep the handle off the page cache |
    | `authorize_write`, `authorize_change`, `authorize_allocate` | before bytes or attributes change | refuse |
    | `authorize_add`, `authorize_kind` | before something is made there, or of a type | refuse |
    | `authorize_link` | before a file gets another name | refuse |
    | `authorize_remove`, `authorize_rename` | before a name goes or moves | refuse; have a rename give way |
    | `renamed` | in the transaction of a rename | mark files that got their final names |
    | `make_in_memory`, `remove_from_memory` | a name is made or removed | keep it in memory, with no bytes |
    | `ignores_changes` | attributes are set | accept the change without making it |
    | `allowed_mode` | a file gets a mode | take bits away |
    | `also_named_in` | a name went (any thread) | say where else it was shown |

    To refuse, a policy raises FsError. For a write out of the kernel's page cache only `authorize_write` is called,
    with NOBODY as the caller.
    """

    is_asked = False
    """Whether the policy forbids or changes anything: `shared` does neither, so requests skip it."""
    first_publisher_owns = False
    """Whether an entry belongs to the user who published in it first; else to the owner of its first sealed file."""
    judges_opens = False
    """Whether `authorize_open` is called for every open: then each open is a request."""
    links_differ = False
    """Whether a symbolic link leads different users to different places, so that the kernel must not keep it."""
    lists_afresh = False
    """Whether a listing depends on more than its folder, so that the kernel must not keep it."""
    allows_kept_listings = True
    """Whether a kept listing may be sent without asking: everybody is shown the same names and numbers."""
    withholds_writing = False
    """Whether `shown` takes writing away, which a mask of modes (`--umask`) must not give back."""
    numbers: HiddenNumbers | None = None
    """How inode numbers are shown; None: as they are."""
    lists_attributes = True
    """Whether a listing may give the kernel attributes as well, and with them names that it trusts for a while."""

    def __init__(self, parts: Parts) -> None:
        self._options = parts.options
        self._nodes = parts.nodes
        self._tree = parts.tree
        self._walk = parts.walk
        self._files = parts.files
        self._table = parts.table
        self._namespaces = parts.namespaces
        self._placement = parts.placement
        self._membership = parts.membership
        self._temporaries = parts.temporaries

    # --- what is seen -------------------------------------------------------------------------------------------------

    def find(self, caller: Caller, parent: int, name: bytes) -> int | None:
        """The inode that a name leads the caller to; None for a miss that the kernel may remember for everybody."""
        return self._tree.find(parent, name)

    def real_inode(self, ino: int) -> int | None:
        """The inode of the catalog that an inode of the policy's own stands for, if any."""
        return None

    def node(self, ino: int) -> Inode:
        """An inode of the policy's own."""
        raise FsError(errno.ENOENT)

    def forget(self, ino: int, count: int) -> None:
        """The kernel lets go of references to an inode of the policy's own."""

    def forgotten(self, ino: int) -> None:
        """The kernel holds no reference to an inode of the catalog any more."""

    def shown(self, ino: int, node: Inode) -> Inode:
        """An inode as the kernel sees it, with the mode and the owner that the kernel is to enforce."""
        return node

    def name_seconds(self, ino: int, node: Inode, usual: int) -> int:
        """How long the kernel may trust a name of this inode without asking again."""
        return usual

    def listing(self, ino: int, cookie: int, limit: int) -> list[Row]:
        """At most `limit` names after `cookie`; 0 starts from the top."""
        rows = self._tree.listing(ino, cookie, limit)
        if ino == ROOT_INO and cookie < REPORT_COOKIE:
            rows.insert(DOTDOT - min(cookie, DOTDOT), (REPORT_COOKIE, FOLDER, REPORT_INO, stat.S_IFDIR >> 12))
        return rows

    def readlink(self, caller: Caller, ino: int) -> bytes:
        node = self._nodes.get(ino)
        if not stat.S_ISLNK(node.mode):
            raise FsError(errno.EINVAL)
        return node.target

    def also_named_in(self, parent: int) -> Iterable[int]:
        """Other folders in which the names of a folder are shown."""
        return ()

    # --- what is allowed ----------------------------------------------------------------------------------------------

    def authorize_open(self, caller: Caller, ino: int, flags: int) -> bool:
        """Returns whether the handle may use the kernel's page cache, which everybody reads."""
        return True

    def authorize_write(self, caller: Caller, ino: int) -> None:
        pass

    def authorize_change(self, caller: Caller, ino: int, *, size: int | None, owner: bool) -> None:
        """Judge a truncation or an allocation up to `size`, a new mode or owner (`owner`), or (neither) new times."""

    def authorize_allocate(self, caller: Caller, ino: int) -> None:
        pass

    def authorize_add(self, caller: Caller, parent: int, name: bytes) -> None:
        """Judge a new name in a folder."""

    def authorize_kind(self, caller: Caller, mode: int) -> None:
        """Judge the type of something that is about to be made."""

    def authorize_link(self, caller: Caller, ino: int, parent: int, name: bytes) -> None:
        """Judge another name for a file."""

    def authorize_remove(self, caller: Caller, parent: int, name: bytes, *, is_dir: bool) -> None:
        pass

    def authorize_rename(
        self, caller: Caller, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> bool:
        """Returns whether the rename gives way: what has the new name stays, and the old name is removed."""
        return False

    # --- what is done otherwise ---------------------------------------------------------------------------------------

    def renamed(self, txn: Transaction, ino: int, parent: int, name: bytes) -> None:
        """An inode got a name by a rename. Called in the transaction of that rename."""

    def make_in_memory(self, caller: Caller, parent: int, name: bytes, mode: int) -> tuple[int, Inode] | None:
        """Make something in memory instead of in the store; None: it is to be made in the store."""
        return None

    def remove_from_memory(self, caller: Caller, parent: int, name: bytes) -> bool:
        """Remove a name if it exists in memory only; returns whether it did."""
        return False

    def ignores_changes(self, caller: Caller, ino: int) -> bool:
        """Whether an authorized change of attributes is accepted without being made."""
        return False

    def allowed_mode(self, mode: int) -> int:
        """The mode that something gets when this one was asked for."""
        return mode
