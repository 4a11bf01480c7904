"""Quotas per user: who is over their own, and can make no room, writes no more. Eviction itself is the evictor's."""

from __future__ import annotations

import errno

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

    def _refuse_exhausted(self, uid: int) -> None:
        if uid in self.evictor.exhausted:
            raise FsError(errno.EDQUOT, f"user {uid} holds more than --max-size-per-uid, and nothing can be evicted")
