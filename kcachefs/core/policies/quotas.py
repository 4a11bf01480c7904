"""Quotas per user: who is over their own, and can make no room, writes no more. Eviction itself is the evictor's."""

from __future__ import annotations

import errno

from kcachefs.core.files import KEEP_SIZE, PUNCH_HOLE
from kcachefs.core.filesystem import Filesystem
from kcachefs.core.report import VIRTUAL_BASE
from kcachefs.errors import FsError
from kcachefs.store.records import Inode


class Quotas(Filesystem):
    """Answers EDQUOT to users who hold more than their share and have nothing left that could be evicted."""

    def create(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> tuple[int, Inode]:
        self._refuse_exhausted(uid)
        return super().create(parent, name, mode, uid, gid)

    def is_quick_to_write(self, ino: int) -> bool:
        if self.evictor.exhausted and ino < VIRTUAL_BASE:
            self._refuse_exhausted(self.nodes.get(ino).uid)
        return super().is_quick_to_write(ino)

    def may_change(self, ino: int, *, size: int | None = None, owner: bool = False) -> None:
        super().may_change(ino, size=size, owner=owner)
        if size and ino < VIRTUAL_BASE:
            node = self.files.attributes(ino)
            if size > node.size:
                self._refuse_exhausted(node.uid)
                self._refuse_much(node.uid, size - node.size)

    def fallocate(self, ino: int, mode: int, offset: int, length: int) -> None:
        if mode & KEEP_SIZE and not mode & PUNCH_HOLE and offset + length > self.files.attributes(ino).size:
            raise FsError(errno.EOPNOTSUPP, "what is allocated behind a file's end would be on nobody's account")
        self._refuse_much(self.nodes.get(ino).uid, 0 if mode & PUNCH_HOLE else length)
        super().fallocate(ino, mode, offset, length)

    def refuse_piece(self, ino: int) -> None:
        self._refuse_exhausted(self.nodes.get(ino).uid)
        super().refuse_piece(ino)

    def _refuse_much(self, uid: int, size: int) -> None:
        if size > self.options.limits.max_size_per_uid:
            raise FsError(errno.EDQUOT, f"user {uid} asks for more than --max-size-per-uid at once")

    def _refuse_exhausted(self, uid: int) -> None:
        if uid in self.evictor.exhausted:
            raise FsError(errno.EDQUOT, f"user {uid} holds more than --max-size-per-uid, and nothing can be evicted")
