"""Eviction: removes whole entries, the least recently used first, until the store is within its limits again.

The daemon runs it in a thread of its own, in short turns. It begins at the high-water mark, before a write would fail,
and works down to the low-water mark. It never takes an entry that is pinned, that was used or written within the grace
period, that is open or mapped anywhere (but see `user_eviction.py`), or that its maker is about to finish: written
under a temporary name, and not renamed yet.

The evictor cannot see open files, because the kernel opens them without asking. But the kernel does report when it
forgets an inode. So an old entry whose inodes the kernel still knows is *probed*: its name is invalidated, which makes
the kernel drop every inode that nobody uses. An inode that the kernel still keeps is open or mapped, and the entry
counts as used now.

If the entry was not used since the probe, it then loses its names, and its bytes follow (`removal.py`). It goes out of
sight in one step, so a kill leaves it whole or gone; only a group of more than 32 files goes in several steps, and a
kill can leave a part of it. A file that the kernel still knows is evicted only if a process that lists folders looked
it up since the probe, or if its user is above their quota with entries that are held open (`user_eviction.py`). Such a
file becomes an orphan, and its bytes stay until the kernel forgets it (`lifetimes.py`).

Above a limit writers wait, and the grace period shrinks to `SHORT_GRACE_SECONDS`, or to `SHORTEST_GRACE_SECONDS` if
that leaves nothing to take. Deleted bytes leave the disk when their volume is compacted: above the low-water mark, a
turn compacts once they reach a fiftieth of the quota (or of the volumes, if those are smaller).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable

from kcachefs.core.accounts import Accounts
from kcachefs.core.entry_counts import EntryCounts
from kcachefs.core.history import History
from kcachefs.core.lru import LruOrder
from kcachefs.core.namespaces import Namespaces
from kcachefs.core.nodes import Nodes
from kcachefs.core.probing import Probed, Prober
from kcachefs.core.removal import Pace, Remover
from kcachefs.core.rewritten import RewrittenFiles
from kcachefs.core.room import Room
from kcachefs.core.sealing import Sealer
from kcachefs.core.temporaries import Temporaries
from kcachefs.core.tree import Tree
from kcachefs.core.user_eviction import HIGH_WATER, LOW_WATER, UserEviction
from kcachefs.core.uses import Uses
from kcachefs.core.walk import Name, Walk
from kcachefs.errors import FsError, NoSpace
from kcachefs.store import Store
from kcachefs.store.entry_records import EntryRecord
from kcachefs.store.entry_table import EntryTable
from kcachefs.store.records import Inode

log = logging.getLogger(__name__)

SHORT_GRACE_SECONDS = 3.0
"""How long after its last use an entry is safe when a limit is exceeded. This is longer than the heartbeat, so that an
entry does not go while a process works through its files."""
SHORTEST_GRACE_SECONDS = 1.5
"""The grace period when nothing else can be taken: still longer than the heartbeat."""
CERTAIN_SECONDS = 5.0
"""For how long there must be nothing to evict before writes fail: a busy machine's kernel is slow to forget inodes."""
COMPACTION_SHARES = (0.5, 0.75, 0.95)
"""The share of live bytes up to which a volume is compacted, tried in this order above the low-water mark."""
UNFINISHED_SECONDS = 10.0
"""How long an entry stays after its maker wrote something under a temporary name, because a rename may follow. This is
longer than a busy machine keeps a process waiting between the write and the rename."""
BATCH = 32
"""Entries probed at a time."""
QUOTAS = ("quota", "user quota")
"""The reasons of evictions that a quota causes."""
BRISK_MARK = (1.0 + HIGH_WATER) / 2
"""Above this mark writers outrun a gentle eviction, so eviction hurries before they have to wait for it."""


class Evictor:
    """Keeps one filesystem within its limits."""

    def __init__(
        self,
        store: Store,
        nodes: Nodes,
        tree: Tree,
        walk: Walk,
        table: EntryTable,
        namespaces: Namespaces,
        uses: Uses,
        sealer: Sealer,
        room: Room,
        remover: Remover,
        counts: EntryCounts,
        temporaries: Temporaries,
        prober: Prober,
        name_gone: Callable[[int, bytes], None],
        history: History,
        accounts: Accounts | None = None,
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._tree = tree
        self._walk = walk
        self._table = table
        self._namespaces = namespaces
        self._uses = uses
        self._sealer = sealer
        self._room = room
        self._remover = remover
        self._temporaries = temporaries
        self._prober = prober
        self._name_gone = name_gone
        self._history = history
        self._counts = counts
        self._rewritten = RewrittenFiles(sealer, room)
        self._users = UserEviction(accounts, room, walk, self) if accounts is not None else None
        account_of = accounts.of if accounts is not None else lambda uid: uid
        self.order = LruOrder(store, table, namespaces, uses, account_of)
        self._in_use: frozenset[int] = frozenset()
        """Entries that could not be evicted the last time we tried, most of them because they were in use."""
        self.certain_seconds = CERTAIN_SECONDS
        self.progress = (0, 0)
        """How many of the entries that a command evicts had their turn, and how many there are in all."""
        self._hopeless_since: dict[object, float] = {}
        """By account (None: all accounts together): since when none of its entries can be evicted."""

    # --- a turn -------------------------------------------------------------------------------------------------------

    def turn(self, seconds: float = 0.2) -> int:
        """Evict for a while if a limit is near. Returns how many entries went, except for ceilings and user quotas."""
        room = self._room
        self._apply_ceilings(time.monotonic() + seconds)
        if self._users is not None:
            self._users.turn(time.monotonic() + seconds)
        room.check()
        if room.excess(HIGH_WATER) <= 0 and room.excess_files(HIGH_WATER) <= 0:
            room.note_full(self.has_lasted(None, False))
            if self._users is not None:
                self._users.let_all_write()
            return 0
        until = time.monotonic() + seconds
        self.seal(until)
        self._uses.flush_if_possible()
        gone = 0
        while True:
            self._reclaim()
            bytes_over, files_over = room.excess(LOW_WATER), room.excess_files(LOW_WATER)
            if bytes_over <= 0 and files_over <= 0:
                break
            is_within = room.excess(1.0) <= 0 and room.excess_files(1.0) <= 0
            chosen = self._next_to_go(self._grace(is_within))
            if not chosen and not is_within:
                chosen = self._next_to_go(min(room.limits.grace, SHORTEST_GRACE_SECONDS))
            batch = self.order.first_that_suffice(chosen, bytes_over, files_over)
            taken = self._evict_batch(batch, "quota", self._pace)
            gone += len(taken)
            if not taken and room.used_bytes() > room.limits.max_size:
                self._rewritten.seal()
            room.note_full(self.has_lasted(None, not taken and room.excess(1.0) > 0 and self._nothing_left()))
            if not batch or time.monotonic() > until:
                break
        if room.check():
            room.note_full(self.has_lasted(None, False))
        if gone:
            self._reclaim()
            log.info("evicted %d entries; %d of %d bytes in use", gone, room.used_bytes(), room.limits.max_size)
        return gone

    def _pace(self) -> Pace:
        """How fast to make room, given how much room is left."""
        for mark, pace in ((BRISK_MARK, Pace.GENTLE), (1.0, Pace.BRISK)):
            if self._room.excess(mark) <= 0 and self._room.excess_files(mark) <= 0:
                return pace
        return Pace.AT_ONCE

    def _grace(self, is_within: bool) -> float:
        """How long an entry is safe after its last use; `is_within`: no limit is exceeded."""
        grace = self._room.limits.grace
        return grace if is_within else min(grace, SHORT_GRACE_SECONDS)

    def seal(self, until: float) -> None:
        """Seal the files that wait for it, a few at a time."""
        with contextlib.suppress(NoSpace):  # then files that are sealed already have to make room first
            while self._sealer.waiting() and time.monotonic() < until:
                if self._sealer.is_pausing or (self._room.is_disk_nearly_full() and self.anything_left()):
                    return  # entries that can be evicted make room first
                # Until the slots are given back, sealed files take room that the disk may not have.
                self._sealer.seal_waiting(min(until, time.monotonic() + 0.02), self._room.is_disk_nearly_full)
                self._store.fold()
                self._store.slots.trim()
                self._room.check()

    def _reclaim(self) -> None:
        """Give the disk back the room of free slots and of deleted objects, the emptiest volumes first."""
        self._store.fold()  # on a full disk this trims the slots, too
        self._store.slots.trim()
        for share in COMPACTION_SHARES:
            totals = self._store.objects.totals()
            # Where the disk is the limit, a fiftieth of the quota may be more than all that is stored.
            is_little = totals.volumes - totals.live < min(self._room.limits.max_size, totals.volumes) * 0.02
            if is_little or self._room.excess(LOW_WATER) <= 0:
                return
            try:
                self._store.compact(share)
            except NoSpace:
                self._store.fold()  # no room to copy, but volumes that are already empty still go
                return

    # --- limits of namespaces and users -------------------------------------------------------------------------------

    def _apply_ceilings(self, until: float) -> None:
        for name, ceiling in self._room.limits.ceilings.items():
            for number, label, record in self._namespaces.rows():
                if label == name and record.stored > ceiling:
                    self._uses.flush_if_possible()
                    self._store.fold()
                    while record.stored > ceiling:
                        batch = list(self.order.of_namespace(number, BATCH, self._grace(is_within=False)))
                        batch = self.order.first_that_suffice(batch, record.stored - ceiling, 0)
                        if not self._evict_batch(batch, "ceiling") or time.monotonic() > until:
                            break
                        record = self._table.counts(number)

    def evict_oldest(self, account: int, over: int, *, is_within: bool) -> bool:
        """Evict an account's oldest entries that are not in use, to free `over` bytes; returns whether any went."""
        self._uses.flush_if_possible()
        batch = self.order.first_that_suffice(self._oldest(self._grace(is_within), {account}), over, 0)
        return bool(self._evict_batch(batch, "user quota"))

    def in_use_of(self, account: int) -> list[int]:
        """An account's entries that were in use when we last tried to evict them, least recently used first."""
        return [entry for entry in self._oldest_past_those_in_use({account}) if entry in self._in_use]

    def has_lasted(self, what: object, seems: bool) -> bool:
        """Whether nothing of one account, or of all (None), could be evicted for so long that writes may fail.

        `seems` says whether that is so at the moment.
        """
        if not seems:
            self._hopeless_since.pop(what, None)
            return False
        now = time.monotonic()
        return now - self._hopeless_since.setdefault(what, now) >= self.certain_seconds

    def _next_to_go(self, grace: float) -> list[int]:
        if self._users is None:
            return self._oldest(grace)
        above = self._users.above_fair_share()
        batch = self._oldest(grace, above)
        if self.anything_left(above):
            self._users.let_all_write()
            return batch
        others = self._users.others_in_turn(above)
        return batch or self._oldest(grace, others)  # entries that were in use are tried again first

    def _oldest(self, grace: float, accounts: set[int] | None = None) -> list[int]:
        return self.order.oldest(BATCH, grace, self._room.limits.floors, accounts)

    def _nothing_left(self) -> bool:
        """Whether not even the youngest entry may be taken, and no file waits to be sealed into one."""
        return not self._sealer.waiting() and not self.anything_left()

    def anything_left(self, accounts: set[int] | None = None) -> bool:
        """Whether any entry that was not found in use can be taken, now or when its grace period is over.

        With `accounts`, only their entries count. An entry in use is tried again after a grace period without a use.
        """
        self._in_use = frozenset(entry for entry in self._in_use if self._table.get(entry) is not None)
        return any(entry not in self._in_use for entry in self._oldest_past_those_in_use(accounts))

    def _oldest_past_those_in_use(self, accounts: set[int] | None) -> list[int]:
        """As many entries as it takes for one of them not to be in use, whatever their grace period."""
        count, floors = len(self._in_use) + 1, self._room.limits.floors
        return self.order.oldest(count, 0.0, floors, accounts, staying=self._in_use)

    # --- taking -------------------------------------------------------------------------------------------------------

    def evict_all(self, chosen: list[int], why: str = "evicted") -> set[int]:
        """Evict the chosen entries that nobody uses, as a command asked; returns the entries that went."""
        taken: set[int] = set()
        try:
            for start in range(0, len(chosen), BATCH):
                self.progress = start, len(chosen)
                taken |= self._evict_batch(chosen[start : start + BATCH], why, lambda: Pace.GENTLE)
        finally:
            self.progress = 0, 0
        return taken

    def _evict_batch(self, batch: list[int], why: str, pace: Callable[[], Pace] = lambda: Pace.AT_ONCE) -> set[int]:
        """Probe the entries that the kernel still knows, then take all that nobody uses.

        Entries that stay become young again.
        """
        began = time.monotonic()
        used = {entry: record.used for entry in batch if (record := self._table.get(entry)) is not None}
        names = self._walk.top_names_of(batch)
        states = {entry: self._remover.known_inodes(entry, names[entry]) for entry in batch}
        self._remover.strike({entry for entry in batch if states[entry] is None})
        held = {entry: inodes for entry, inodes in states.items() if inodes}
        taken: set[int] = set()
        with self._nodes.probing():
            self._prober.probe([self._probed(entry, names[entry], held[entry]) for entry in held], self._stayed_known)
            for entry in batch:  # an entry that is held only now was looked up since: `evict` notices
                if any(map(self._stayed_known, held.get(entry, ()))):
                    continue
                if self.evict(entry, why=why, names=names[entry], used=used.get(entry)):
                    taken.add(entry)
                    self._remover.breathe_at(pace(), time.monotonic() - began)
                    began = time.monotonic()
        self._in_use = (self._in_use | set(batch)) - taken
        cut_off = self._nodes.cut_off
        cut_off -= {one for one in cut_off.copy() if self._table.get(one) is None and not self._nodes.exists(one)}
        if len(taken) < len(batch):
            self._uses.renew(set(batch) - taken)
            self._uses.flush_if_possible()
        return taken

    def _probed(self, entry: int, names: list[Name], inodes: set[int]) -> Probed:
        return Probed({entry}, names, inodes, lambda: self._walk.members(entry, names))

    def _stayed_known(self, ino: int) -> bool:
        """Whether the kernel has known an inode all along. Hold no lock: after a worker died this asks the kernel."""
        return self._nodes.is_known(ino) and not self._was_forgotten(ino)

    def _was_forgotten(self, ino: int) -> bool:
        """Whether the kernel forgot an inode after the probe: then it is open nowhere, though it may be known again."""
        forgotten = self._nodes.forgotten_since_probe
        return forgotten is not None and ino in forgotten

    def evict(
        self,
        entry: int,
        *,
        why: str = "evicted",
        force: bool = False,
        doom: bool = False,
        names: list[Name] | None = None,
        used: int | None = None,
    ) -> bool:
        """Take one entry. False if nothing is left of it, or if it has to stay.

        `force` takes it even if it is pinned or in use. `doom` takes it even if it is in use, and puts its inodes that
        are still open on nobody's account. `names`, `used`: its names and its last use, if the caller noted them before
        the probe. `why`: one of `insight_info.EVICTION_REASONS`.
        """
        names = self._walk.top_names(entry) if names is None else names
        inodes = self._remover.inodes(entry, names)
        with self._nodes.change() as txn:
            record = self._table.get(entry, txn)
            if record is None or record.flags & EntryRecord.LEAVING:
                return False
            if record.flags & EntryRecord.PINNED and not force:
                return False
            members = self._remover.at_once(entry, names)
            inodes.extend(ino for ino, _, _ in members)
            if not (force or doom) and self._is_in_use(entry, record, inodes, used):
                return False
            if not force and self._is_unfinished(record, inodes):
                return False
            is_for_users = self._users is not None and why in QUOTAS
            if is_for_users and self._counts.attributed(txn, entry, record).uid != record.uid:
                return False  # it belongs to somebody other than the user over quota
            if doom:
                self._remover.mark_doomed(members)
            self._tree.remove_all(txn, members)
            if entry in self._nodes.orphans and self._nodes.get(entry).size:
                self._table.leave(txn, entry)
            if members:
                self._table.note_eviction(txn, record)
                self._history.row(record.namespace, record.uid).evictions += 1
        self._uses.forget(entry)
        if not members:
            self._remover.strike({entry})
            return False
        self._history.note_gone(record, why)
        for parent, name in names:
            self._name_gone(parent, name)
        self._remover.take_rest(entry, names, inodes, doom=doom)
        return True

    def _is_in_use(self, entry: int, record: EntryRecord, inodes: Iterable[int], used: int | None) -> bool:
        known = [ino for ino in inodes if self._nodes.has_references(ino)]
        if known and (self._uses.last.get(entry, 0) > record.used or used not in (None, record.used)):
            return True  # used since it was chosen, whether or not that use is written down yet
        return any(not self._was_forgotten(ino) for ino in known)

    def _is_unfinished(self, record: EntryRecord, inodes: Iterable[int]) -> bool:
        """Whether an entry's maker just wrote something in it that has no final name yet. The lock is held."""
        if self._temporaries.inodes.isdisjoint(inodes):
            return False
        now = time.time_ns()
        for ino in inodes:
            with contextlib.suppress(FsError):  # it went while the entry was looked at
                node = self._nodes.get(ino)
                is_new = abs(now - node.ctime) < UNFINISHED_SECONDS * 1e9  # abs: clocks are also set back a little
                if is_new and node.flags & Inode.FRESH and node.uid == record.uid:
                    return True
        return False
