"""Makings: how each entry came to be, what it cost, and so what a hit on it saves.

The cost of a Triton entry is the time from the making of its folder, which Triton makes before it compiles, to its last
file. Both times are those of inodes, so a kill in between changes nothing. Elsewhere a folder is made when the work is
done already, and its times say nothing: the cost is unknown until somebody who can read the artefact reports it.
Unknown stays unknown, and is never taken for 0.

A graph's cost contains that of its kernels and of the code that was written for it. So those that the graph's own run
made while it compiled the graph are not counted for a run that has hit the graph. What autograd and tuning cost beyond
graphs and kernels is a part of its own: it contains nothing, and nothing contains it. A hit on what the same run made
saves nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from kcachefs.bounded import BoundedDict
from kcachefs.core.history import History
from kcachefs.core.insight_info import BASES, LONGEST_SECONDS, MadeEntry
from kcachefs.core.namespaces import Namespaces
from kcachefs.core.nodes import Nodes
from kcachefs.core.runs import Covered, Runs
from kcachefs.core.start_profiles import StartProfiles
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.entry_records import EntryRecord, entry_key
from kcachefs.store.history_records import UNKNOWN_COST, MakingRecord, making_key
from kcachefs.store.inode_numbers import GROUP_BASE
from kcachefs.store.records import Inode

SPAN, ARTEFACT, PART = (BASES.index(name) for name in ("span", "artefact", "part"))
LONGEST_NS = LONGEST_SECONDS * 10**9
PAUSE_NS = 600 * 10**9
"""A gap longer than this between two files is not counted as compiling."""
_TOLERANCE_NS = 500_000_000
"""How far a kernel's making may reach outside its graph's: the graph is written a moment after it was compiled."""
_AT_ONCE_NS = 200_000_000
"""A file of a group that is begun this long after the last one ended was added later."""

_REMEMBERED = 16384

Hits = Counter[tuple[int, int]]
"""How often an entry was hit, by user and process."""


class Makers(NamedTuple):
    """The processes that made an entry whose files were sealed; None for those that nobody knows any more."""

    entry: int | None
    files: Sequence[int | None]
    replacing: Collection[int]
    """Those whose files took the names of others'."""
    rivals: Collection[int]
    """Those that made the same files at the same time."""


class Hit(NamedTuple):
    """Hits of an entry, as they are written down."""

    entry: int
    record: EntryRecord
    hits: Hits


class Makings:
    """How the entries of one filesystem were made."""

    def __init__(
        self,
        store: Store,
        nodes: Nodes,
        namespaces: Namespaces,
        history: History,
        runs: Runs,
        profiles: StartProfiles,
    ) -> None:
        self._catalog = store.catalog
        self._nodes = nodes
        self._namespaces = namespaces
        self._history = history
        self._runs = runs
        self._profiles = profiles
        self._counted: BoundedDict[tuple[int, int], None] = BoundedDict(_REMEMBERED)
        """Entries, each with a process that made it and was counted as having missed it."""

    def get(self, entry: int, source: Transaction | None = None) -> MakingRecord | None:
        raw = (source or self._catalog).get(making_key(entry))
        return MakingRecord.unpack(raw) if raw is not None else None

    # --- making -------------------------------------------------------------------------------------------------------

    def files_sealed(
        self,
        txn: Transaction,
        entry: int,
        record: EntryRecord,
        nodes: Sequence[Inode],
        makers: Makers,
        *,
        is_miss: bool,
    ) -> int:
        """Files of an entry were sealed; `record` is the entry's before that. Returns how many misses that makes.

        `is_miss`: if this lists the entry, it counts as a miss. So does each other run that writes into the entry, and
        each further process of a run that made the same files; but not a run that only adds to a complete group.
        """
        making, run = self.get(entry, txn), self._runs.of(makers.entry)
        misses, rest = 0, zip(nodes, makers.files, strict=True)
        # A record without a use, but with a making, has inherited it: every sealed file was replaced.
        is_new = not record.used
        if making is None:
            if not is_new:
                return 0  # an entry of an older version: nobody knows when it was begun
            node, author = next(rest)
            making, is_new = self._begin(txn, entry, record, node, self._runs.of(author) or run, is_miss), False
            misses += is_miss
            self._count_maker(txn, entry, author or makers.entry or 0)
        making.run = making.run or run
        for node, author in rest:
            ended = _ended(node)
            writing = self._runs.of(author) or (run if is_new else 0)
            if (writing and making.run and writing != self._runs.current(making.run)) or (is_new and not writing):
                # A log or a database that is kept in an entry was not compiled again.
                if not node.flags & Inode.MUTABLE and (
                    author in makers.replacing or not _joins_complete_group(entry, node, making)
                ):
                    misses += self._note_rewrite(txn, entry, record, making, writing, author or 0)
            elif 0 <= ended - making.ended <= PAUSE_NS:
                making.ended = ended
                if making.basis == SPAN:
                    self._set_cost(txn, record, making)
            is_new = False
        txn.put(making_key(entry), making.pack())
        for process in makers.rivals:
            rival = self._runs.of(process)
            if rival and self._count_maker(txn, entry, process):
                self._tally(txn, record, rival, misses=1, unknown=1)  # nobody saw when it began
                misses += 1
        return misses

    def _count_maker(self, txn: Transaction, entry: int, maker: int) -> bool:
        """Count a process that made an entry as one that missed it; False if it was counted already."""
        key = entry, maker
        if key in self._counted:
            return False
        if maker:
            self._counted[key] = None
            txn.undo(lambda: self._counted.pop(key, None))
        return True

    def inherit(self, txn: Transaction, entry: int, making: MakingRecord) -> None:
        """Every sealed file of an entry was replaced: how it was first made is still known."""
        txn.put(making_key(entry), making.pack())

    def _begin(
        self, txn: Transaction, entry: int, record: EntryRecord, node: Inode, run: int, is_miss: bool
    ) -> MakingRecord:
        making = MakingRecord(self._began(entry, record), _ended(node), run=run)
        self._profiles.note(run, entry)
        if is_miss:
            is_remade = self._history.was_evicted_for_room(record)
            self._tally(txn, record, run, misses=1, remade=int(is_remade))
            if is_remade:
                making.flags |= MakingRecord.REMADE
            if self._is_span_known(record):
                making.basis = SPAN
                self._set_cost(txn, record, making)
            if making.cost == UNKNOWN_COST:
                self._tally(txn, record, run, unknown=1)
        return making

    def _set_cost(self, txn: Transaction, record: EntryRecord, making: MakingRecord) -> None:
        span = making.ended - making.began
        if not 0 <= span <= LONGEST_NS:
            making.basis = 0
            return
        more = span - max(0, making.cost)
        making.cost = span
        self._tally(txn, record, making.run, compiled=more)

    def _note_rewrite(
        self, txn: Transaction, entry: int, record: EntryRecord, making: MakingRecord, run: int, author: int
    ) -> bool:
        """True if that run had not written into the entry before, and so missed it."""
        is_first = (making.rewriter != run or not making.rewritten) and self._count_maker(txn, entry, author)
        if is_first:
            self._tally(txn, record, run, misses=1, unknown=1)  # nobody saw when this run began
            path = self._history.path_of(record)
            detail = f"by run {run}" if run else ""
            note = partial(self._history.note_event, "rewritten", uid=record.uid, path=path or "", detail=detail)
            txn.then(note)  # not before: on a full disk each new try would tell it again
        making.rewritten, making.rewriter = time.time_ns(), run
        return is_first

    def _tally(
        self,
        txn: Transaction,
        record: EntryRecord,
        run: int,
        *,
        misses: int = 0,
        remade: int = 0,
        compiled: int = 0,
        unknown: int = 0,
    ) -> None:
        """Count this in memory, for the user who made the entry and for a run, unless the transaction fails."""
        row = self._history.row(record.namespace, record.uid)

        def add(sign: int) -> None:
            row.misses += sign * misses
            row.remade += sign * remade
            row.compiled += sign * compiled
            self._runs.add(run, misses=sign * misses, compiled=sign * compiled, unknown_compiled=sign * unknown)

        add(+1)
        txn.undo(lambda: add(-1))

    def _began(self, entry: int, record: EntryRecord) -> int:
        if entry < GROUP_BASE:
            with contextlib.suppress(FsError):
                return self._nodes.get(entry).atime  # nothing changes it after the folder was made
        return record.created

    def _is_span_known(self, record: EntryRecord) -> bool:
        """Whether the entry's folder was made before the work began, as Triton's is, also inside Inductor's cache."""
        label, path = self._place(record)
        return (label == "triton" and len(path) == 1) or (label == "inductor" and path[:1] == (b"triton",))

    def _place(self, record: EntryRecord) -> tuple[str, tuple[bytes, ...]]:
        """The label of an entry's namespace and its path in it; nothing if it is gone."""
        with contextlib.suppress(FsError):
            return self._namespaces.label_of(record.namespace), self._namespaces.path_in(record)
        return "", ()

    def set_costs(self, costs: dict[int, int], parts: dict[int, int]) -> int:
        """Note what entries cost by their artefacts, in nanoseconds; returns how many of the entries are here.

        `costs` include what was made in that time, `parts` are what no other entry accounts for.
        """
        self._catalog.fold()
        spans = [self._covered(one) for one in self._all() if one.basis == SPAN and one.run]
        found = [self._set_artefacts_cost(entry, cost, ARTEFACT, spans) for entry, cost in costs.items()]
        found += [self._set_artefacts_cost(entry, cost, PART, []) for entry, cost in parts.items()]
        return sum(found)

    def _set_artefacts_cost(self, entry: int, cost: int, basis: int, spans: list[Covered]) -> bool:
        with self._nodes.change() as txn:
            making, raw = self.get(entry, txn), txn.get(entry_key(entry))
            if making is None or raw is None:
                return False
            was_unknown, known = making.cost == UNKNOWN_COST, max(0, making.cost)
            is_new = making.basis not in (ARTEFACT, PART)
            making.cost, making.basis = cost, basis
            txn.put(making_key(entry), making.pack())
            if is_new:
                own = self._covered(making)
                known += sum(one.ended - one.began for one in spans if _contains(own, one))
                record, more = EntryRecord.unpack(raw), max(0, cost - known)
                self._tally(txn, record, making.run, compiled=more, unknown=-was_unknown)
        return True

    def _all(self) -> Iterator[MakingRecord]:
        for _, raw in self._catalog.walk(b"d"):
            if raw is not None:
                yield MakingRecord.unpack(raw)

    def _covered(self, making: MakingRecord) -> Covered:
        """When an entry was being made, and by which run."""
        began = making.ended - making.cost if making.basis == ARTEFACT else making.began
        return Covered(self._runs.current(making.run), began, making.ended)

    # --- hits ---------------------------------------------------------------------------------------------------------

    def count_hits(self, found: list[Hit]) -> None:
        """Count what these hits saved: graphs first, because a graph's kernels count with it."""
        for hit in found:
            for _, process in hit.hits:
                self._profiles.note(self._runs.of(process), hit.entry)
        makings = [(self.get(hit.entry), hit) for hit in found]
        makings.sort(key=lambda pair: pair[0] is None or pair[0].basis != ARTEFACT)
        for making, (_, record, hits) in makings:
            for (uid, process), count in hits.items():
                run = self._runs.of(process)
                saved = self._saved(run, record, making)
                served = count * record.plain
                with self._catalog.lock:
                    row = self._history.row(record.namespace, uid)
                    row.hits += count
                    row.served += served
                    row.saved += count * (saved or 0)
                is_unknown = saved is None
                self._runs.add(
                    run, hits=count, served=served, saved=count * (saved or 0), unknown_saved=count * is_unknown
                )

    def _saved(self, run: int, record: EntryRecord, making: MakingRecord | None) -> int | None:
        """What a hit of a run saves; None if nobody knows."""
        if making is None:
            return None
        own = self._covered(making)
        if run and own.run == run:
            return 0  # its own compilers made it: a start with an empty cache loads it as well
        if making.basis == ARTEFACT:
            self._runs.cover(run, own)
        elif (
            making.run
            and any(_contains(graph, own) for graph in self._runs.covered(run))
            and (making.basis == SPAN or (making.cost == UNKNOWN_COST and self._is_code(record)))
        ):
            return 0
        return making.cost if making.cost != UNKNOWN_COST else None

    def _is_code(self, record: EntryRecord) -> bool:
        """Whether the entry is code that Inductor wrote for a graph: `ab/cabxyz...`."""
        label, path = self._place(record)
        return label == "inductor" and len(path) == 2 and path[1].startswith(b"c" + path[0])

    # --- telling ------------------------------------------------------------------------------------------------------

    def is_of(self, entry: int, record: EntryRecord, *, run: int | None, since: float | None) -> bool:
        """Whether `run` made an entry or wrote into it, or anybody has since `since`."""
        making = self.get(entry)
        written = record.created if making is None else max(making.began, making.ended, making.rewritten)
        if since is not None and written / 1e9 >= since:
            return True
        makers = {making.run, making.rewriter} - {0} if making is not None else set()
        return any(self._runs.current(one) == run for one in makers)

    def tell(self, info: MadeEntry) -> MadeEntry:
        """An entry with all that is known of its making."""
        making = self.get(info.entry)
        if making is None:
            return info
        return msgspec.structs.replace(
            info,
            began=making.began / 1e9,
            ended=making.ended / 1e9,
            run=self._runs.current(making.run),
            cost=making.cost / 1e9 if making.cost != UNKNOWN_COST else None,
            basis=BASES[making.basis] if making.cost != UNKNOWN_COST and making.basis < len(BASES) else "",
            rewritten=making.rewritten / 1e9 if making.rewritten else None,
            rewriter=self._runs.current(making.rewriter),
            remade=bool(making.flags & MakingRecord.REMADE),
        )


def _ended(node: Inode) -> int:
    """When a file was last written. A copy that was given an older time was written when it was made."""
    return max(node.mtime, node.atime) if node.mtime <= time.time_ns() else node.atime


def _joins_complete_group(entry: int, node: Inode, making: MakingRecord) -> bool:
    return entry >= GROUP_BASE and node.atime - making.ended >= _AT_ONCE_NS


def _contains(graph: Covered, own: Covered) -> bool:
    """Whether something was made by the same run, and while it compiled a graph."""
    return (
        graph != own
        and graph.run == own.run
        and graph.began - _TOLERANCE_NS <= own.began
        and own.ended <= graph.ended + _TOLERANCE_NS
    )
