"""Read-only: nobody but the writers changes anything, and yet locks can be taken.

It is no read-only mount to the kernel, which would refuse to open a lock for writing; TorchInductor does so even when
it finds everything. Instead:

- Folders appear open to all, so that every request to change one comes here and is answered EROFS, unless the caller
  is a writer. Files appear writable by their owner alone.
- Every open comes here, and one for writing is refused to who is no writer. So pages of a map, which the kernel sends
  later and in nobody's name, have been judged when the file was opened.
- A lock (`core/layouts.py` says what is one) appears open to all. It may be opened for writing and truncated when it is
  empty already. One that does not exist is made in memory, with the folder `locks` that it may need: see `locks.py`.
  Nothing of that reaches the store.

Root is not a writer unless it is named.
"""

from __future__ import annotations

import copy
import errno
import os
import stat
from typing import Unpack

from kcachefs.core.filesystem import FOREVER_SECONDS, UNKNOWN, AttributeChanges, Filesystem, FsOptions
from kcachefs.core.layouts import Kind
from kcachefs.core.policies.locks import LOCK_BASE, LOCK_END, MemoryLocks
from kcachefs.core.report import VIRTUAL_BASE
from kcachefs.core.tree import check_name
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.records import Inode

_LOCK_FOLDER = b"locks"


class ReadOnly(Filesystem):
    """What `--policy read-only` serves."""

    judges_opens = True

    def __init__(self, store: Store, options: FsOptions) -> None:
        self._memory = MemoryLocks()
        self._named_locks: set[int] = set()
        """Locks that stand among the files of an entry, as far as this worker was asked for their names."""
        super().__init__(store, options)

    # --- who ----------------------------------------------------------------------------------------------------------

    def _is_writer(self) -> bool:
        return self.options.sharing.is_writer(self.uid, self.gid, self.pid)

    def _refuse_change(self) -> None:
        if not self._is_writer():
            raise FsError(errno.EROFS, f"user {self.uid} is no writer of this mount")

    def _may_write(self, ino: int) -> bool:
        if self.uid == UNKNOWN:  # judged by `may_open`, which lets everybody open a lock
            return ino >= VIRTUAL_BASE or not self._is_lock(ino, self.nodes.get(ino))
        return self._is_writer()

    # --- what is seen -------------------------------------------------------------------------------------------------

    def attributes(self, ino: int) -> Inode:
        return self.shown(ino, self._memory.node(ino)) if LOCK_BASE <= ino < LOCK_END else super().attributes(ino)

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

    def _is_lock(self, ino: int, node: Inode) -> bool:
        if node.entry == 0:
            return self.entries.is_lock(ino, node)
        if ino in self._named_locks:
            return True
        if not self.options.resumed or ino in self.nodes.lookups:
            return False
        # The kernel has its name from an earlier worker.
        return any(self._is_named_lock(parent, name) for parent, name in self.tree.names_of(ino))

    def lookup(self, parent: int, name: bytes) -> int | None:
        if parent < LOCK_BASE:
            ino = super().lookup(parent, name)
            if ino is not None:
                self._note_lock(parent, name, ino)
                return ino
        held = self._memory.find(parent, name)
        return self._memory.found(held) if held is not None else None

    def _note_lock(self, parent: int, name: bytes, ino: int) -> None:
        if ino < VIRTUAL_BASE and self._is_named_lock(parent, name):
            self._named_locks.add(ino)

    def _is_named_lock(self, parent: int, name: bytes) -> bool:
        return b"lock" in name and self._is_lock_place(parent, name)

    def _is_lock_place(self, parent: int, name: bytes) -> bool:
        return parent < VIRTUAL_BASE and self.entries.kind_at(parent, name, is_dir=False) is Kind.LOCK

    def name_seconds(self, ino: int, node: Inode) -> int:
        # Known to the kernel alone once we are replaced: it must not ask whether they are still there.
        return FOREVER_SECONDS if ino >= LOCK_BASE else super().name_seconds(ino, node)

    def forget(self, ino: int, count: int) -> None:
        if ino >= LOCK_BASE:
            self._memory.forget(ino, count)
            return
        super().forget(ino, count)
        if ino not in self.nodes.lookups:
            self._named_locks.discard(ino)

    def listing(self, ino: int, cookie: int, limit: int) -> list[tuple[int, bytes, int, int]]:
        if ino >= LOCK_BASE:
            rows = [(1, b".", ino, 4), (2, b"..", self._memory.node(ino).parent, 4)]
            return [row for row in rows if row[0] > cookie]
        rows = super().listing(ino, cookie, limit)
        for _, name, child, _ in rows:
            self._note_lock(ino, name, child)  # a listing may tell the kernel their modes
        return rows

    def read(self, ino: int, offset: int, size: int) -> bytes:
        return self._memory.read(ino, offset, size) if ino >= LOCK_BASE else super().read(ino, offset, size)

    # --- what is changed ----------------------------------------------------------------------------------------------

    def make(
        self, parent: int, name: bytes, mode: int, uid: int, gid: int, rdev: int = 0, target: bytes = b""
    ) -> tuple[int, Inode]:
        if self._is_writer() and parent < LOCK_BASE:
            return super().make(parent, name, mode, uid, gid, rdev, target)
        self._refuse_all_but_locks(parent, name, mode)
        return self._make_lock(parent, name, mode, uid, gid)

    def create(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> tuple[int, Inode]:
        if self._is_writer() and parent < LOCK_BASE:
            return super().create(parent, name, mode, uid, gid)
        self._refuse_all_but_locks(parent, name, stat.S_IFREG)
        return self._make_lock(parent, name, stat.S_IFREG, uid, gid)

    def _make_lock(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> tuple[int, Inode]:
        ino, node = self._memory.make(parent, name, mode, uid, gid)
        return ino, self.shown(ino, node)

    def _refuse_all_but_locks(self, parent: int, name: bytes, mode: int) -> None:
        check_name(name)
        if parent < VIRTUAL_BASE and self.tree.find(parent, name) is not None:
            raise FsError(errno.EEXIST)
        is_lock = stat.S_ISREG(mode) and (parent >= LOCK_BASE or self._is_lock_place(parent, name))
        is_folder = stat.S_ISDIR(mode) and name == _LOCK_FOLDER and parent < VIRTUAL_BASE
        if not is_lock and not is_folder:
            self._refuse_change()
            raise FsError(errno.EROFS, "a folder in memory holds locks alone")

    def link(self, ino: int, parent: int, name: bytes) -> Inode:
        self._refuse_change()
        return super().link(ino, parent, name)

    def unlink(self, parent: int, name: bytes) -> None:
        if self._memory.find(parent, name) is not None:
            self._memory.remove(parent, name, self.uid)
            return
        self._refuse_change()
        super().unlink(parent, name)

    def rmdir(self, parent: int, name: bytes) -> None:
        self._refuse_change()
        super().rmdir(parent, name)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        self._refuse_change()
        super().rename(parent, name, new_parent, new_name, flags)

    def may_open(self, ino: int, flags: int) -> bool:
        if flags & os.O_ACCMODE == os.O_RDONLY or ino >= VIRTUAL_BASE or self._is_writer():
            return True
        if not self._is_lock(ino, self.nodes.get(ino)):
            self._refuse_change()
        return False  # what is put into a map of a lock would be read by all, though it is never stored

    def may_change(self, ino: int, *, size: int | None = None, owner: bool = False) -> None:
        is_harmless = ino >= VIRTUAL_BASE or (
            self._is_lock(ino, self.nodes.get(ino)) and size in (None, self.attributes(ino).size)
        )
        if not is_harmless:
            self._refuse_change()
        super().may_change(ino, size=size, owner=owner)

    def is_quick_to_change(self, ino: int) -> bool:
        if ino >= LOCK_BASE or self._is_lock(ino, self.nodes.get(ino)):
            return True  # `set_attributes` has to know who asks
        return super().is_quick_to_change(ino)

    def is_quick_to_write(self, ino: int) -> bool:
        if LOCK_BASE <= ino < LOCK_END:
            return True
        if not self._may_write(ino):
            raise FsError(errno.EROFS, f"user {self.uid} is no writer of this mount")
        return super().is_quick_to_write(ino)

    def write(self, ino: int, offset: int, data: bytes | memoryview) -> int:
        if LOCK_BASE <= ino < LOCK_END:
            return self._memory.write(ino, offset, bytes(data))
        return super().write(ino, offset, data)

    def is_quick_to_allocate(self, ino: int, length: int) -> bool:
        if ino >= LOCK_BASE:
            return True
        self._refuse_change()  # of a lock too, though it may be resized to what it is
        return super().is_quick_to_allocate(ino, length)

    def fallocate(self, ino: int, mode: int, offset: int, length: int) -> None:
        if ino >= LOCK_BASE:
            raise FsError(errno.EOPNOTSUPP)
        super().fallocate(ino, mode, offset, length)

    def set_attributes(self, ino: int, **changes: Unpack[AttributeChanges]) -> Inode:
        if LOCK_BASE <= ino < LOCK_END:
            if (size := changes.get("size")) is not None:
                self._memory.truncate(ino, size)
            return self.attributes(ino)
        if ino < VIRTUAL_BASE and self._is_lock(ino, self.nodes.get(ino)) and not self._is_writer():
            return self.attributes(ino)  # nothing of it may change: see `may_change`
        return super().set_attributes(ino, **changes)
