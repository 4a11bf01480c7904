"""Uses in the future: entries that were used while the clock was ahead count as used now, in the same order.

Until they are moved, new uses are noted after the last one, by a clock of their own (`store/use_clock.py`): their order
is right, and only the times that people see are wrong. The order is sorted by time, so only its young end is read.
"""

from __future__ import annotations

import contextlib
import copy
import heapq
import logging
import time
from collections.abc import Iterator
from itertools import islice

from kcachefs.core.nodes import Nodes
from kcachefs.errors import NoSpace, RecordDamaged
from kcachefs.store import Store
from kcachefs.store.entry_records import NamespaceRecord, order_key, order_prefix, used_of
from kcachefs.store.entry_table import EntryTable
from kcachefs.store.records import number_of, unpack_number

log = logging.getLogger(__name__)

SLACK_NS = 1_000_000_000
"""How far ahead of the clock a use may be: a use at a time that another entry already has is moved on a little."""
EARLIEST_NS = 1_735_689_600 * 10**9
"""The beginning of 2025. A clock before that is itself wrong, as after a boot without a battery, and times that it
takes for future ones may be right."""
WATCHED_NS = 600 * 10**9
"""How long the clock must run without being set before we trust it. A clock that is behind until the network sets it
would take every use for a future one and move them all to its own wrong time."""
TURN = 2_000
"""The most entries that are moved in one turn: nobody should wait for a million of them."""
_CHUNK = 200
_PAGE = 64


class FutureUses:
    """Checks one filesystem's order of use when the store was just opened, and when the clock was set back."""

    def __init__(self, store: Store, nodes: Nodes, table: EntryTable) -> None:
        self._store = store
        self._nodes = nodes
        self._table = table
        self._is_due = True
        self._offset: int | None = None
        """How far the clock is from the monotonic one; `_steady_since` says since when."""
        self._steady_since = 0
        self._moved = 0
        table.clock.go_on_from(self._youngest())

    def settle(self) -> None:
        """Move uses in the future to now, if there may be any; many of them take several turns. Hold no lock."""
        now = time.time_ns()
        if now < EARLIEST_NS or not (self._is_due or self._table.is_ahead(now + SLACK_NS)):
            return
        self._is_due = True
        if not self._is_clock_steady(now):
            return
        with contextlib.suppress(NoSpace):  # then work that makes room goes first
            self._store.fold()
            self._table.turn_back(now)
            moved = self._move_all(now)
            self._table.correct_accounts(self._nodes.change, now, SLACK_NS)
            self._moved += moved
            self._is_due = moved == TURN
            if self._moved and not self._is_due:
                log.warning("the clock was ahead: %d last uses were in the future and count as of now", self._moved)
                self._moved = 0

    def _youngest(self) -> int:
        """The time of the last use of anything in the store."""
        youngest = 0
        for key in self._store.catalog.keys(b"c"):
            with contextlib.suppress(RecordDamaged):
                youngest = max(youngest, NamespaceRecord.unpack(self._store.catalog.get(key)).used)
        return youngest

    def _is_clock_steady(self, now: int) -> bool:
        monotonic = time.monotonic_ns()
        if self._offset is None or abs(now - monotonic - self._offset) > SLACK_NS:
            self._offset, self._steady_since = now - monotonic, monotonic
        return monotonic - self._steady_since >= WATCHED_NS

    def _move_all(self, now: int) -> int:
        namespaces = list(map(number_of, self._store.catalog.keys(b"c")))
        if not any(self._after(namespace, now + SLACK_NS, 1) for namespace in namespaces):
            return 0
        ahead = islice(heapq.merge(*(self._ahead(namespace, now) for namespace in namespaces)), TURN)
        moved = 0
        while chunk := list(islice(ahead, _CHUNK)):
            with self._nodes.change() as txn:
                for used, entry in chunk:
                    record = self._table.get(entry, txn)
                    if record is not None and record.used == used:  # not used again since
                        new = copy.copy(record)
                        new.used = self._table.next_order(now)
                        self._table.put(txn, entry, record, new)
            moved += len(chunk)
        return moved

    def _ahead(self, namespace: int, now: int) -> Iterator[tuple[int, int]]:
        """Times of use after `now`, each with the entry that was used then, the oldest first."""
        while rows := self._after(namespace, now, _PAGE):
            yield from rows
            now = rows[-1][0]

    def _after(self, namespace: int, when: int, limit: int) -> list[tuple[int, int]]:
        rows = self._store.catalog.page(order_prefix(namespace), order_key(namespace, when + 1), limit)
        return [(used_of(key), unpack_number(raw)) for key, raw in rows]
