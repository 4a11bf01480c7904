"""Guests: files that a user has in another's entry, where nobody may take away what others have published.

An entry is one user's, that of its first sealed file. When that user holds too much, it goes; but under `publish` it
must not take along what others have in it. Otherwise whoever is first in an entry, and then overfills their own quota,
could have others' files evicted and publish other bytes under their names. So only the user's own files go, and what is
left is an entry of a guest's.

Called by the evictor, in its thread; hold no lock.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator

from kcachefs.core.accounts import Accounts
from kcachefs.core.parts import Parts
from kcachefs.core.removal import PIECE
from kcachefs.core.walk import Member, Name
from kcachefs.errors import FsError
from kcachefs.store.records import Inode


class Guests:
    """Finds and spares them in one filesystem."""

    def __init__(self, parts: Parts, accounts: Accounts, name_gone: Callable[[int, bytes], None]) -> None:
        self._account_of = accounts.of
        self._nodes = parts.nodes
        self._tree = parts.tree
        self._walk = parts.walk
        self._table = parts.table
        self._remover = parts.remover
        self._temporaries = parts.temporaries
        self._name_gone = name_gone

    def are_among(self, entry: int, members: Iterable[Member]) -> bool:
        """Whether any of these inodes of an entry is a file of others than whose the entry is."""
        if (record := self._table.get(entry)) is None:
            return False
        account = self._account_of(record.uid)
        return any(self._account_of(node.uid) != account for _, node in self._files(members))

    def leave_alone(self, entry: int, names: list[Name], *, doom: bool) -> bool:
        """Take away what is the entry's owner's, and hand the entry over to a guest. Returns whether anything went."""
        if (record := self._table.get(entry)) is None:
            return False
        account = self._account_of(record.uid)
        files = list(self._files(self._walk.members(entry, names)))
        own = [member for member, node in files if self._account_of(node.uid) == account]
        own = [member for member in own if member[0] not in self._temporaries.inodes]
        for start in range(0, len(own), PIECE):
            with self._nodes.change() as txn:
                piece = [one for one in own[start : start + PIECE] if self._tree.find(*one[1:]) == one[0]]
                if doom:
                    self._remover.mark_doomed(piece)
                self._tree.remove_all(txn, piece)
            for _, parent, name in piece:
                self._name_gone(parent, name)
            self._remover.breathe()
        guests = [node.uid for _, node in files if self._account_of(node.uid) != account]
        with self._nodes.change() as txn:
            if guests and (record := self._table.get(entry, txn)) is not None:
                left = copy.copy(record)
                left.uid = guests[0]
                self._table.put(txn, entry, record, left)
        return bool(own)

    def _files(self, members: Iterable[Member]) -> Iterator[tuple[Member, Inode]]:
        for member in members:
            with contextlib.suppress(FsError):  # it went meanwhile
                node = self._nodes.get(member[0])
                if node.is_file:
                    yield member, node
