"""Publish: all may add, and what somebody has published nobody else can change.

What is published. A file of an entry is, from the moment that a rename gives it its final name, or once it has been
left alone for two seconds where it was written in place. Its owner and root may go on changing it; for everybody else
it cannot be written, truncated, replaced, renamed or removed. Renaming a file with the same bytes over it succeeds and
leaves the first one where it is, so that two who compile the same thing at once both go on; other bytes are refused
with EPERM, and logged. An entry as a whole is closed to others a minute after its owner last wrote to it: then they
cannot add files to it either, for a framework may load whatever lies in an entry's folder. Until then they can, because
compilers that work on the same entry at once put its files there one by one. A folder, be it an entry's or one that
holds entries, is moved by its owner only while nothing in it is anybody else's.

What is not published: locks, which are everybody's, and what has a temporary name, which is its writer's alone.

How. Folders appear open to all and files readable by all and writable by their owner; the kernel enforces that. What
removes or moves names comes here, with the number of the user who asks.
"""

from __future__ import annotations

import copy
import errno
import logging
import stat
import time

from kcachefs.core.files import REST_SECONDS
from kcachefs.core.filesystem import UNKNOWN, Filesystem, FsOptions
from kcachefs.core.layouts import Kind, is_temporary
from kcachefs.core.report import VIRTUAL_BASE
from kcachefs.core.tree import RENAME_EXCHANGE, RENAME_NOREPLACE
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.records import GROUP_BASE, ROOT_INO, Content, EntryRecord, Inode, entry_key

log = logging.getLogger(__name__)

OPEN_SECONDS = 60.0
"""How long after its owner last wrote to an entry others may add to it."""
COMPARED_MAX = 64 << 20
"""Larger files are told to be the same by their digests alone: comparing them would keep everybody waiting."""
MOVED_MAX = 100_000
"""A folder with more in it than could be looked through is moved by root alone."""
_CHUNK = 1 << 20


class Publish(Filesystem):
    """What `--policy publish` serves."""

    def __init__(self, store: Store, options: FsOptions) -> None:
        super().__init__(store, options)
        self.tree.on_moved = self._publish

    # --- what is seen -------------------------------------------------------------------------------------------------

    def shown(self, ino: int, node: Inode) -> Inode:
        if ino >= VIRTUAL_BASE or not (node.is_dir or node.is_file):
            return node
        seen = copy.copy(node)
        if self._is_temporary(ino, node):
            # Also before it has its final name: the kernel may go on believing what it is told now.
            seen.mode &= ~0o022
        elif node.is_dir:
            seen.mode = stat.S_IFDIR | 0o777
        elif self.entries.is_lock(ino, node):
            seen.mode |= 0o666
        else:
            seen.mode = (node.mode | 0o444 | (0o111 if node.mode & 0o100 else 0)) & ~0o6022
        return seen

    def _is_temporary(self, ino: int, node: Inode) -> bool:
        """Whether it has a temporary name, or is in a folder that has one."""
        temporary = self.entries.temporary
        if ino in temporary:
            return True
        above = node.parent
        while temporary and above != ROOT_INO:
            if above in temporary:
                return True
            found = self.nodes.get(above)
            if found.entry == 0:
                return False
            above = found.parent
        return False

    # --- who ----------------------------------------------------------------------------------------------------------

    def _owns(self, uid: int) -> bool:
        return self.uid in (0, uid, UNKNOWN)

    def _refusal(self, what: str, owner: int) -> FsError:
        log.warning("user %d was refused: %s, which is user %d's", self.uid, what, owner)
        return FsError(errno.EPERM, f"{what} is user {owner}'s")

    def _refuse_strangers(self, parent: int, name: bytes) -> None:
        """Only its owner takes a name away; so it is in a folder with the sticky bit."""
        ino = self.tree.find(parent, name)
        if ino is not None and not self._owns(owner := self.nodes.get(ino).uid):
            raise self._refusal(f"removing {name!r}", owner)

    def _refuse_closed(self, parent: int, name: bytes) -> None:
        """Nobody adds a final name to another's entry once that is complete, nor anything to a temporary folder."""
        folder = self.nodes.get(parent)
        if not self._owns(folder.uid) and self._is_temporary(parent, folder):
            raise self._refusal(f"adding {name!r} to a temporary folder", folder.uid)
        if is_temporary(name) or self.uid in (0, UNKNOWN):
            return
        entry = folder.entry or self.entries.group_at(parent, name)
        owner = self._owner_of(entry) if entry else None
        if owner is not None and not self._owns(owner) and not self._is_open(entry, owner):
            raise self._refusal(f"adding {name!r} to a published entry", owner)

    def _owner_of(self, entry: int) -> int | None:
        if entry < GROUP_BASE:
            return self.nodes.get(entry).uid
        raw = self.store.catalog.get(entry_key(entry))
        return EntryRecord.unpack(raw).uid if raw is not None else None

    def _is_open(self, entry: int, owner: int) -> bool:
        """Whether its owner may still be at work on it, or where nothing is theirs, any other than who asks."""
        newest: dict[int, int] = {}
        for ino, _, _ in self.evictor.members(entry):
            node = self.nodes.get(ino)
            if node.is_file:
                newest[node.uid] = max(newest.get(node.uid, 0), self.files.attributes(ino).mtime, node.ctime)
        newest.pop(self.uid, None)
        last = newest.get(owner) or max(newest.values(), default=0)
        return last == 0 or time.time_ns() - last < OPEN_SECONDS * 1e9

    # --- adding -------------------------------------------------------------------------------------------------------

    def make(
        self, parent: int, name: bytes, mode: int, uid: int, gid: int, rdev: int = 0, target: bytes = b""
    ) -> tuple[int, Inode]:
        if parent < VIRTUAL_BASE:
            self._refuse_closed(parent, name)
        return super().make(parent, name, mode, uid, gid, rdev, target)

    def create(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> tuple[int, Inode]:
        if parent < VIRTUAL_BASE and self.tree.find(parent, name) is None:
            self._refuse_closed(parent, name)
        return super().create(parent, name, mode, uid, gid)

    def link(self, ino: int, parent: int, name: bytes) -> Inode:
        if not self._owns(owner := self.nodes.get(ino).uid):
            raise self._refusal(f"linking {name!r}", owner)
        if parent < VIRTUAL_BASE:
            self._refuse_closed(parent, name)
        return super().link(ino, parent, name)

    # --- taking away --------------------------------------------------------------------------------------------------

    def unlink(self, parent: int, name: bytes) -> None:
        self._refuse_strangers(parent, name)
        super().unlink(parent, name)

    def rmdir(self, parent: int, name: bytes) -> None:
        ino = self.tree.find(parent, name)
        if ino is not None and self.nodes.get(ino).size == 0:  # else ENOTEMPTY is the better answer
            self._refuse_strangers(parent, name)
        super().rmdir(parent, name)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        self._refuse_strangers(parent, name)
        ino, other = self.tree.find(parent, name), self.tree.find(new_parent, new_name)
        if ino is not None:
            self._refuse_moving(ino, name)
        if other is None and new_parent < VIRTUAL_BASE:
            self._refuse_closed(new_parent, new_name)
        elif other is not None and ino is not None and ino != other and not flags & RENAME_NOREPLACE:
            if flags & RENAME_EXCHANGE:
                self._refuse_strangers(new_parent, new_name)
                self._refuse_moving(other, new_name)
            elif self._gives_way(ino, other, new_name):
                super().unlink(parent, name)
                # The kernel has moved its own name; this waits until it is done with that, and corrects it.
                self.on_dropped(new_parent, new_name)
                return
        super().rename(parent, name, new_parent, new_name, flags)

    def _refuse_moving(self, ino: int, name: bytes) -> None:
        """Nobody takes away with a folder of theirs what others have put there."""
        if self.uid in (0, UNKNOWN):
            return
        for count, (below, _, _) in enumerate(self.evictor.below(ino)):
            owner = self.nodes.get(below).uid
            if not self._owns(owner):
                raise self._refusal(f"moving {name!r}, in which something", owner)
            if count >= MOVED_MAX:
                raise FsError(errno.EPERM, f"{name!r} holds too much to be moved by anybody but root")

    def _gives_way(self, ino: int, other: int, name: bytes) -> bool:
        """Whether what is renamed here is what another has published already. Raises where it is something else."""
        node, published = self.nodes.get(ino), self.nodes.get(other)
        if self._owns(published.uid):
            return False
        if published.is_file and node.is_file:
            if not self._is_published(other, published):
                return False
            if self._is_same(ino, other):
                return True
        elif published.is_dir and published.size:
            return False  # ENOTEMPTY says it better
        raise self._refusal(f"replacing {name!r}", published.uid)

    def _is_published(self, ino: int, node: Inode) -> bool:
        if node.flags & Inode.PUBLISHED or node.content == Content.OBJECT:
            return True
        return time.time_ns() - self.files.attributes(ino).mtime > REST_SECONDS * 1e9

    def _is_same(self, ino: int, other: int) -> bool:
        node, published = self.files.attributes(ino), self.files.attributes(other)
        if node.size != published.size:
            return False
        if node.content == published.content == Content.OBJECT:
            return node.digest == published.digest
        return node.size <= COMPARED_MAX and all(
            self.files.read(ino, offset, _CHUNK) == self.files.read(other, offset, _CHUNK)
            for offset in range(0, node.size, _CHUNK)
        )

    def _publish(self, txn: Transaction, ino: int, parent: int, name: bytes) -> None:
        """What is renamed has its final name, with all below it if it is a folder."""
        if is_temporary(name) or self._is_temporary(ino, self.nodes.get(ino)):
            return
        if not self.nodes.get(parent).entry and self.entries.kind_at(parent, name, is_dir=False) is Kind.LOCK:
            return
        for member in (ino, *(below for below, _, _ in self.evictor.below(ino))):
            node = self.nodes.get(member)
            if node.is_file and not node.flags & Inode.PUBLISHED:
                node.flags |= Inode.PUBLISHED
                self.nodes.save(txn, member, node)

    # --- changing -----------------------------------------------------------------------------------------------------

    def may_change(self, ino: int, *, size: int | None = None, owner: bool = False) -> None:
        self._refuse_changing(ino, metadata=owner)
        super().may_change(ino, size=size, owner=owner)

    def is_quick_to_write(self, ino: int) -> bool:
        self._refuse_changing(ino)
        return super().is_quick_to_write(ino)

    def _refuse_changing(self, ino: int, *, metadata: bool = False) -> None:
        node = self.nodes.get(ino) if ino < VIRTUAL_BASE else None
        if node is None or self._owns(node.uid):
            return
        if metadata or (node.is_file and not self.entries.is_lock(ino, node)):
            raise self._refusal(f"changing inode {ino}", node.uid)
