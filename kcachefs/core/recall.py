"""The last change of names: which request made it and what came of it, written in the very transaction that made it.

A worker may die between a change and its reply. The kernel then sends the request again, marked, to the next worker;
carried out a second time it would find its own work done and fail with EEXIST or ENOENT. One answer is enough to
remember: an engine that can be resumed changes names one request at a time, and what it took and did not answer comes
again ahead of everything new.
"""

from __future__ import annotations

from kcachefs.errors import RecordDamaged
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.records import META_ANSWERED, pack_number, unpack_number


class Recall:
    """What the last request that changed a name came to."""

    def __init__(self, store: Store, *, resumed: bool) -> None:
        self._catalog = store.catalog
        self.request = 0
        """The number of the request at hand, if the kernel may send it again."""
        if not resumed and self._recorded() is not None:  # numbers begin anew with each mount
            with self._catalog.transaction() as txn:
                txn.delete(META_ANSWERED)

    def note(self, txn: Transaction, ino: int = 0) -> None:
        """This transaction is what the request at hand does; `ino` is the inode it gives back."""
        if self.request:
            txn.put(META_ANSWERED, pack_number(self.request) + pack_number(ino))

    def answer(self, request: int) -> int | None:
        """The inode that a request gave back, 0 if none; None when it did not take effect."""
        raw = self._recorded()
        return unpack_number(raw[8:]) if raw and unpack_number(raw[:8]) == request else None

    def _recorded(self) -> bytes | None:
        try:
            return self._catalog.get(META_ANSWERED)
        except RecordDamaged:
            return b""
