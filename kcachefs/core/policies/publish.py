"""Publish: everybody may add, and nobody else can change what somebody has published.

The promise. A name that leads to somebody else's file cannot be made to lead anywhere else, nor to other bytes. Only
the file's owner and root can write, truncate, replace, rename, link or remove it. Others can replace it only while it
is still empty. Renaming a file with the same bytes over it succeeds and leaves the first file where it is, so that two
users who compile the same thing at once can both go on; other bytes are refused with EPERM, and logged. An empty folder
that exists to hold everybody's entries can be replaced by a folder.

An entry as a whole closes to other users, because a framework may load whatever is in an entry's folder. It closes to a
user a minute after the last change of a file in it that is not that user's, and in any case a quarter of an hour after
its first file was sealed. Until then other users can add files, because compilers that work on the same entry at once
put its files there one by one. An entry belongs to the user who published in it first, whoever made its folder. That
user may always add to it, and no other user's quota can evict it. Times that users can set play no part in this.

The owner of a folder can move it only while nothing in it belongs to anybody else. Only root can make symbolic links,
FIFOs or sockets, and only the owner of a link can follow it (unless root or the mount's owner made it): otherwise links
could redirect what others open.

Two things are not published: locks, which belong to everybody, and files under a temporary name, which belong to their
writer alone. A lock can be renamed only to the name of a lock, because a process that has it open or mapped could still
write to it. (To judge each open instead, as `read_only.py` does, would make each open of every file a request.)

How. Folders appear open to all, and files readable by all and writable by their owner; the kernel enforces that.
Requests that remove or move names come here, with the caller. When a rename gives way, the kernel has already moved the
name in its own cache, and would lead readers to the newcomer's file until we correct that name. So the kernel may never
keep a temporary name, but looks it up again at its next use. The rename of a file that ever had another name does not
give way but is refused.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import itertools
import logging
import stat
import time

from kcachefs.core.caller import UNKNOWN, Caller
from kcachefs.core.layouts import Kind, is_temporary
from kcachefs.core.parts import Parts
from kcachefs.core.policies.policy import Policy
from kcachefs.core.tree import RENAME_EXCHANGE, RENAME_NOREPLACE
from kcachefs.errors import FsError
from kcachefs.store.catalog import Transaction
from kcachefs.store.inode_numbers import GROUP_BASE, ROOT_INO, VIRTUAL_BASE
from kcachefs.store.records import Content, Inode

log = logging.getLogger(__name__)

OPEN_SECONDS, OPEN_AT_MOST_SECONDS = 60.0, 900.0
"""How long others may add to an entry: after the last change in it, and after its first file was sealed."""
COMPARED_MAX = 4 << 20
"""Larger files count as the same by their digests alone: comparing them would keep everybody waiting."""
LOOKED_AT = 1000
"""Files that are looked at in a folder that is moved: more would keep everybody waiting."""
_CHUNK = 1 << 20


class Publish(Policy):
    """What `--policy publish` allows."""

    is_asked = True
    first_publisher_owns = True
    links_differ = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._publishers = parts.publishers
        self._is_temporary = parts.publishers.is_temporary

    # --- what is seen -------------------------------------------------------------------------------------------------

    def shown(self, ino: int, node: Inode) -> Inode:
        if ino >= VIRTUAL_BASE or not (node.is_dir or node.is_file):
            return node
        seen = copy.copy(node)
        if self._is_temporary(ino, node):
            # Even before the inode has its final name: the kernel may keep the mode that we show now.
            seen.mode &= ~0o022
        elif node.is_dir:
            seen.mode = stat.S_IFDIR | 0o777
        elif self._membership.is_lock(ino, node):
            seen.mode |= 0o666
        else:
            seen.mode = (node.mode | 0o444 | (0o111 if node.mode & 0o100 else 0)) & ~0o6022
        return seen

    def name_seconds(self, ino: int, node: Inode, usual: int) -> int:
        return 0 if ino < VIRTUAL_BASE and self._is_temporary(ino, node) else usual

    def readlink(self, caller: Caller, ino: int) -> bytes:
        owner = self._nodes.get(ino).uid
        if owner not in (0, self._options.uid, caller.uid):
            raise FsError(errno.EACCES, f"the link belongs to user {owner}")
        return super().readlink(caller, ino)

    # --- who ----------------------------------------------------------------------------------------------------------

    def _refusal(self, caller: Caller, what: str, owner: int) -> FsError:
        log.warning("user %d was refused: %s (it belongs to user %d)", caller.uid, what, owner)
        return FsError(errno.EPERM, f"{what} is refused: it belongs to user {owner}")

    def _owner_if_closed(self, caller: Caller, entry: int) -> int | None:
        """The owner of an entry that the caller may not add to; None if the caller may."""
        first = self._publishers.first_file(entry)
        if first is None or _owns(caller, first.uid):
            return None
        if first.flags & Inode.ADOPTED:
            return first.uid  # it was complete when it came
        now, record = time.time_ns(), self._table.get(entry)
        sealed = record.created if record is not None and record.used else now
        # A time far in the future, from a clock that was ahead, is not recent either.
        if abs(now - sealed) >= OPEN_AT_MOST_SECONDS * 1e9:
            return first.uid
        others = (node for _, node in self._publishers.files_of(entry) if not _owns(caller, node.uid))
        is_open = any(abs(now - node.ctime) < OPEN_SECONDS * 1e9 for node in itertools.chain((first,), others))
        return None if is_open else first.uid

    # --- adding -------------------------------------------------------------------------------------------------------

    def authorize_add(self, caller: Caller, parent: int, name: bytes) -> None:
        """Nobody adds a final name to another's entry once it is closed, nor anything to another's temporary folder."""
        if parent >= VIRTUAL_BASE or self._tree.find(parent, name) is not None:
            return  # EEXIST says it better
        folder = self._nodes.get(parent)
        if not _owns(caller, folder.uid) and self._is_temporary(parent, folder):
            raise self._refusal(caller, f"adding {name!r} to a temporary folder", folder.uid)
        self._refuse_closed(caller, parent, name)

    def _refuse_closed(self, caller: Caller, parent: int, name: bytes) -> None:
        if is_temporary(name) or caller.uid in (0, UNKNOWN):
            return
        entry = self._nodes.get(parent).entry or self._placement.group_at(parent, name)
        owner = self._owner_if_closed(caller, entry) if entry else None
        if owner is not None:
            raise self._refusal(caller, f"adding {name!r} to a published entry", owner)

    def authorize_kind(self, caller: Caller, mode: int) -> None:
        """Nobody may put a link, a FIFO or a socket in others' way."""
        if caller.uid != 0 and stat.S_IFMT(mode) not in (stat.S_IFREG, stat.S_IFDIR):
            raise FsError(errno.EPERM, "only files and folders are shared under --policy publish")

    def authorize_link(self, caller: Caller, ino: int, parent: int, name: bytes) -> None:
        if not _owns(caller, owner := self._nodes.get(ino).uid):
            raise self._refusal(caller, f"linking {name!r}", owner)
        self._refuse_publishing_a_lock(ino, parent, name)

    # --- taking away --------------------------------------------------------------------------------------------------

    def authorize_remove(self, caller: Caller, parent: int, name: bytes, *, is_dir: bool) -> None:
        ino = self._tree.find(parent, name)
        if ino is not None and not (is_dir and self._nodes.get(ino).size):  # else ENOTEMPTY says it better
            self._refuse_strangers(caller, parent, name)

    def _refuse_strangers(self, caller: Caller, parent: int, name: bytes) -> None:
        """Only the owner of a file takes its name away, as in a folder with the sticky bit."""
        ino = self._tree.find(parent, name)
        if ino is not None and not _owns(caller, owner := self._nodes.get(ino).uid):
            raise self._refusal(caller, f"removing {name!r}", owner)

    def authorize_rename(
        self, caller: Caller, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> bool:
        self._refuse_strangers(caller, parent, name)
        ino, other = self._tree.find(parent, name), self._tree.find(new_parent, new_name)
        if ino is not None:
            self._refuse_publishing_a_lock(ino, new_parent, new_name)
            self._refuse_moving(caller, ino, name)
        if other is not None and flags & RENAME_EXCHANGE:
            self._refuse_publishing_a_lock(other, parent, name)
        if other is None:
            self.authorize_add(caller, new_parent, new_name)
        elif ino is not None and ino != other and not flags & RENAME_NOREPLACE:
            self._refuse_filling(caller, ino, new_parent, new_name)
            if not flags & RENAME_EXCHANGE:
                return self._authorize_replacing(caller, ino, other, new_parent, new_name)
            self._refuse_filling(caller, other, parent, name)
            self._refuse_strangers(caller, new_parent, new_name)
            self._refuse_moving(caller, other, new_name)
        return False

    def _refuse_filling(self, caller: Caller, ino: int, parent: int, name: bytes) -> None:
        """Refuse a folder that would replace another one, and bring its files into a closed entry."""
        node = self._nodes.get(ino)
        if node.is_dir and node.entry != self._nodes.get(parent).entry:
            self._refuse_closed(caller, parent, name)

    def _refuse_publishing_a_lock(self, ino: int, parent: int, name: bytes) -> None:
        """A lock gets no name but a lock's: somebody who has it mapped could write into what others then load."""
        node = self._nodes.get(ino)
        if not node.is_file or not self._membership.is_lock(ino, node):
            return
        if self._nodes.get(parent).entry or self._placement.kind_at(parent, name, is_dir=False) is not Kind.LOCK:
            raise FsError(errno.EPERM, f"a lock, which everybody may write to, cannot become {name!r}")

    def _refuse_moving(self, caller: Caller, ino: int, name: bytes) -> None:
        """Nobody may move their own folder away together with files that others have put into it.

        A folder that has only had temporary names holds nothing that belongs to others.
        """
        node = self._nodes.get(ino)
        if caller.uid in (0, UNKNOWN) or (node.flags & Inode.FRESH and self._is_temporary(ino, node)):
            return
        if node.is_dir and node.size > LOOKED_AT:
            raise FsError(errno.EXDEV, f"{name!r} holds too much to be moved by anybody but root")
        for count, (below, _, _) in enumerate(self._walk.below(ino)):
            found = self._nodes.get(below)
            if not _owns(caller, found.uid):
                raise self._refusal(caller, f"moving something in {name!r}", found.uid)
            if found.is_file and self._membership.is_lock(below, found):
                raise FsError(errno.EXDEV, f"{name!r} holds locks, which would become files that others load")
            if count >= LOOKED_AT:
                raise FsError(errno.EXDEV, f"{name!r} holds too much to be moved by anybody but root")

    def _authorize_replacing(self, caller: Caller, ino: int, other: int, parent: int, name: bytes) -> bool:
        """Returns whether the rename gives way, because somebody else has published the same already."""
        node, published, what = self._nodes.get(ino), self._nodes.get(other), f"replacing {name!r}"
        if _owns(caller, published.uid):
            return False
        if published.is_file and node.is_file:
            if not self._is_published(published) and self._files.attributes(other).size == 0:
                return False
            if self._is_same(ino, other):
                if self._is_temporary(ino, node) and node.flags & (Inode.FRESH | Inode.PUBLISHED) == Inode.FRESH:
                    return True
                what += " by a file that already had a final name"
        elif published.is_dir and (published.size or (node.is_dir and self._holds_entries(parent, name))):
            return False  # ENOTEMPTY says it better; if it is empty now, its content was evicted
        raise self._refusal(caller, what, published.uid)

    def _holds_entries(self, parent: int, name: bytes) -> bool:
        """Whether a folder of that name exists to hold everybody's entries."""
        if parent == ROOT_INO or self._nodes.get(parent).entry:
            return False
        return self._placement.kind_at(parent, name, is_dir=True) is Kind.STRUCTURE

    def _is_published(self, node: Inode) -> bool:
        with contextlib.suppress(FsError):
            folder = self._nodes.get(node.entry) if 0 < node.entry < GROUP_BASE else node
            return bool((node.flags | folder.flags) & Inode.PUBLISHED)
        return False

    def _is_same(self, ino: int, other: int) -> bool:
        node, published = self._files.attributes(ino), self._files.attributes(other)
        if node.size != published.size:
            return False
        if node.content == published.content == Content.OBJECT:
            return node.digest == published.digest
        return node.size <= COMPARED_MAX and all(
            self._files.read(ino, offset, _CHUNK) == self._files.read(other, offset, _CHUNK)
            for offset in range(0, node.size, _CHUNK)
        )

    def renamed(self, txn: Transaction, ino: int, parent: int, name: bytes) -> None:
        """A renamed file has its final name now, and so has everything below a folder, except locks."""
        node = self._nodes.get(ino)
        if is_temporary(name) or self._is_temporary(ino, node):
            return
        in_entry = self._nodes.get(parent).entry
        if not in_entry and self._placement.kind_at(parent, name, is_dir=node.is_dir) is Kind.LOCK:
            return
        below = [below for below, _, _ in itertools.islice(self._walk.below(ino), LOOKED_AT + 1)]
        if len(below) > LOOKED_AT:  # the mark on the folder covers what is in it
            node.flags |= Inode.PUBLISHED
            self._nodes.save(txn, ino, node)
            return
        for member in (ino, *below):
            node = self._nodes.get(member)
            is_lock = node.nlink == 1 and self._membership.is_lock(member, node)  # else others load it by another name
            if node.is_file and not node.flags & Inode.PUBLISHED and not is_lock:
                node.flags |= Inode.PUBLISHED
                self._nodes.save(txn, member, node)

    # --- changing -----------------------------------------------------------------------------------------------------

    def authorize_write(self, caller: Caller, ino: int) -> None:
        self._refuse_changing(caller, ino)

    def authorize_change(self, caller: Caller, ino: int, *, size: int | None, owner: bool) -> None:
        self._refuse_changing(caller, ino, metadata=owner)

    def _refuse_changing(self, caller: Caller, ino: int, *, metadata: bool = False) -> None:
        node = self._nodes.get(ino) if ino < VIRTUAL_BASE else None
        if node is None or _owns(caller, node.uid):
            return
        if metadata or (node.is_file and not self._membership.is_lock(ino, node)):
            raise self._refusal(caller, f"changing inode {ino}", node.uid)


def _owns(caller: Caller, uid: int) -> bool:
    return caller.uid in (0, uid, UNKNOWN)
