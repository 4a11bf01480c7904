"""Quotas per user: a user who is above the limit, and has nothing left to evict, can write no more.

The evictor makes the room (`eviction.py`); here the requests of users for whom it could not make any are refused.
"""

from __future__ import annotations

import errno

from kcachefs.core.files import KEEP_SIZE, PUNCH_HOLE, Files
from kcachefs.core.nodes import Nodes
from kcachefs.core.room import Room
from kcachefs.errors import FsError
from kcachefs.store.inode_numbers import VIRTUAL_BASE


class UserQuotas:
    """Refuses with EDQUOT what would grow the files of a user who exceeds `--max-size-per-uid`."""

    def __init__(self, nodes: Nodes, files: Files, room: Room) -> None:
        self._nodes = nodes
        self._files = files
        self._room = room

    @property
    def _limit(self) -> int:
        return self._room.limits.max_size_per_uid

    def check_user(self, uid: int) -> None:
        if uid in self._room.exhausted:
            raise FsError(errno.EDQUOT, f"user {uid} holds more than --max-size-per-uid, and nothing can be evicted")

    def check_owner(self, ino: int) -> None:
        """A file is about to grow by a little."""
        if ino < VIRTUAL_BASE:
            self.check_user(self._nodes.get(ino).uid)

    def check_size(self, ino: int, size: int) -> None:
        """A file is about to be made that large."""
        if self._limit and ino < VIRTUAL_BASE:
            node = self._files.attributes(ino)
            if size > node.size:
                self.check_user(node.uid)
                self._check_amount(node.uid, size - node.size)

    def check_allocation(self, ino: int, mode: int, offset: int, length: int) -> None:
        if self._limit and ino < VIRTUAL_BASE:
            node = self._files.attributes(ino)
            if mode & KEEP_SIZE and not mode & PUNCH_HOLE and offset + length > node.size:
                raise FsError(errno.EOPNOTSUPP, "space allocated beyond a file's end would be on nobody's account")
            self._check_amount(node.uid, 0 if mode & PUNCH_HOLE else length)

    def _check_amount(self, uid: int, size: int) -> None:
        if size > self._limit:
            raise FsError(errno.EDQUOT, f"user {uid} asks for more than --max-size-per-uid at once")
