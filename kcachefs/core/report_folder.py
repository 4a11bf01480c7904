"""The `.kcachefs` folder in every mount's root, for users who have the mount but not the command.

Its files are made when they are looked up, each time under a new inode number: the kernel keeps the pages of an inode
that it knows, and would show the numbers of an hour ago. Reports that take long are made in another thread, one at a
time: a user who asks in a loop must not keep the others' requests waiting. Such files are not listed, so that a program
that goes through all folders does not ask for them.
"""

from __future__ import annotations

import errno
import itertools
import stat
import threading
import time
from collections.abc import Callable

from kcachefs import reports
from kcachefs.bounded import BoundedDict
from kcachefs.core.caller import Caller
from kcachefs.core.nodes import new_inode
from kcachefs.errors import FsError
from kcachefs.store.inode_numbers import REPORT_INO, ROOT_INO, above_earlier_workers
from kcachefs.store.records import Inode

FOLDER = reports.FOLDER.encode()
_KEPT = 64
"""Snapshots kept for processes that have looked a file up and not yet read it."""

_LARGE_KEPT = 8
"""The same for the slow files, which may be large."""

_WAITING_MAX = 64
"""Users who can be waiting for a slow report at a time."""

_WAIT_SECONDS = 1.0
"""A user who has not asked again for this long is no longer waiting."""

Form = Callable[[Caller], bytes]
"""What a file holds for a caller."""

NumberedForm = Callable[[Caller, int], bytes]
"""What a file with a number in its name holds for a caller."""


class ReportFolder:
    """The virtual folder: its inodes, and what its files held when they were looked up."""

    def __init__(self, uid: int, gid: int) -> None:
        self._folder = new_inode(stat.S_IFDIR | 0o555, uid, gid, ROOT_INO)
        self._folder.nlink = 2
        self._numbers = itertools.count(above_earlier_workers(REPORT_INO + 1))
        self._snapshots: BoundedDict[int, tuple[Inode, bytes]] = BoundedDict(_KEPT)
        self._large: BoundedDict[int, tuple[Inode, bytes]] = BoundedDict(_LARGE_KEPT)
        self._turn = threading.Lock()
        self._is_making = False
        self._waiting: dict[int, float] = {}
        """When each user who was refused last asked; the first of them is the next to have a turn."""
        self._files: dict[bytes, Form] = {}
        self._slow_files: dict[bytes, Form] = {}
        self._numbered_files: dict[bytes, NumberedForm] = {}

    def add(
        self,
        files: dict[bytes, Form] | None = None,
        slow: dict[bytes, Form] | None = None,
        numbered: dict[bytes, NumberedForm] | None = None,
    ) -> None:
        """Offer more files, by name. Before the first request.

        Everyone finds `files` by listing the folder. The others are found only by name, and not made in the thread that
        answers requests; `numbered` are named WORD.NUMBER.json, and given here by their word.
        """
        self._files |= files or {}
        self._slow_files |= slow or {}
        self._numbered_files |= numbered or {}

    def takes_long(self, name: bytes) -> bool:
        return name in self._slow_files or self._numbered(name) is not None

    def _numbered(self, name: bytes) -> Form | None:
        parts = name.split(b".")
        form = self._numbered_files.get(parts[0])
        if form is None or len(parts) != 3 or parts[2] != b"json" or not (parts[1].isdigit() and len(parts[1]) < 20):
            return None
        number = int(parts[1])
        return lambda caller: form(caller, number)

    def find(self, caller: Caller, name: bytes) -> int | None:
        """A snapshot of the file of that name as the caller may see it, under a number of its own."""
        slow = self._slow_files.get(name) or self._numbered(name)
        if slow is not None:
            content = self._make_slowly(caller, slow)
        elif name in self._files:
            content = self._files[name](caller)
        else:
            return None
        node = new_inode(stat.S_IFREG | 0o444, self._folder.uid, self._folder.gid, REPORT_INO)
        node.size = len(content)
        ino = next(self._numbers)
        (self._large if slow is not None else self._snapshots)[ino] = (node, content)
        return ino

    def _make_slowly(self, caller: Caller, form: Form) -> bytes:
        if not self._take_turn(caller.uid):
            raise FsError(errno.EAGAIN, "another report is being made; ask again")
        try:
            return form(caller)
        finally:
            with self._turn:
                self._is_making = False

    def _take_turn(self, uid: int) -> bool:
        """Users have their turns in the order in which they first asked: one who asks in a loop delays nobody twice."""
        with self._turn:
            now = time.monotonic()
            waiting = {one: asked for one, asked in self._waiting.items() if now - asked < _WAIT_SECONDS}
            is_next = not self._is_making and next(iter(waiting), uid) == uid
            if is_next:
                self._is_making = True
                waiting.pop(uid, None)
            elif uid in waiting or len(waiting) < _WAITING_MAX:
                waiting[uid] = now
            self._waiting = waiting
            return is_next

    def node(self, ino: int) -> Inode | None:
        if ino == REPORT_INO:
            return self._folder
        found = self._snapshots.get(ino) or self._large.get(ino)
        return found[0] if found is not None else None

    def read(self, ino: int, offset: int, size: int) -> bytes:
        found = self._snapshots.get(ino) or self._large.get(ino)
        if found is None:  # another worker made it, or it was made long ago
            raise FsError(errno.ESTALE, "the report is no longer known; open it again")
        return found[1][offset : offset + size]

    def listing(self, cookie: int) -> list[tuple[int, bytes, int, int]]:
        now = [(1, b".", REPORT_INO, 4), (2, b"..", ROOT_INO, 4)]
        now += [(3 + index, name, REPORT_INO + 1, 8) for index, name in enumerate(self._files)]
        return [row for row in now if row[0] > cookie]

    def forget(self, ino: int) -> None:
        self._snapshots.pop(ino, None)
        self._large.pop(ino, None)
