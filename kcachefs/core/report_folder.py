"""The `.kcachefs` folder in every mount's root, for users who have the mount but not the command.

Its files are made when they are looked up, each time under a new inode number: the kernel keeps the pages of an inode
that it knows, and would show the numbers of an hour ago. Reports that take long are made in another thread, one at a
time: a user who asks in a loop must not keep the others' requests waiting. Such files are not listed, so that a program
that goes through all folders does not ask for them.
"""

from __future__ import annotations

import errno
import itertools
import math
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

WAIT_SECONDS = 1.0
"""A user who has not asked again for this long, and could have, is no longer waiting."""

READ_SECONDS = 0.5
"""How long a user may take to read a slow report before others have their turn."""

Form = Callable[[Caller], bytes]
"""What a file holds for a caller."""

NumberedForm = Callable[[Caller, int], bytes]
"""What a file with a number in its name holds for a caller."""


class _Turns:
    """Whose turn it is to have a slow report made; the caller holds a lock.

    Users have their turns in the order in which they first asked, so one who asks in a loop delays nobody twice. Until
    the report is read, a turn is two lookups: if the kernel still has the name of an earlier report, it looks the name
    up, sees that another file has it now, drops what it found, and looks it up again.
    """

    def __init__(self) -> None:
        self._is_making = False
        self._kept_for: int | None = None
        """The user who may look up once more."""
        self._ended = -math.inf
        """When the last report was made."""
        self._waiting: dict[int, float] = {}
        """When each user who was refused last asked; the first of them is the next to have a turn."""

    def take(self, uid: int, now: float) -> bool:
        """Whether a user may have a report made now; if not, they wait for their turn from now on."""
        is_again = self._kept_for == uid
        if self._is_making:
            is_next = False
        elif self._kept_for is not None and now - self._ended < READ_SECONDS:
            is_next = is_again
        else:
            waiting = self._waiting.items()
            self._waiting = {one: asked for one, asked in waiting if now - max(asked, self._ended) < WAIT_SECONDS}
            is_next, is_again = next(iter(self._waiting), uid) == uid, False
        if is_next:
            self._is_making, self._kept_for = True, None if is_again else uid
            self._waiting.pop(uid, None)
        elif uid in self._waiting or len(self._waiting) < _WAITING_MAX:
            self._waiting[uid] = now
        return is_next

    def end(self, now: float, is_made: bool) -> None:
        """A report was made, or failed."""
        self._is_making, self._ended = False, now
        if not is_made:
            self._kept_for = None

    def was_read(self) -> None:
        """The last report has reached its reader."""
        if not self._is_making:
            self._kept_for = None


class ReportFolder:
    """The virtual folder: its inodes, and what its files held when they were looked up."""

    def __init__(self, uid: int, gid: int) -> None:
        self._folder = new_inode(stat.S_IFDIR | 0o555, uid, gid, ROOT_INO)
        self._folder.nlink = 2
        self._numbers = itertools.count(above_earlier_workers(REPORT_INO + 1))
        self._snapshots: BoundedDict[int, tuple[Inode, bytes]] = BoundedDict(_KEPT)
        self._large: BoundedDict[int, tuple[Inode, bytes]] = BoundedDict(_LARGE_KEPT)
        self._turn = threading.Lock()
        self._turns = _Turns()
        self._unread = 0
        """The newest slow report."""
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
        if slow is not None:
            self._large[ino] = (node, content)
            self._unread = ino
        else:
            self._snapshots[ino] = (node, content)
        return ino

    def _make_slowly(self, caller: Caller, form: Form) -> bytes:
        with self._turn:
            may = self._turns.take(caller.uid, time.monotonic())
        if not may:
            raise FsError(errno.EAGAIN, "another report is being made, or is another user's turn; ask again")
        is_made = False
        try:
            content = form(caller)
            is_made = True
            return content
        finally:
            with self._turn:
                self._turns.end(time.monotonic(), is_made)

    def node(self, ino: int) -> Inode | None:
        if ino == REPORT_INO:
            return self._folder
        found = self._snapshots.get(ino) or self._large.get(ino)
        return found[0] if found is not None else None

    def read(self, ino: int, offset: int, size: int) -> bytes:
        found = self._snapshots.get(ino) or self._large.get(ino)
        if found is None:  # another worker made it, or it was made long ago
            raise FsError(errno.ESTALE, "the report is no longer known; open it again")
        if ino == self._unread:
            with self._turn:
                self._turns.was_read()
        return found[1][offset : offset + size]

    def listing(self, cookie: int) -> list[tuple[int, bytes, int, int]]:
        now = [(1, b".", REPORT_INO, 4), (2, b"..", ROOT_INO, 4)]
        now += [(3 + index, name, REPORT_INO + 1, 8) for index, name in enumerate(self._files)]
        return [row for row in now if row[0] > cookie]

    def forget(self, ino: int) -> None:
        self._snapshots.pop(ino, None)
        self._large.pop(ino, None)
