"""The replay guard: which request made the last change of names, and how it was answered.

A worker may die between a change and its reply. The kernel then sends the request again to the next worker; carried
out twice, it would find its own work done and fail with EEXIST or ENOENT. So each change of names is recorded in the
transaction that makes it. One record is enough: an engine that can be resumed changes names one request at a time,
and the requests that it took and did not answer come again before any new one. The exception is a rename that has to
sync something first, because another thread carries it out. If another change of names comes between such a rename and
its reply, and the worker dies before the reply, the caller of the rename gets ENOENT.
"""

from __future__ import annotations

from kcachefs.core.caller import Caller
from kcachefs.errors import RecordDamaged
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.records import META_ANSWERED, pack_pair, unpack_number


class ReplayGuard:
    """The answer to the last request that changed a name."""

    def __init__(self, store: Store, *, resumed: bool) -> None:
        self._catalog = store.catalog
        if not resumed and self._recorded() is not None:  # request numbers start afresh with each mount
            with self._catalog.transaction() as txn:
                txn.delete(META_ANSWERED)

    def note(self, txn: Transaction, caller: Caller, ino: int = 0) -> None:
        """Note that this transaction carries out the caller's request; `ino` is the inode in the reply."""
        if caller.request:
            txn.put(META_ANSWERED, pack_pair(caller.request, ino))

    def answer(self, request: int) -> int | None:
        """The inode in the reply to a request, 0 if it has none; None if the request did not take effect."""
        raw = self._recorded()
        return unpack_number(raw[8:]) if raw and unpack_number(raw[:8]) == request else None

    def _recorded(self) -> bytes | None:
        try:
            return self._catalog.get(META_ANSWERED)
        except RecordDamaged:
            return b""
