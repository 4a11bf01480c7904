"""Quotas per user: a write that would exceed `--max-size-per-uid` waits for the evictor, and is refused if that fails.

A write waits, off the thread that answers requests, until the evictor has made room among the owner's own entries, and
fails with EDQUOT if the evictor cannot. A request that makes a name cannot wait, so it may exceed the quota by `SLACK`.

Nobody spends another's quota: only the file's owner, root and the mount's owner can make a file cost more. Others can
write within its size, and up to `FREE_BYTES` in any case, which is more than a lock needs.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator

from kcachefs.core.accounts import FREE_BYTES, INODE_BYTES, Accounts
from kcachefs.core.caller import Caller
from kcachefs.core.files import KEEP_SIZE, PUNCH_HOLE, Files
from kcachefs.core.nodes import Nodes
from kcachefs.core.room import WAIT_SECONDS, Room
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.records import Content, Inode

MUCH = 64 << 10
"""Before a file is made larger by more than this, the limits are checked."""
SLACK = 1 / 8
"""How far names may exceed a quota between two turns of the evictor, as a part of the quota."""


class UserQuotas:
    """The quotas of a mount that has them; another mount has no object of this class."""

    def __init__(
        self, store: Store, nodes: Nodes, files: Files, room: Room, accounts: Accounts, trusted: frozenset[int]
    ) -> None:
        """`trusted`: the users who may make others' files larger."""
        self._objects = store.objects
        self._nodes = nodes
        self._files = files
        self._room = room
        self.accounts = accounts
        self._trusted = trusted

    @property
    def limit(self) -> int:
        return self._room.limits.max_size_per_uid

    # --- names: they cannot wait --------------------------------------------------------------------------------------

    def check_new(self, caller: Caller, size: int = 0) -> None:
        """The caller is about to make an inode; `size` is that of a symbolic link's target."""
        self._check_at_once(self.accounts.of(caller.uid), INODE_BYTES + 2 * size)

    def check_link(self, caller: Caller, ino: int) -> None:
        """An inode is about to get another name."""
        node = self._nodes.get(ino)
        if self._is_stranger(caller, node):
            raise FsError(errno.EPERM, f"another name would be charged to user {node.uid}")
        self._check_at_once(self.accounts.of(node.uid), INODE_BYTES)

    def check_size(self, caller: Caller, ino: int, size: int) -> None:
        """A file is about to be given this size."""
        node = self._files.attributes(ino)
        growth = self._growth(node, size)
        if growth > 0:
            _refuse_doomed(node)
            self._check_stranger(caller, node, size)
            account = self.accounts.of(node.uid)
            if growth > MUCH:
                self._room.check()
            if account in self._room.above_fair_share and not self._room.has_room.is_set():
                raise _crowding(account)
            self._check_at_once(account, growth)

    def _check_at_once(self, account: int, growth: int) -> None:
        self._check_barred(account)
        total = self.accounts.total(account) + growth
        if total > self.limit and (account in self._room.exhausted or total > self.limit * (1 + SLACK)):
            raise _refusal(account)

    # --- bytes: they wait ---------------------------------------------------------------------------------------------

    def authorize_write(self, caller: Caller, ino: int, end: int) -> None:
        """Refuse a write up to `end` if waiting would not help it."""
        node = self._files.attributes(ino)
        growth = self._growth(node, max(end, node.size))
        if growth > 0:
            _refuse_doomed(node)
            self._check_stranger(caller, node, max(end, node.size))
            account = self.accounts.of(node.uid)
            self._check_barred(account)
            if growth > self.limit:
                raise FsError(errno.EDQUOT, f"user {node.uid} asks for more than --max-size-per-uid at once")
            if account in self._room.exhausted and self.accounts.total(account) + growth > self.limit:
                raise _refusal(account)

    def check_allocation(self, caller: Caller, ino: int, mode: int, offset: int, length: int) -> None:
        node = self._files.attributes(ino)
        if mode & PUNCH_HOLE:
            if _unseals(node, offset, length):
                self.authorize_write(caller, ino, node.size)
            return
        if mode & KEEP_SIZE and offset + length > node.size:
            raise FsError(errno.EOPNOTSUPP, "space allocated beyond a file's end would be charged to nobody")
        self.authorize_write(caller, ino, offset + length)

    def fits(self, ino: int, end: int) -> bool:
        """Whether a write up to `end` need not wait."""
        node = self._files.attributes(ino)
        growth = self._growth(node, max(end, node.size))
        return growth <= 0 or self.accounts.total(self.accounts.of(node.uid)) + growth <= self.limit

    @contextlib.contextmanager
    def room_for(self, ino: int, end: int) -> Iterator[None]:
        """Wait until there is room for a write up to `end`, and keep it free while the write is made."""
        node = self._files.attributes(ino)
        account, growth = self.accounts.of(node.uid), self._growth(node, max(end, node.size))
        if growth <= 0:
            yield
            return
        self._wait(account, growth)
        try:
            yield
        finally:
            self.accounts.release(account, growth)

    def room_for_hole(self, ino: int, offset: int, length: int) -> contextlib.AbstractContextManager[None]:
        """The same before a hole is punched."""
        node = self._files.attributes(ino)
        return self.room_for(ino, node.size) if _unseals(node, offset, length) else contextlib.nullcontext()

    def _wait(self, account: int, growth: int) -> None:
        if self.accounts.reserve(account, growth, self.limit):
            return
        until = time.monotonic() + self._room.patience_seconds
        with self.accounts.wanting(account, growth):
            while not self.accounts.reserve(account, growth, self.limit):
                if account in self._room.exhausted or time.monotonic() > until:
                    raise _refusal(account)
                time.sleep(WAIT_SECONDS)

    def check_barred(self, uid: int) -> None:
        """Refuse to let this user's files grow if the user holds more than an equal part of a full store."""
        self._check_barred(self.accounts.of(uid))

    def _check_barred(self, account: int) -> None:
        if account in self._room.barred:
            raise _crowding(account)

    # --- who ----------------------------------------------------------------------------------------------------------

    def _growth(self, node: Inode, size: int) -> int:
        """How much more a file costs once it has this size and is not sealed."""
        if node.content != Content.OBJECT:
            return size - node.size
        record = self._objects.record(node.digest)
        return size - min(node.size, record.length if record is not None else 0)

    def _check_stranger(self, caller: Caller, node: Inode, size: int) -> None:
        if size > FREE_BYTES and self._is_stranger(caller, node):
            raise FsError(errno.EDQUOT, f"what user {caller.uid} writes would be charged to user {node.uid}")

    def _is_stranger(self, caller: Caller, node: Inode) -> bool:
        if not caller.is_known or caller.uid in self._trusted:
            return False
        return self.accounts.of(caller.uid) != self.accounts.of(node.uid)


def _unseals(node: Inode, offset: int, length: int) -> bool:
    """Whether a hole brings a file back from its object, so that the rest of it costs more than it did compressed."""
    return node.content == Content.OBJECT and not (offset == 0 and length >= node.size)


def _refuse_doomed(node: Inode) -> None:
    if node.flags & Inode.DOOMED:  # what it grows by would be charged to nobody
        raise FsError(errno.EDQUOT, f"the file was evicted while it was open, for user {node.uid}'s quota")


def _crowding(account: int) -> FsError:
    return FsError(errno.EDQUOT, f"the store is full, and user {account} holds more than an equal part of it")


def _refusal(account: int) -> FsError:
    return FsError(
        errno.EDQUOT, f"user {account} holds as much as --max-size-per-uid allows, and nothing can be evicted"
    )
