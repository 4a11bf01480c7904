"""The order in which entries were last used, read from its old end: it says which entry goes next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from kcachefs.core.namespaces import Namespaces
from kcachefs.core.uses import Uses
from kcachefs.store import Store
from kcachefs.store.entry_records import order_key, order_prefix, used_of
from kcachefs.store.entry_table import EntryTable
from kcachefs.store.records import unpack_number

_PAGE = 64


class LruOrder:
    """Reads the order of one filesystem. Any thread; an entry that is used while it reads may still be returned."""

    def __init__(
        self,
        store: Store,
        table: EntryTable,
        namespaces: Namespaces,
        uses: Uses,
        account_of: Callable[[int], int] = lambda uid: uid,
    ) -> None:
        self._store = store
        self._table = table
        self._namespaces = namespaces
        self._uses = uses
        self._account_of = account_of

    def oldest(
        self,
        count: int,
        grace: float,
        floors: Mapping[str, int],
        accounts: set[int] | None = None,
        *,
        staying: Collection[int] = (),
    ) -> list[int]:
        """The least recently used entries that may go: a merge of the namespaces' orders, read from their old ends.

        A namespace that holds no more than its floor loses none. With `accounts`, only entries that belong to these.
        Those that are `staying` leave room above a floor for others.
        """
        self._store.fold()
        candidates: list[tuple[int, int]] = []
        for number, label, record in self._namespaces.rows():
            above_floor = record.stored - floors.get(label, 0)
            for entry in self.of_namespace(number, count, grace, accounts) if above_floor > 0 else ():
                found = self._table.get(entry)
                candidates.append((found.used if found is not None else 0, entry))
                if found is not None and entry not in staying:
                    above_floor -= found.stored
                if above_floor <= 0 and label in floors:
                    break
        candidates.sort()
        return [entry for _, entry in candidates[:count]]

    def of_namespace(self, namespace: int, count: int, grace: float, accounts: set[int] | None = None) -> Iterator[int]:
        """Up to `count` entries of one namespace that were not used within the grace period, the oldest first."""
        horizon = self._table.clock.now() - int(grace * 1e9)
        start = order_key(namespace, 0)
        while count > 0:
            rows = self._store.catalog.page(order_prefix(namespace), start, _PAGE)
            for key, raw in rows:
                if used_of(key) > horizon:
                    return
                entry = unpack_number(raw)
                if accounts is not None and self._maker_of(entry) not in accounts:
                    continue
                if self._uses.last.get(entry, 0) <= horizon:
                    count -= 1
                    yield entry
                    if count == 0:
                        return
            if len(rows) < _PAGE:
                return
            start = rows[-1][0] + b"\0"

    def first_that_suffice(self, batch: list[int], bytes_over: int, files_over: int) -> list[int]:
        """The oldest entries of the batch, only as many as it takes to free this many bytes and files."""
        for count, entry in enumerate(batch, 1):
            record = self._table.get(entry)
            if record is not None:
                bytes_over -= record.stored
                files_over -= record.files
            if bytes_over <= 0 and files_over <= 0:
                return batch[:count]
        return batch

    def _maker_of(self, entry: int) -> int:
        record = self._table.get(entry)
        return self._account_of(record.uid) if record is not None else 0
