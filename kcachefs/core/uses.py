"""Uses: what counts as a use of an entry, and when it is written down.

The name of an entry expires in the kernel after `HEARTBEAT_SECONDS`. So a process that comes to an entry costs one
lookup, however many files it then reads, and that lookup is the use. Writing is a use as well. Uses gather in memory
and are written down every few seconds: a kill loses the uses and the hits of these seconds, and nothing else.

Looking around does not count as use: a process that lists a folder (`find`, `du`, a backup, a monitoring agent) and
then looks at what it found would make every entry young. So the lookups of a process in a folder that it has listed do
not count, nor does the lookup of an entry whose folder it then lists. Reading a file counts all the same, and so does
the question whether it is a terminal, which Python asks of every file that it opens.

A hit is an entry found complete by a process that did not write it, and counts as serving all its bytes. A miss is an
entry that had to be made; it is counted when the entry is listed. Several processes that make the same entry at once
replace each other's files: each of them missed it, and none has a hit when it comes back for what it made. A file that
is added to a complete group is not a miss: JAX notes in such files when it read an executable.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from kcachefs.bounded import BoundedDict
from kcachefs.core.caller import Caller
from kcachefs.core.future_uses import FutureUses
from kcachefs.core.makings import Hit, Hits, Makers, Makings
from kcachefs.core.nodes import Nodes
from kcachefs.core.processes import process_of
from kcachefs.core.runs import Runs
from kcachefs.errors import StoreError
from kcachefs.store.catalog import Transaction
from kcachefs.store.entry_table import EntryTable
from kcachefs.store.inode_numbers import GROUP_BASE

HEARTBEAT_SECONDS = 1
"""How long the kernel may remember an entry's name before it asks again."""
COMPLETE_NS = 200_000_000
"""How long after its last write an entry counts as complete: nothing says when its writer is done."""
LISTED_NS = 60_000_000_000
"""How long after a process listed a folder its lookups there count as looking around."""
_FLUSH_CHUNK = 200
_REMEMBERED = 65536
_RIVALRIES = 4096


class _Use(NamedTuple):
    """A use that is taken back if its caller goes on to list the entry's folder."""

    entry: int
    caller: Caller
    before: int | None
    """The use of the entry before this one, if that was not written down yet."""
    process: int
    """The process for which it counted as a hit; 0 if it did not."""


class Uses:
    """The uses of one filesystem's entries. The catalog's lock guards those that are not written down yet."""

    def __init__(self, nodes: Nodes, table: EntryTable, runs: Runs, makings: Makings, future: FutureUses) -> None:
        self._nodes = nodes
        self._future = future
        self._table = table
        self._clock = table.clock
        self._runs = runs
        self._makings = makings
        self._writers: BoundedDict[int, int] = BoundedDict(_REMEMBERED)
        """The thread that made an entry's newest name."""
        self._authors: BoundedDict[int, int] = BoundedDict(_REMEMBERED)
        """The thread that made a file, until it is sealed."""
        self._replacing: BoundedDict[int, bool] = BoundedDict(_REMEMBERED)
        """Files that took the name of a file that somebody else had made, until they are sealed."""
        self._rivals: BoundedDict[int, dict[int, None]] = BoundedDict(_RIVALRIES)
        """Processes that made the same files of an entry at the same time."""
        self._written: BoundedDict[int, int] = BoundedDict(_REMEMBERED)
        """When an entry was last written to."""
        self._seen: BoundedDict[tuple[int, int], None] = BoundedDict(_REMEMBERED)
        """Entries, each with a process that has used it: a process hits an entry once."""
        self.listed: BoundedDict[tuple[int, int], int] = BoundedDict(_REMEMBERED)
        """When a process last listed a folder."""
        self._newest: _Use | None = None
        self._hits: dict[int, Hits] = {}
        """Hits that are not written down yet, by entry, and by user and process."""
        self.last: dict[int, int] = {}
        """Uses that are not written down yet: when each entry was last used."""

    def written(self, entry: int) -> None:
        """A file of an entry is being written: that is a use, and for a moment the entry is not complete."""
        self.last[entry] = self._written[entry] = self._clock.now()

    def sealed(self, entry: int) -> None:
        """A file of an entry was sealed: its writer is done with it."""
        self._written.pop(entry, None)

    def note_writer(self, entry: int, caller: Caller) -> None:
        """The caller gave something in an entry its name: reading the entry is then not a hit for it."""
        self._writers[entry] = pid = caller.pid
        if pid != self._runs.latest:
            self._runs.seen(pid)

    def note_author(self, ino: int, caller: Caller) -> None:
        """The caller made a file, perhaps inside of an entry that another process had made."""
        self._authors[ino] = pid = caller.pid
        if pid != self._runs.latest:
            self._runs.seen(pid)

    def note_replaced(self, entry: int, ino: int, other: int) -> None:
        """A file of an entry took the name of another. Two processes that made them at the same time both missed it."""
        thread, before = self._authors.get(ino), self._authors.pop(other, None)
        was_replacing = self._replacing.pop(other, False)
        if not thread:
            return
        if thread == before:
            if was_replacing:
                self._replacing[ino] = True
            return
        process_of = self._runs.process_of
        makers = dict.fromkeys(process_of(one) for one in (before, thread) if one)
        if was_replacing or not before or len(makers) > 1:
            self._replacing[ino] = True
        for process in makers:
            self._has_made(entry, process)
        if len(makers) > 1:
            self._rivals[entry] = self._rivals.get(entry, {}) | makers

    def take_makers(self, txn: Transaction, entry: int, inodes: Iterable[int]) -> Makers:
        """Who made an entry whose files were sealed, as far as it is known. None of them has a hit there.

        The authors of these files are forgotten, unless the transaction fails.

        A process that has hit a group and then only added a file to it did not make it.
        """
        process_of = self._runs.process_of
        authors: list[int | None] = []
        replacing: set[int] = set()
        for ino in inodes:
            thread, is_replacing = self._authors.pop(ino, None), self._replacing.pop(ino, False)
            txn.undo(partial(self._remember, ino, thread, is_replacing))
            process = process_of(thread) if thread else 0
            if not thread or (not is_replacing and self._only_adds(entry, process)):
                authors.append(None)
                continue
            authors.append(process)
            if is_replacing:
                replacing.add(process)
            self._seen[entry, thread] = None
            self._has_made(entry, process)
        writer = self._writers.get(entry)
        return Makers(process_of(writer) if writer else None, authors, replacing, self._rivals.get(entry, {}))

    def _remember(self, ino: int, thread: int | None, is_replacing: bool) -> None:
        if thread is not None:
            self._authors[ino] = thread
        if is_replacing:
            self._replacing[ino] = True

    def _only_adds(self, entry: int, process: int) -> bool:
        """Whether a process that made a file of a group has found the group complete before."""
        hits = self._hits.get(entry) if entry >= GROUP_BASE else None
        return hits is not None and any(one == process and count for (_, one), count in hits.items())

    def _has_made(self, entry: int, process: int) -> None:
        """A process that came to an entry went on to make it: coming to it was not a hit."""
        self._seen[entry, process] = None
        hits = self._hits.get(entry)
        for key in [one for one in hits if one[1] == process] if hits is not None else ():
            del self._hits[entry][key]
        if self._newest is not None and (self._newest.entry, self._newest.process) == (entry, process):
            self._newest = None

    def look_up(self, entry: int, parent: int, caller: Caller) -> None:
        """The kernel asked for an entry's name in a folder on behalf of a caller. The catalog's lock is held."""
        now = self._clock.now()
        listed = self.listed.get((caller.pid, parent))
        if listed is not None and 0 <= now - listed < LISTED_NS:
            return
        before = self.last.get(entry)
        self._newest = _Use(entry, caller, before, self._touch(entry, caller, now))

    def list_folder(self, folder: int, entry: int, caller: Caller) -> None:
        """A caller lists a folder. If it is an entry's, the lookup that led there was not a use."""
        if not caller.pid:
            return
        self.listed[caller.pid, folder] = self._clock.now()
        with self._nodes.lock:
            newest, self._newest = self._newest, None
            if entry and newest is not None and (newest.entry, newest.caller.pid) == (entry, caller.pid):
                self._take_back(newest)

    def _take_back(self, use: _Use) -> None:
        if use.before is None:
            self.last.pop(use.entry, None)
        else:
            self.last[use.entry] = use.before
        if use.process:
            self._hits[use.entry][use.caller.uid, use.process] -= 1
            for pid in (use.caller.pid, use.process):
                self._seen.pop((use.entry, pid), None)

    def use(self, entry: int, caller: Caller, *, may_hit: bool) -> None:
        """A caller opened or read a file of an entry."""
        with self._nodes.lock:
            if may_hit:
                self._touch(entry, caller, self._clock.now())
            else:
                self.last[entry] = self._clock.now()

    def _touch(self, entry: int, caller: Caller, now: int) -> int:
        """Note a use; returns the process for which it counts as a hit, or 0."""
        pid, written = caller.pid, self._written.get(entry)
        self.last[entry] = now
        if not pid or (written is not None and 0 <= now - written < COMPLETE_NS):
            return 0
        seen, writer = (entry, pid), self._writers.get(entry)
        if seen in self._seen or writer == pid:
            return 0
        self._seen[seen] = None
        process = process_of(pid)
        if writer is not None and process == self._runs.process_of(writer):
            return 0
        if process != pid:
            if (entry, process) in self._seen:
                return 0
            self._seen[entry, process] = None
        self._hits.setdefault(entry, Counter())[caller.uid, process] += 1
        self._runs.seen(process)
        return process

    def hit_by(self, uid: int) -> set[int]:
        """Entries with hits of a user that are not written down yet."""
        with self._nodes.lock:
            return {entry for entry, hits in self._hits.items() if any(one == uid for one, _ in +hits)}

    def renew(self, entries: set[int]) -> None:
        """These were found in use: they are young again."""
        self.last.update(dict.fromkeys(entries, self._clock.now()))

    def forget(self, entry: int) -> None:
        self.last.pop(entry, None)

    def flush(self) -> None:
        """Write down what was used since the last time. Hold no lock."""
        self._future.settle()
        with self._nodes.lock:
            used, self.last = self.last, {}
            hits, self._hits = self._hits, {}
            self._newest = None
            now = self._clock.now()
        self._runs.catch_up()  # a hit that is counted before its run is known is lost to that run for good
        # Uses that are later than now go first: the clock was set back since.
        pending = sorted(used.items(), key=lambda item: (item[1] <= now, item[1]))
        written: list[Hit] = []
        done = 0
        try:
            for start in range(0, len(pending), _FLUSH_CHUNK):
                some, chunk = pending[start : start + _FLUSH_CHUNK], list[Hit]()
                with self._nodes.change() as txn:
                    later = [one for one in some if not self._write_down(txn, one, now, hits, chunk)]
                self._put_back(later, hits)
                written += chunk
                done += len(some)
        finally:
            self._put_back(pending[done:], hits)  # a full disk: they are uses all the same
            self._makings.count_hits(written)

    def flush_if_possible(self) -> None:
        """The same for those who can do without: the evictor, which may make room for it, and who only looks."""
        with contextlib.suppress(StoreError, OSError):
            self.flush()

    def _write_down(
        self, txn: Transaction, use: tuple[int, int], now: int, all_hits: dict[int, Hits], written: list[Hit]
    ) -> bool:
        """False if it has to wait: the entry is not sealed yet, and its hits are kept until it is."""
        entry, when = use
        record = self._table.get(entry, txn)
        hits = +all_hits.get(entry, Counter())
        if record is not None and record.used:
            by_user: Counter[int] = Counter()
            for (uid, _), count in hits.items():
                by_user[uid] += count
            self._table.note_use(txn, entry, record, min(when, now), by_user)
            if hits:
                written.append(Hit(entry, record, hits))
            return True
        return not (hits and self._nodes.exists(entry & ~GROUP_BASE))

    def _put_back(self, uses: list[tuple[int, int]], hits: dict[int, Hits]) -> None:
        """Write these down another time."""
        with self._nodes.lock:
            for entry, when in uses:
                self.last.setdefault(entry, when)
                if kept := +hits.get(entry, Counter()):
                    self._hits.setdefault(entry, Counter()).update(kept)
