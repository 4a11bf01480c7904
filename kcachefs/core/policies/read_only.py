"""Read-only: only the writers change anything, but everybody can take locks.

For the kernel the mount is not read-only: if it were, nobody could open a lock for writing, and TorchInductor opens
locks even when it finds everything. Instead:

- Folders appear open to all, so that every request to change one comes here and fails with EROFS, unless the caller is
  a writer. Files appear writable by their owner alone.
- Every open comes here, and an open for writing is refused unless the caller is a writer. So the pages of a mapped
  file, which the kernel sends later and in nobody's name, were judged when the file was opened.
- A lock (`core/layouts.py` says which files are locks) appears open to all. Everybody may open it for writing, and
  truncate it if that changes nothing. A lock that does not exist is made in memory, with the folder `locks` that it may
  need (see `locks.py`), and never reaches the store.

Root is not a writer unless it is named as one.
"""

from __future__ import annotations

import copy
import errno
import os
import stat

from kcachefs.core.caller import Caller
from kcachefs.core.layouts import Kind
from kcachefs.core.options import FOREVER_SECONDS
from kcachefs.core.parts import Parts
from kcachefs.core.policies.locks import MemoryLocks
from kcachefs.core.policies.policy import Policy
from kcachefs.core.tree import Row, check_name
from kcachefs.errors import FsError
from kcachefs.store.inode_numbers import LOCK_BASE, VIRTUAL_BASE
from kcachefs.store.records import Inode

_LOCK_FOLDER = b"locks"


class ReadOnly(Policy):
    """What `--policy read-only` allows."""

    is_asked = True
    judges_opens = True
    allows_kept_listings = False
    withholds_writing = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        gone = parts.kernel.name_gone
        self._memory = MemoryLocks(parts.options.limits.account_of, lambda parent, name: gone(parent, name, parent))
        self._named_locks: set[int] = set()
        """Locks among the files of entries, as far as this worker has seen their names."""

    # --- who ----------------------------------------------------------------------------------------------------------

    def _is_writer(self, caller: Caller) -> bool:
        return self._options.sharing.is_writer(caller)

    def _refuse_change(self, caller: Caller) -> None:
        if not self._is_writer(caller):
            raise FsError(errno.EROFS, f"user {caller.uid} may not write to this mount")

    # --- what is seen -------------------------------------------------------------------------------------------------

    def find(self, caller: Caller, parent: int, name: bytes) -> int | None:
        if parent < LOCK_BASE:
            ino = self._tree.find(parent, name)
            if ino is not None:
                self._note_lock(parent, name, ino)
                return ino
        held = self._memory.find(parent, name)
        return self._memory.hold(held) if held is not None else None

    def node(self, ino: int) -> Inode:
        return self._memory.node(ino)

    def forget(self, ino: int, count: int) -> None:
        self._memory.forget(ino, count)

    def forgotten(self, ino: int) -> None:
        self._named_locks.discard(ino)

    def shown(self, ino: int, node: Inode) -> Inode:
        if ino >= VIRTUAL_BASE or not (node.is_dir or node.is_file):
            return node
        seen = copy.copy(node)
        if node.is_dir:
            seen.mode = stat.S_IFDIR | 0o777
        elif self._is_lock(ino, node):
            seen.mode |= 0o666
        else:
            seen.mode &= ~0o6022
        return seen

    def name_seconds(self, ino: int, node: Inode, usual: int) -> int:
        # Once another worker has taken over, only the kernel knows the lock: it must not ask us if the lock exists.
        return FOREVER_SECONDS if ino >= LOCK_BASE else usual

    def listing(self, ino: int, cookie: int, limit: int) -> list[Row]:
        if ino >= LOCK_BASE:
            rows = [(1, b".", ino, 4), (2, b"..", self._memory.node(ino).parent, 4)]
            return [row for row in rows if row[0] > cookie]
        rows = super().listing(ino, cookie, limit)
        for _, name, child, _ in rows:
            self._note_lock(ino, name, child)  # a listing may tell the kernel their modes
        return rows

    def _is_lock(self, ino: int, node: Inode) -> bool:
        if node.entry == 0:
            return self._membership.is_lock(ino, node)
        if ino in self._named_locks:
            return True
        if not self._options.resumed or ino in self._nodes.lookups:
            return False
        # The kernel got the file's name from an earlier worker.
        return any(self._is_named_lock(parent, name) for parent, name in self._walk.names_of([ino]).get(ino, []))

    def _note_lock(self, parent: int, name: bytes, ino: int) -> None:
        if ino < VIRTUAL_BASE and self._is_named_lock(parent, name):
            self._named_locks.add(ino)

    def _is_named_lock(self, parent: int, name: bytes) -> bool:
        return b"lock" in name and self._is_lock_place(parent, name)

    def _is_lock_place(self, parent: int, name: bytes) -> bool:
        return parent < VIRTUAL_BASE and self._placement.kind_at(parent, name, is_dir=False) is Kind.LOCK

    # --- names --------------------------------------------------------------------------------------------------------

    def make_in_memory(self, caller: Caller, parent: int, name: bytes, mode: int) -> tuple[int, Inode] | None:
        if self._is_writer(caller) and parent < LOCK_BASE:
            return None
        check_name(name)
        if parent < VIRTUAL_BASE and self._tree.find(parent, name) is not None:
            raise FsError(errno.EEXIST)
        is_lock = stat.S_ISREG(mode) and (parent >= LOCK_BASE or self._is_lock_place(parent, name))
        is_folder = stat.S_ISDIR(mode) and name == _LOCK_FOLDER and parent < VIRTUAL_BASE
        if not is_lock and not is_folder:
            self._refuse_change(caller)
            raise FsError(errno.EROFS, "a folder in memory holds only locks")
        return self._memory.make(caller, parent, name, mode)

    def remove_from_memory(self, caller: Caller, parent: int, name: bytes) -> bool:
        if self._memory.find(parent, name) is None:
            return False
        self._memory.remove(caller, parent, name)
        return True

    def authorize_link(self, caller: Caller, ino: int, parent: int, name: bytes) -> None:
        self._refuse_change(caller)

    def authorize_remove(self, caller: Caller, parent: int, name: bytes, *, is_dir: bool) -> None:
        self._refuse_change(caller)

    def authorize_rename(
        self, caller: Caller, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> bool:
        self._refuse_change(caller)
        return False

    # --- bytes and attributes -----------------------------------------------------------------------------------------

    def authorize_open(self, caller: Caller, ino: int, flags: int) -> bool:
        if flags & os.O_ACCMODE == os.O_RDONLY or ino >= VIRTUAL_BASE or self._is_writer(caller):
            return True
        if not self._is_lock(ino, self._nodes.get(ino)):
            self._refuse_change(caller)
        return False  # else all would read bytes written to a mapped lock, though they are never stored

    def authorize_write(self, caller: Caller, ino: int) -> None:
        if ino >= LOCK_BASE:
            return
        # A page of a mapped file was judged when the file was opened; but everybody may open a lock.
        may = self._is_writer(caller) if caller.is_known else not self._is_lock(ino, self._nodes.get(ino))
        if not may:
            raise FsError(errno.EROFS, f"user {caller.uid} may not write to this mount")

    def authorize_change(self, caller: Caller, ino: int, *, size: int | None, owner: bool) -> None:
        if ino >= VIRTUAL_BASE:
            return
        is_lock = self._is_lock(ino, self._nodes.get(ino))
        if not is_lock or size not in (None, self._files.attributes(ino).size):
            self._refuse_change(caller)

    def authorize_allocate(self, caller: Caller, ino: int) -> None:
        if ino >= LOCK_BASE:
            raise FsError(errno.EOPNOTSUPP)
        self._refuse_change(caller)  # even for a lock, though its size may be set to what it is already

    def ignores_changes(self, caller: Caller, ino: int) -> bool:
        return not self._is_writer(caller) and self._is_lock(ino, self._nodes.get(ino))
