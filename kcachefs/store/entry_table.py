"""The entry table: the record of each entry, and every index and sum that is derived from these records.

An entry is a set of files used, counted and evicted together. Only `put` changes a record, and it keeps in step:

- the order of use (`l`): an entry that may be evicted appears there once, at its time of use;
- the accounts: what a namespace (`c`), and each user in it (`u`), holds. An entry is on the account of the user who
  made it; a file and its bytes are on the account of the user who owns the file, whichever entry it lies in;
- the group (`g`) that leads from the names of a group's files to their entry.

An entry is *listed* once its first file was sealed: until then `used` is 0, and it is in no index except `g`. fsck
(`entry_checks.py`) uses the definitions in this file.

Functions that take a transaction run under the catalog's lock; the others may run in any thread.
"""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import NamedTuple

from kcachefs.store.catalog import Catalog, Transaction
from kcachefs.store.entry_records import (
    EntryRecord,
    NamespaceRecord,
    counts_key,
    entry_key,
    group_key,
    order_key,
    share_key,
    share_of,
    shares_prefix,
)
from kcachefs.store.history_records import making_key
from kcachefs.store.inode_numbers import GROUP_BASE, ROOT_INO
from kcachefs.store.object_records import ObjectRecord
from kcachefs.store.records import (
    META_RESET,
    TENANTS,
    Inode,
    name_key,
    names_prefix,
    pack_number,
    unpack_name,
    unpack_number,
)
from kcachefs.store.use_clock import UseClock


class Holding(NamedTuple):
    """Sealed files: how many there are, their plain bytes, and the bytes stored for them."""

    files: int
    plain: int
    stored: int

    def plus(self, other: Holding) -> Holding:
        return Holding(self.files + other.files, self.plain + other.plain, self.stored + other.stored)

    def minus(self, other: Holding) -> Holding:
        return Holding(self.files - other.files, self.plain - other.plain, self.stored - other.stored)


NOTHING = Holding(0, 0, 0)
_NO_ACCOUNT = NamespaceRecord.CODEC.unpack(NamespaceRecord().pack())
_fields_of = operator.attrgetter(*(each.name for each in fields(EntryRecord)))


# --- definitions ------------------------------------------------------------------------------------------------------


def order_of(record: EntryRecord | None) -> bytes | None:
    """The key of an entry in the order of use; None if the entry is not in the order."""
    if record is None or not record.used or record.flags & (EntryRecord.PINNED | EntryRecord.LEAVING):
        return None
    return order_key(record.namespace, record.used)


def account_keys(namespace: int, uid: int) -> tuple[bytes, bytes]:
    """The two accounts that count what a user holds in a namespace: the namespace's, and the user's in it."""
    return counts_key(namespace), share_key(uid, namespace)


def sums_of(record: EntryRecord, holdings: Mapping[int, Holding]) -> Iterator[tuple[bytes, int, Holding]]:
    """What an entry adds to each account, as (account, entries, holding): the entry itself, and its files by owner."""
    if record.used:
        for key in account_keys(record.namespace, record.uid):
            yield key, 1, NOTHING
    for uid, held in holdings.items():
        for key in account_keys(record.namespace, uid):
            yield key, 0, held


def find_roots(catalog: Catalog) -> tuple[int, set[int]]:
    """The folder of users' own trees (0 if there is none), and all folders that hold namespaces."""
    raw = catalog.get(name_key(ROOT_INO, TENANTS))
    tenants = unpack_name(raw)[0] if raw is not None else 0
    rows = catalog.scan(names_prefix(tenants)) if tenants else []
    return tenants, {ROOT_INO, *(unpack_name(row)[0] for _, row in rows)}


def namespace_of(folder: int, parent_of: Callable[[int], int], roots: set[int]) -> int:
    """The namespace that a folder is or lies in; for one of `roots`, that folder itself."""
    while folder not in roots and (above := parent_of(folder)) not in roots:
        folder = above
    return folder


def held_for(file: Inode, stored: ObjectRecord | None) -> Holding:
    """The sizes that a sealed file counts for; `stored` is the record of its object."""
    return Holding(1, file.size, stored.length if stored is not None else 0)


def erase(txn: Transaction, entry: int, record: EntryRecord) -> None:
    """Remove an entry's record, along with the records of its making and its group."""
    txn.delete(entry_key(entry))
    if record.used or txn.get(making_key(entry)) is not None:
        txn.delete(making_key(entry))
    if entry >= GROUP_BASE:
        txn.delete(group_key(record.folder, record.name))


# --- the table --------------------------------------------------------------------------------------------------------


_Change = tuple[EntryRecord | None, Mapping[int, Holding], int]
"""A record, the files that its entry loses or gains, and -1 for a loss or +1 for a gain."""


class EntryTable:
    """The entries of one store."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.clock = UseClock()
        self._last_order = 0

    def get(self, entry: int, source: Catalog | Transaction | None = None) -> EntryRecord | None:
        """A copy of an entry's record; changes to the copy take effect with `put`."""
        raw = (source or self._catalog).get(entry_key(entry))
        return EntryRecord.unpack(raw) if raw is not None else None

    def put(
        self,
        txn: Transaction,
        entry: int,
        old: EntryRecord | None,
        new: EntryRecord | None,
        *,
        left: Mapping[int, Holding] = {},
        came: Mapping[int, Holding] = {},
    ) -> None:
        """Replace an entry's record, and everything derived from it. None stands for no record.

        `left` and `came` are the sealed files that the entry loses and gains with this change, by their owner.
        """
        if old is not None and new is not None and _keeps_its_place(old, new):
            for uid, held in came.items():
                _adjust(txn, account_keys(new.namespace, uid), held, +1)
            for uid, held in left.items():
                _adjust(txn, account_keys(new.namespace, uid), held, -1)
        else:
            self._reorder(txn, entry, order_of(old), order_of(new))
            self._book(txn, ((old, left, -1), (new, came, +1)))
        if new is not None:
            txn.put(entry_key(entry), new.pack())
        elif old is not None:
            erase(txn, entry, old)

    def _reorder(self, txn: Transaction, entry: int, before: bytes | None, after: bytes | None) -> None:
        if before != after:
            if before is not None:
                txn.delete(before)
            if after is not None:
                txn.put(after, pack_number(entry))

    def _book(self, txn: Transaction, changes: tuple[_Change, _Change]) -> None:
        sums: dict[bytes, tuple[int, Holding]] = {}
        for record, holdings, sign in changes:
            if record is not None:
                for key, entries, held in sums_of(record, holdings):
                    count, total = sums.get(key, (0, NOTHING))
                    sums[key] = count + sign * entries, total.plus(held) if sign > 0 else total.minus(held)
        for key, (count, total) in sums.items():
            if count or total != NOTHING:
                _adjust(txn, (key,), total, +1, entries=count)

    # --- files of entries ---------------------------------------------------------------------------------------------

    def add_files(
        self, txn: Transaction, entry: int, record: EntryRecord, holdings: Mapping[int, Holding], *, misses: int
    ) -> None:
        """Count sealed files, given by owner. The first one lists the entry; `misses` says how many misses to add."""
        new = _resized(record, holdings, +1)
        if not record.used or misses:
            new.used = self.next_order(self.clock.now())
            for key in account_keys(record.namespace, record.uid):
                account = NamespaceRecord.unpack(txn.get(key))
                account.misses += misses
                account.used = new.used
                txn.put(key, account.pack())
        self.put(txn, entry, record, new, came=holdings)

    def remove_files(
        self, txn: Transaction, entry: int, record: EntryRecord, holdings: Mapping[int, Holding]
    ) -> EntryRecord:
        """Take out sealed files, given by owner: they go, or will be written again. Returns the new record."""
        new = _resized(record, holdings, -1)
        self.put(txn, entry, record, new, left=holdings)
        return new

    def resize_file(self, txn: Transaction, entry: int, uid: int, by: int) -> None:
        """The stored size of a sealed file changed by this many bytes."""
        record = self.get(entry, txn)
        if record is not None:
            holdings = {uid: Holding(0, 0, by)}
            self.put(txn, entry, record, _resized(record, holdings, +1), came=holdings)

    def hand_over(self, txn: Transaction, entry: int, record: EntryRecord, old: int, new: int, held: Holding) -> None:
        """Another user becomes the owner of a file in an entry."""
        self.put(txn, entry, record, record, left={old: held}, came={new: held})

    def relocate(
        self,
        txn: Transaction,
        entry: int,
        record: EntryRecord,
        namespace: int,
        folder: int,
        name: bytes,
        holdings: Mapping[int, Holding],
    ) -> None:
        """An entry moved; `holdings` says what each user holds in the entry."""
        new = _copy(record)
        new.namespace, new.folder, new.name = namespace, folder, name
        self.put(txn, entry, record, new, left=holdings, came=holdings)

    def strike(self, txn: Transaction, entry: int) -> None:
        """Remove an entry that no file belongs to, and everything still counted for it."""
        record = self.get(entry, txn)
        if record is not None:
            self.put(txn, entry, record, None, left={record.uid: held_by(record)})

    def pin(self, txn: Transaction, entry: int, pinned: bool) -> bool:
        """Take an entry out of the order of use, or put it back. False if there is no such entry."""
        record = self.get(entry, txn)
        if record is None:
            return False
        new = _copy(record)
        new.flags = record.flags | EntryRecord.PINNED if pinned else record.flags & ~EntryRecord.PINNED
        if new.used > (now := self.clock.now()):  # pinned while the clock was ahead
            new.used = self.next_order(now)
        self.put(txn, entry, record, new)
        return True

    # --- uses ---------------------------------------------------------------------------------------------------------

    def note_use(self, txn: Transaction, entry: int, record: EntryRecord, when: int, hits: Counter[int]) -> None:
        """An entry was used; `hits` counts the hits by user, and each user's account gets that user's hits."""
        new, total = _copy(record), hits.total()
        new.used = max(1, when) if record.flags & EntryRecord.PINNED else self.next_order(when)
        new.hits += total
        self.put(txn, entry, record, new)
        own = account_keys(record.namespace, record.uid)
        accounts = dict.fromkeys(own, 0) | {share_key(uid, record.namespace): count for uid, count in hits.items()}
        accounts[counts_key(record.namespace)] = total
        for key, count in accounts.items():
            account = NamespaceRecord.unpack(txn.get(key))
            if key in own:
                account.used = max(account.used, new.used)
            account.hits += count
            account.served += count * record.plain
            txn.put(key, account.pack())

    def leave(self, txn: Transaction, entry: int) -> None:
        """An entry's names are gone: it leaves the order now, and is removed with its last file."""
        record = self.get(entry, txn)
        if record is not None:
            new = _copy(record)
            new.flags |= EntryRecord.LEAVING
            self.put(txn, entry, record, new)

    def note_eviction(self, txn: Transaction, record: EntryRecord) -> None:
        for key in account_keys(record.namespace, record.uid):
            account = NamespaceRecord.unpack(txn.get(key))
            account.evictions += 1
            account.evicted_bytes += record.stored
            txn.put(key, account.pack())

    def next_order(self, when: int) -> int:
        """A time of use that no other entry has."""
        self._last_order = max(when, self._last_order + 1)
        return self._last_order

    def is_ahead(self, when: int) -> bool:
        """Whether an entry was used after `when`, as far as this process has seen."""
        return self._last_order > when

    def turn_back(self, now: int) -> None:
        """The clock was set back to `now`: from here on, uses are noted at the clock's time."""
        self.clock.follow_host()
        self._last_order = min(self._last_order, now)

    def correct_accounts(self, change: Callable[[], Transaction], now: int, slack: int) -> None:
        """Correct future last-use times of namespaces, and of users in them. These times are only displayed."""
        for table in (b"c", b"u"):
            accounts = ((key, NamespaceRecord.unpack(raw)) for key, raw in self._catalog.scan(table))
            ahead = [key for key, account in accounts if account.used > now + slack]
            if not ahead:  # then no user's account is ahead either
                return
            with change() as txn:
                for key in ahead:
                    account = NamespaceRecord.unpack(txn.get(key))
                    account.used = min(account.used, now)
                    txn.put(key, account.pack())

    # --- sums ---------------------------------------------------------------------------------------------------------

    def counts(self, namespace: int) -> NamespaceRecord:
        return NamespaceRecord.unpack(self._catalog.get(counts_key(namespace)))

    def shares(self) -> Counter[int]:
        """The bytes stored for each user's files, as if nothing were shared."""
        held: Counter[int] = Counter()
        self._catalog.fold()
        for key, raw in self._catalog.scan(b"u"):
            held[share_of(key)[0]] += NamespaceRecord.unpack(raw).stored
        return held

    def shares_of(self, uid: int) -> list[tuple[int, NamespaceRecord]]:
        """What one user holds, by namespace, as of the last fold."""
        rows = self._catalog.scan(shares_prefix(uid))
        return [(share_of(key)[1], NamespaceRecord.unpack(raw)) for key, raw in rows]

    def reset(self, txn: Transaction) -> int:
        """Reset the counts of hits, misses and evictions to 0 in every account; returns the time of the reset."""
        for key in (*self._catalog.keys(b"c"), *self._catalog.keys(b"u")):
            account = NamespaceRecord.unpack(txn.get(key))
            account.hits = account.misses = account.evictions = account.evicted_bytes = account.served = 0
            txn.put(key, account.pack())
        now = max(0, time.time_ns())
        txn.put(META_RESET, pack_number(now))
        return now

    def group(self, folder: int, name: bytes, source: Catalog | Transaction | None = None) -> int:
        """The entry of a group of files; 0 if there is none."""
        raw = (source or self._catalog).get(group_key(folder, name))
        return unpack_number(raw) if raw is not None else 0

    def put_group(self, txn: Transaction, entry: int, record: EntryRecord) -> None:
        """Add a group of files; none of the files is sealed yet."""
        txn.put(group_key(record.folder, record.name), pack_number(entry))
        self.put(txn, entry, None, record)


def _keeps_its_place(old: EntryRecord, new: EntryRecord) -> bool:
    """Whether an entry keeps its place in the order and its accounts, as it does when it gains or loses a file."""
    return old.used == new.used and old.flags == new.flags and old.namespace == new.namespace and old.uid == new.uid


def _adjust(txn: Transaction, accounts: Iterable[bytes], held: Holding, sign: int, *, entries: int = 0) -> None:
    """Add files to these accounts (+1), or take them off (-1). Called for every file that is sealed or removed.

    The sums are the first fields of a `NamespaceRecord`; the others are copied as they are.
    """
    codec = NamespaceRecord.CODEC
    for key in accounts:
        raw = txn.get(key)
        count, files, plain, stored, *rest = codec.unpack(raw) if raw is not None else _NO_ACCOUNT
        files, plain, stored = files + sign * held.files, plain + sign * held.plain, stored + sign * held.stored
        txn.put(key, codec.pack(count + entries, files, plain, stored, *rest))


def _resized(record: EntryRecord, holdings: Mapping[int, Holding], sign: int) -> EntryRecord:
    """The entry's record after it gains these files (+1) or loses them (-1)."""
    new = _copy(record)
    for held in holdings.values():
        new.files += sign * held.files
        new.plain += sign * held.plain
        new.stored += sign * held.stored
    return new


def _copy(record: EntryRecord) -> EntryRecord:
    return EntryRecord(*_fields_of(record))  # takes a fraction of the time of copy.copy


def held_by(record: EntryRecord) -> Holding:
    """All sealed files of an entry."""
    return Holding(record.files, record.plain, record.stored)


def new_entry(namespace: int, folder: int, uid: int, name: bytes, now: int) -> EntryRecord:
    """A record of an entry that is not listed yet."""
    return EntryRecord(namespace, folder, now, 0, 0, 0, 0, 0, uid, 0, name)
