"""Eviction: whole entries, the least recently used first, names first and bytes last, until the quota holds again.

Run by the daemon in a thread of its own, in short turns. It begins at the high-water mark, before a write would fail,
and works down to the low-water mark. What it never takes: an entry that is pinned, used or written within the grace
period, or open or mapped anywhere.

Open files are invisible here, because the kernel opens them without asking. But it does say when it lets go of an
inode. So an old entry whose inodes the kernel still knows is *probed*: its name is invalidated, which makes the kernel
drop whatever nobody uses; what it still knows after that is open or mapped, and the entry counts as used now.

The entry then goes in one transaction: a kill leaves it whole or gone. A reader that opened a file in the last moment
keeps it: an inode that the kernel knows becomes an orphan, and its bytes stay until it is let go.

While a limit is exceeded, each write waits up to `WAIT_SECONDS` for room, off the thread that answers requests; and
longer when the disk would be full before eviction got its turn.

The bound. Between two turns the total can overshoot the quota by what is written in that time, and by what is younger
than the grace period, which above the quota itself shrinks to `SHORT_GRACE_SECONDS`. Deleted bytes leave the disk when
their volume is compacted, which a turn does as soon as they are a twentieth of the quota.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

from kcachefs.core.entries import Entries
from kcachefs.core.limits import Limits
from kcachefs.core.nodes import Nodes
from kcachefs.core.tree import Tree
from kcachefs.errors import FsError, NoSpace
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.records import (
    GROUP_BASE,
    EntryRecord,
    Inode,
    entry_key,
    name_of,
    names_prefix,
    number_of,
    order_key,
    order_prefix,
    pack_number,
    temporary_key,
    unpack_name,
    unpack_number,
)

log = logging.getLogger(__name__)

HIGH_WATER, LOW_WATER = 0.95, 0.90
"""Parts of a limit at which eviction begins, and to which it works down."""
SHORT_GRACE_SECONDS = 3.0
"""How long after its last use an entry is safe when the quota is exceeded. Longer than the heartbeat, so whoever is
going through an entry's files is not overtaken."""
COMPACTION_SHARES = (0.5, 0.75, 0.95)
"""How alive a volume may be and still be compacted, tried in this order while the quota is exceeded."""
PROBE_SECONDS = 0.5
"""How long the kernel is given to let go of what nobody uses."""
WAIT_SECONDS = 0.05
WAIT_WHEN_FULL_SECONDS = 10.0
HARDLY_FREE = 0.5
"""Part of the free space to be kept below which a write waits so long: the rest is for names and the journal."""
BATCH = 32
"""Entries probed at a time."""
_HELPING = 256
"""Inodes looked for at a time, while requests wait."""
BREATH_SECONDS = 0.001
"""Pause behind each entry while requests come: both want the interpreter, and an entry takes it for about as long."""
TEMPORARY_SECONDS = 60.0
TEMPORARY_UNKNOWN_SECONDS = 3600.0
"""When what was written under a temporary name is reaped: its writer is dead, or cannot be seen from here."""


class Evictor:
    """Keeps one filesystem within its limits."""

    def __init__(self, store: Store, nodes: Nodes, tree: Tree, entries: Entries, limits: Limits) -> None:
        self._store = store
        self._catalog = store.catalog
        self._nodes = nodes
        self._tree = tree
        self._entries = entries
        self.limits = limits
        self.grace_seconds = limits.grace
        self.temporary_seconds = TEMPORARY_SECONDS
        self.temporary_unknown_seconds = TEMPORARY_UNKNOWN_SECONDS
        self.room = threading.Event()
        self.room.set()
        """Cleared while a limit is exceeded: then writes wait a moment, so that eviction can keep up with them."""
        self.full = False
        """The quota is exceeded and nothing can be evicted: writing has to fail."""
        self.exhausted: frozenset[int] = frozenset()
        """Users of whom the same is true of their own quota."""
        self._in_use: frozenset[int] = frozenset()
        """Entries that were in use when they were to be evicted last."""
        self.unsealed: Callable[[], dict[int, int]] = dict
        """Bytes that are not sealed yet, by user."""
        self.attributes: Callable[[int], Inode] = nodes.get
        """An inode with its times as they are now, also of a file that is being written."""
        self.invalidate: Callable[[int, bytes], None] = lambda parent, name: None
        """Tells the kernel that a name does not hold any more. Called with no lock held."""
        self.requests: Callable[[], int] = lambda: 0
        """How many requests the engine was asked so far."""
        self._requests = 0
        self.seal_waiting: Callable[[float], None] = lambda until: None
        """Seals what waits, until that moment."""
        self.waiting: Callable[[], int] = lambda: 0
        """How many files wait to be sealed: until they are, they can be neither compressed nor evicted."""

    # --- what there is ------------------------------------------------------------------------------------------------

    def used_bytes(self) -> int:
        """Stored bytes on disk, everything counted."""
        return self._store.used_bytes()

    def _excess(self, mark: float) -> int:
        """Bytes by which the strictest limit on size is exceeded, at that mark."""
        over = self.used_bytes() - int(self.limits.max_size * mark)
        disk = os.statvfs(self._store.path)
        short = int(self.limits.min_free * (2.0 - mark)) - disk.f_bavail * disk.f_frsize
        return max(over, short)

    def _excess_files(self, mark: float) -> int:
        if not self.limits.max_files:
            return 0
        files = sum(record.files for _, _, record in self._entries.namespaces())
        return files - int(self.limits.max_files * mark)

    # --- a turn -------------------------------------------------------------------------------------------------------

    def turn(self, seconds: float = 0.2) -> int:
        """Evict for a while if a limit is near. Returns how many entries went."""
        self._apply_ceilings(time.monotonic() + seconds)
        if self.limits.max_size_per_uid:
            self._apply_shares(time.monotonic() + seconds)
        self.note_pressure()
        if self._excess(HIGH_WATER) <= 0 and self._excess_files(HIGH_WATER) <= 0:
            self.full = False
            return 0
        until = time.monotonic() + seconds
        self._seal(until)
        self._entries.flush()
        gone = 0
        while True:
            self._reclaim()
            bytes_over, files_over = self._excess(LOW_WATER), self._excess_files(LOW_WATER)
            if bytes_over <= 0 and files_over <= 0:
                break
            is_within = self._excess(1.0) <= 0
            grace = self.grace_seconds if is_within else min(self.grace_seconds, SHORT_GRACE_SECONDS)
            batch = self._enough(self._next_to_go(grace), bytes_over, files_over)
            taken = self._evict_batch(batch, gently=is_within and self._excess_files(1.0) <= 0)
            gone += len(taken)
            self.full = not batch and self._excess(1.0) > 0 and self._nothing_left()
            if not batch or time.monotonic() > until:
                break
        self.note_pressure()
        if gone:
            self._reclaim()
            log.info("evicted %d entries; %d bytes in use of %d", gone, self.used_bytes(), self.limits.max_size)
        return gone

    def _seal(self, until: float) -> None:
        """Seal what waits, a little at a time: until the slots are given back, its bytes are on the disk twice."""
        with contextlib.suppress(NoSpace):  # then what is sealed already has to make room first
            while self.waiting() and time.monotonic() < until:
                if self._hardly_any_free() and self._anything_left():
                    return  # what can be evicted makes room first
                self.seal_waiting(min(until, time.monotonic() + 0.02))
                self._store.fold()
                self._store.slots.trim()
                self.note_pressure()

    def _reclaim(self) -> None:
        """Give the bytes of deleted objects back to the disk: of the emptiest volumes, and of fuller ones at need."""
        self._store.fold()
        for share in COMPACTION_SHARES:
            totals = self._store.objects.totals()
            if totals.volumes - totals.live < self.limits.max_size * 0.02 or self._excess(LOW_WATER) <= 0:
                return
            try:
                self._store.compact(share)
            except NoSpace:
                self._store.fold()  # no room to copy: what was emptied goes all the same
                return

    def note_pressure(self) -> bool:
        """See whether there is room, or writes have to wait."""
        has_room = self._excess(1.0) <= 0
        if has_room:
            self.room.set()
        else:
            self.room.clear()
        return has_room

    def wait_for_room(self) -> None:
        """A moment; and where the disk is all but full, until there is room or nothing is left to be evicted."""
        until = time.monotonic() + WAIT_WHEN_FULL_SECONDS
        while not self.room.wait(WAIT_SECONDS) and not self.full and time.monotonic() < until:
            if not self._hardly_any_free():
                return

    def _hardly_any_free(self) -> bool:
        disk = os.statvfs(self._store.path)
        return disk.f_bavail * disk.f_frsize < self.limits.min_free * HARDLY_FREE

    def _nothing_left(self) -> bool:
        """Whether not even the youngest entry may be taken, and nothing waits to become one."""
        return not self.waiting() and not self._anything_left()

    def _anything_left(self, uids: set[int] | None = None) -> bool:
        """Whether there is an entry to be taken, now or when its grace is over: one that was not found in use.

        With `uids`, one that these users made. What was in use is tried again when it has not been used for its grace.
        """
        self._in_use = frozenset(entry for entry in self._in_use if self._catalog.get(entry_key(entry)) is not None)
        return any(entry not in self._in_use for entry in self._oldest(len(self._in_use) + 1, 0.0, uids))

    def _enough(self, batch: list[int], bytes_over: int, files_over: int) -> list[int]:
        """So many of them, from the oldest on, as are needed."""
        for count, entry in enumerate(batch, 1):
            raw = self._catalog.get(entry_key(entry))
            if raw is not None:
                record = EntryRecord.unpack(raw)
                bytes_over -= record.stored
                files_over -= record.files
            if bytes_over <= 0 and files_over <= 0:
                return batch[:count]
        return batch

    def _apply_ceilings(self, until: float) -> None:
        for name, ceiling in self.limits.ceilings.items():
            for number, label, record in self._entries.namespaces():
                if label == name and record.stored > ceiling:
                    self._entries.flush()
                    self._store.fold()
                    while record.stored > ceiling:
                        batch = list(self._in_order(number, BATCH, min(self.grace_seconds, SHORT_GRACE_SECONDS)))
                        batch = self._enough(batch, record.stored - ceiling, 0)
                        if not self._evict_batch(batch) or time.monotonic() > until:
                            break
                        record = self._entries.counts(number)

    def _apply_shares(self, until: float) -> None:
        """Who holds more than their quota loses their own oldest entries; who has none left writes no more."""
        limit, exhausted = self.limits.max_size_per_uid, set()
        for uid, total in self._holdings().items():
            if total <= limit * HIGH_WATER:
                continue
            grace = self.grace_seconds if total <= limit else min(self.grace_seconds, SHORT_GRACE_SECONDS)
            self._entries.flush()
            while (over := total - int(limit * LOW_WATER)) > 0:
                taken = self._evict_batch(self._enough(self._oldest(BATCH, grace, {uid}), over, 0))
                if not taken or time.monotonic() > until:
                    break
                total = self._holdings()[uid]
            if total > limit and not taken and not self._anything_left({uid}):
                exhausted.add(uid)
        self.exhausted = frozenset(exhausted)

    def _holdings(self) -> Counter[int]:
        """What each user holds, sealed or not. What is sealed just now may be missing; counted twice, all would go."""
        holdings = Counter(self._entries.shares())
        holdings.update(self.unsealed())
        return holdings

    def _next_to_go(self, grace: float) -> list[int]:
        over = self._over_share()
        batch = self._oldest(BATCH, grace, over)
        if batch or over is None or self._anything_left(over):
            return batch
        return self._oldest(BATCH, grace)  # what they hold lies in others' entries

    def _over_share(self) -> set[int] | None:
        """Whose entries may go when the whole is over its limit: theirs who hold more than a fair part of it."""
        if not self.limits.max_size_per_uid:
            return None
        held = {uid: size for uid, size in self._entries.shares().items() if size}
        if not held:
            return None
        fair = min(self.limits.max_size_per_uid, self.limits.max_size // len(held))
        return {uid for uid, size in held.items() if size > fair} or {max(held, key=lambda uid: held[uid])}

    # --- choosing -----------------------------------------------------------------------------------------------------

    def _oldest(self, count: int, grace: float, uids: set[int] | None = None) -> list[int]:
        """The least recently used entries that may go: a merge of the namespaces' orders, read from their old ends.

        With `uids`, only what these users made.
        """
        self._store.fold()
        candidates: list[tuple[int, int]] = []
        for number, label, record in self._entries.namespaces():
            if record.stored > self.limits.floors.get(label, 0):
                for entry in self._in_order(number, count, grace, uids):
                    candidates.append((self._used(entry), entry))
        candidates.sort()
        return [entry for _, entry in candidates[:count]]

    def _in_order(self, namespace: int, count: int, grace: float, uids: set[int] | None = None) -> Iterator[int]:
        horizon = time.time_ns() - int(grace * 1e9)
        start = order_key(namespace, 0)
        while count > 0:
            rows = self._catalog.page(order_prefix(namespace), start, 64)
            for key, raw in rows:
                if int.from_bytes(key[9:17], "big") > horizon:
                    return
                entry = unpack_number(raw)
                if uids is not None and self._record(entry).uid not in uids:
                    continue
                if self._entries.used.get(entry, 0) <= horizon:
                    count -= 1
                    yield entry
                    if count == 0:
                        return
            if len(rows) < 64:
                return
            start = rows[-1][0] + b"\0"

    def _used(self, entry: int) -> int:
        return self._record(entry).used

    def _record(self, entry: int) -> EntryRecord:
        raw = self._catalog.get(entry_key(entry))
        return EntryRecord.unpack(raw) if raw is not None else EntryRecord(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

    # --- taking -------------------------------------------------------------------------------------------------------

    def evict_all(self, chosen: list[int]) -> set[int]:
        """Evict these as far as nobody uses them; returns those that went."""
        taken: set[int] = set()
        for start in range(0, len(chosen), BATCH):
            taken |= self._evict_batch(chosen[start : start + BATCH], gently=True)
        return taken

    def _evict_batch(self, batch: list[int], *, gently: bool = False) -> set[int]:
        """Probe what the kernel still knows, then take what nobody uses; what is in use becomes young again.

        Gently: requests go first, for nobody waits for the room that this makes.
        """
        states = {entry: self._held(entry) for entry in batch}
        self._clear_out({entry for entry in batch if states[entry] is None})
        held = [entry for entry in batch if states[entry]]
        self._probe(held)
        taken: set[int] = set()
        for entry in batch:  # what was not held a moment ago and is now was looked up meanwhile: `evict` sees that
            if not (entry in held and self._held(entry)) and self.evict(entry):
                taken.add(entry)
                if gently:
                    self._breathe()
        self._in_use = (self._in_use | set(batch)) - taken
        if len(taken) < len(batch):
            now = time.time_ns()
            self._entries.used.update(dict.fromkeys(set(batch) - taken, now))
            self._entries.flush()
        return taken

    def _breathe(self) -> None:
        before, self._requests = self._requests, self.requests()
        if self._requests != before:
            time.sleep(BREATH_SECONDS)

    def _held(self, entry: int) -> bool | None:
        """Whether the kernel knows anything of it; None when there is nothing of it.

        When a worker died, the kernel is asked; so no lock may be held.
        """
        held = None
        for ino, _, _ in self.members(entry):
            if self._nodes.is_held(ino):
                return True
            held = False
        return held

    def _probe(self, batch: list[int]) -> None:
        for entry in batch:
            for parent, name in self._top_names(entry):
                self.invalidate(parent, name)
        self._stays(lambda: any(self._held(entry) for entry in batch))

    def _stays(self, is_held: Callable[[], bool]) -> bool:
        """Whether something is held still when the kernel had the time to let go of it."""
        until = time.monotonic() + PROBE_SECONDS
        while (held := is_held()) and time.monotonic() < until:
            time.sleep(0.002)
        return held

    def evict(self, entry: int, *, force: bool = False) -> bool:
        """Take one entry, in one transaction. No when it is pinned or in use, unless forced, or there is none of it."""
        with self._nodes.change() as txn:
            record = self._entries.record(txn, entry)
            if record is None or (record.flags & EntryRecord.PINNED and not force):
                return False
            members = list(self.members(entry))
            if not force and any(self._nodes.in_use(ino) for ino, _, _ in members):
                return False
            names = self._top_names(entry)
            self._remove(txn, members)
            with self._entries.booked(txn, record.namespace, record.uid) as accounts:
                for counts in accounts:
                    counts.evictions += bool(members)
                    counts.evicted_bytes += record.stored if members else 0
        self._entries.used.pop(entry, None)
        if not members:
            self._clear_out({entry})
            return False
        for parent, name in names:
            self.invalidate(parent, name)
        return True

    def _clear_out(self, empty: set[int]) -> None:
        """These entries have no name left. Whatever is counted for them belongs where it has a name, and they go.

        What was counted had other names, which nobody found quickly when the one in the entry went.
        """
        if not empty:
            return
        self._store.fold()
        rows = ((number_of(key), raw) for key, raw in self._catalog.walk(b"i"))
        strays = {ino for ino, raw in rows if raw is not None and Inode.unpack(raw).entry in empty}
        for key, raw in self._catalog.walk(b"n") if strays else ():
            if raw is not None and (ino := unpack_name(raw)[0]) in strays:
                self._rehome(ino, key, raw, empty)
        for entry in empty:
            with self._nodes.change() as txn:
                if not any(self.members(entry)):
                    self._entries.strike(txn, entry)

    def _rehome(self, ino: int, key: bytes, raw: bytes, empty: set[int]) -> None:
        with contextlib.suppress(FsError), self._nodes.change() as txn:
            if txn.get(key) == raw and (node := self._nodes.get(ino)).entry in empty and not node.is_dir:
                self._entries.rehome(txn, ino, node, number_of(key), name_of(key)[1])
                self._nodes.save(txn, ino, node)

    def members(self, entry: int) -> Iterator[tuple[int, int, bytes]]:
        """Everything that belongs to an entry, as (inode, folder, name), folders before what is in them."""
        for parent, name in self._top_names(entry):
            ino = self._tree.find(parent, name)
            if ino is None or (entry < GROUP_BASE and ino != entry):
                continue  # it is gone, and another folder may have its name
            yield ino, parent, name
            if self._nodes.get(ino).is_dir:
                yield from self.below(ino)

    def _top_names(self, entry: int) -> list[tuple[int, bytes]]:
        """The names by which an entry is reached: its folder's, or those of its files."""
        if entry < GROUP_BASE:
            with contextlib.suppress(FsError):
                root = self._nodes.get(entry)
                return [(root.parent, root.target)]
            return []
        raw = self._catalog.get(entry_key(entry))
        if raw is None:
            return []
        folder = EntryRecord.unpack(raw).folder
        rows = [(unpack_name(row)[0], name_of(key)[1]) for key, row in self._catalog.scan(names_prefix(folder))]
        return [(folder, name) for ino, name in rows if self._belongs(ino, entry)]

    def _belongs(self, ino: int, entry: int) -> bool:
        with contextlib.suppress(FsError):
            return self._nodes.get(ino).entry == entry
        return False

    # --- reaping ------------------------------------------------------------------------------------------------------

    def reap(self) -> int:
        """Remove what dead writers left under temporary names."""
        reaped = 0
        for ino in list(self._entries.temporary):
            raw = self._catalog.get(temporary_key(ino))
            if raw is None or not self._is_abandoned(ino, *_fields(raw)):
                continue
            for parent, name in self._tree.names_of(ino):
                if self._drop(ino, parent, name):
                    self.invalidate(parent, name)
                    reaped += 1
        return reaped

    def _is_abandoned(self, ino: int, since: int, pid: int) -> bool:
        """Whether its writer is gone and nobody went on with it: with a folder, or with anything below it."""
        seconds = self.temporary_seconds if pid else self.temporary_unknown_seconds
        horizon = time.time_ns() - int(seconds * 1e9)
        if since > horizon or (pid and _is_running(pid)):
            return False
        with contextlib.suppress(FsError):  # something of it went just now
            inodes = [ino, *(below for below, _, _ in self.below(ino))]
            if not any(below in self._nodes.handles or self.attributes(below).mtime > horizon for below in inodes):
                return not self._is_open(ino, inodes)
        return False

    def _is_open(self, ino: int, inodes: list[int]) -> bool:
        """Whether somebody has it, or something below it, open or mapped, or works there."""
        if not any(self._nodes.is_held(below) for below in inodes):
            return False
        for parent, name in self._tree.names_of(ino):
            self.invalidate(parent, name)
        return self._stays(lambda: any(self._nodes.is_held(below) for below in inodes))

    def _drop(self, ino: int, parent: int, name: bytes) -> bool:
        with self._nodes.change() as txn:
            if self._tree.find(parent, name) != ino:
                return False  # it was given another name just now
            self._remove(txn, [(ino, parent, name), *self.below(ino)])
        return True

    def _remove(self, txn: Transaction, members: list[tuple[int, int, bytes]]) -> None:
        """Take all of them away, what is in a folder before the folder."""
        for ino, parent, name in reversed(members):
            self._tree.remove(txn, parent, name, ino, self._nodes.get(ino))

    def below(self, ino: int) -> Iterator[tuple[int, int, bytes]]:
        """Everything in a folder, as (inode, folder, name), folders before what is in them."""
        folders = [ino] if self._nodes.get(ino).is_dir else []
        while folders:
            folder = folders.pop()
            rows = [(unpack_name(raw)[0], name_of(key)[1]) for key, raw in self._catalog.scan(names_prefix(folder))]
            for start in range(0, len(rows), _HELPING):
                helping = rows[start : start + _HELPING]
                self._nodes.get_ready(child for child, _ in helping)
                for child, name in helping:
                    yield child, folder, name
                    if self._nodes.get(child).is_dir:
                        folders.append(child)

    # --- by hand ------------------------------------------------------------------------------------------------------

    def pin(self, entry: int, pinned: bool) -> bool:
        """Keep an entry whatever happens, or let it grow old like the others."""
        with self._nodes.change() as txn:
            raw = txn.get(entry_key(entry))
            if raw is None:
                return False
            record = EntryRecord.unpack(raw)
            if pinned:
                record.flags |= EntryRecord.PINNED
                txn.delete(order_key(record.namespace, record.used))
            else:
                record.flags &= ~EntryRecord.PINNED
                txn.put(order_key(record.namespace, record.used), pack_number(entry))
            txn.put(entry_key(entry), record.pack())
        return True


def _is_running(pid: int) -> bool:
    """Also where /proc hides other users' processes."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _fields(raw: bytes) -> tuple[int, int]:
    return unpack_number(raw[:8]), unpack_number(raw[8:16])
