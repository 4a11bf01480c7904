"""Runs: which program a request belongs to, and what each program gained and cost.

A run is the oldest ancestor process that uses the mount, with all processes below it: a training script and the
compilers that it starts are one run. A process is looked up in /proc when it first makes or hits an entry, while it
waits for its answer: many processes are short-lived, and on a busy machine they are gone before another thread gets to
look. A separate thread works out what that means for the runs.

A process may turn out later to have an ancestor that uses the mount as well. Then the ancestor takes the run over; if
it takes over several, they become one.

The last runs are in a ring file, so that a worker that takes over recognizes the processes that still exist. `_lock`
guards everything about runs, but not `_known`.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kcachefs.bounded import BoundedDict
from kcachefs.core.insight_info import RunInfo
from kcachefs.core.processes import Process, Story, process_of, tell
from kcachefs.core.start_profiles import StartProfiles
from kcachefs.errors import KcachefsError
from kcachefs.store import Store
from kcachefs.store.header import boot_id
from kcachefs.store.history_records import RunRecord

log = logging.getLogger(__name__)

_REMEMBERED = 2048
_COUNTED = 256
"""Runs whose counts are kept in memory; the counts of other runs are read when they are needed."""
_RECHECK_SECONDS = 5.0
"""How long a thread's number is trusted to mean the same thread."""
_PATIENCE_SECONDS = 1.0
_COVERED = 64
_WAITING = 1024
"""Threads whose runs may wait to be worked out; the runs of any more stay unknown."""


@dataclass(slots=True)
class Covered:
    """The time in which a run compiled a graph: the kernels made in that time are part of the graph."""

    run: int
    began: int
    ended: int


class _Known(NamedTuple):
    """A thread that was seen."""

    run: int
    """0 while nobody knows."""
    asked: float
    """When it was last looked up."""
    process: int
    """The process that it belongs to."""


@dataclass(slots=True)
class _Run:
    record: RunRecord
    ancestors: frozenset[Process] = frozenset()
    covered: list[Covered] = field(default_factory=list)
    is_changed: bool = False


class Runs:
    """The runs of one filesystem."""

    def __init__(self, store: Store, profiles: StartProfiles) -> None:
        self._ring = store.history.runs
        self._profiles = profiles
        self._known: BoundedDict[int, _Known] = BoundedDict(_REMEMBERED)
        self._queue: queue.SimpleQueue[tuple[int, Story | None]] = queue.SimpleQueue()
        self._asked = self._answered = 0
        self.latest = 0
        """The last thread seen, 0 after a flush: a caller that sees the same thread again need not call `seen`."""
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._by_process: BoundedDict[Process, int] = BoundedDict(_REMEMBERED)
        self._counted: dict[int, _Run] = {}
        self._into: BoundedDict[int, int] = BoundedDict(_REMEMBERED)
        """Runs that became part of another one."""
        self._boot = 0
        self._newest = 0

    # --- who asks: the catalog's lock is held -------------------------------------------------------------------------

    def seen(self, thread: int) -> None:
        """A thread makes or hits an entry. Quick except the first time: its process is looked up while it runs."""
        self.latest = thread
        known, now = self._known.get(thread), time.monotonic()
        is_known = known is not None and now - known.asked <= _RECHECK_SECONDS
        if thread and not is_known and self._asked - self._answered < _WAITING:
            story = tell(thread) if known is None else None
            if known is None:
                known = _Known(0, now, story.process.pid if story is not None else thread)
            self._known[thread] = known._replace(asked=now)
            self._asked += 1
            self._queue.put((thread, story))

    def of(self, thread: int | None) -> int:
        """The run that a thread belongs to; 0 if that is not known."""
        known = self._known.get(thread) if thread else None
        return self.current(known.run) if known is not None else 0

    def process_of(self, thread: int) -> int:
        """The process that a thread belongs to. For a thread that was seen, it is known even after the thread's end."""
        known = self._known.get(thread)
        return known.process if known is not None else process_of(thread)

    def current(self, run: int) -> int:
        """The run that this one has become part of, or itself."""
        while (above := self._into.get(run)) is not None:
            run = above
        return run

    # --- looking processes up -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look processes up as soon as they are seen. Without this they are looked up when they are counted."""
        self._thread = threading.Thread(target=self._look_up_forever, name="kcachefs-runs", daemon=True)
        self._thread.start()

    def catch_up(self) -> None:
        """Wait, but not for long, until every process that was seen has been looked up. Hold no lock."""
        if self._thread is None:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._look_up(*self._queue.get_nowait())
        until = time.monotonic() + _PATIENCE_SECONDS
        while self._answered < self._asked and time.monotonic() < until:
            time.sleep(0.001)

    def _look_up_forever(self) -> None:
        while True:
            self._look_up(*self._queue.get())

    def _look_up(self, thread: int, story: Story | None) -> None:
        try:
            story = story or tell(thread)
            if story is not None:
                with self._lock:
                    run = self._run_of(story)
                process = story.process.pid
                self._known[thread] = self._known[process] = _Known(run, time.monotonic(), process)
        except Exception:  # an unknown run must not end this thread
            log.exception("the process of thread %d could not be looked up", thread)
        finally:
            self._answered += 1

    def _run_of(self, story: Story) -> int:
        self._load()
        run = self._by_process.get(story.process)
        for ancestor in story.ancestors:
            above = self._by_process.get(ancestor)
            if above is not None and self.current(above) != run:
                run = self._merge(run, self.current(above))
        below = [number for number, one in self._counted.items() if story.process in one.ancestors]
        for number in below:
            if number != run:
                run = self._take_over(number, story) if run is None else self._merge(number, run)
        if run is None:
            run = self._begin(story)
        self._by_process[story.process] = run
        return run

    def _begin(self, story: Story) -> int:
        record = RunRecord(self._boot, story.process.ticks, story.process.pid, story.uid, story.started, time.time_ns())
        record.argv = story.argv
        number = self._newest = max(self._newest + 1, self._ring.next_number)
        self._keep(number, _Run(record, frozenset(story.ancestors), is_changed=True))
        self._write(number)
        self._profiles.run_began(number, story)
        return number

    def _take_over(self, number: int, story: Story) -> int:
        """A run is named after its root: a process above the present root becomes the root."""
        run = self._counted[number]
        new = run.record
        new.pid, new.ticks = story.process.pid, story.process.ticks
        new.uid, new.started, new.argv = story.uid, story.started, story.argv
        run.ancestors, run.is_changed = frozenset(story.ancestors), True
        return number

    def _merge(self, run: int | None, above: int) -> int:
        """Make a run part of another one, which takes over all its counts."""
        if run is not None and run != above:
            part, whole = self._get(run), self._get(above)
            if part is not None and whole is not None:
                for name in ("hits", "misses", "served", "compiled", "saved", "unknown_compiled", "unknown_saved"):
                    setattr(whole.record, name, getattr(whole.record, name) + getattr(part.record, name))
                    setattr(part.record, name, 0)
                whole.covered = [*whole.covered, *part.covered][-_COVERED:]
                part.record.into = above
                part.is_changed = whole.is_changed = True
                self._write(run)
                self._counted.pop(run, None)
            self._into[run] = above
        return above

    def load(self) -> None:
        """Read once what earlier workers knew: which processes are runs, and which runs are part of others."""
        with self._lock:
            self._load()

    def _load(self) -> None:
        if not self._boot:
            self._boot = int.from_bytes(bytes.fromhex(boot_id().replace("-", ""))[:8], "little") or 1
            for number, raw in self._ring.records():
                record = RunRecord.unpack(raw)
                if record.into:
                    self._into[number] = record.into
                elif record.boot == self._boot:
                    self._by_process[Process(record.pid, record.ticks)] = number

    # --- counting -----------------------------------------------------------------------------------------------------

    def add(self, run: int, **counts: int) -> None:
        """Add to the counts of a run, given by their names in `RunRecord`. Does nothing if the run is unknown."""
        with self._lock:
            found = self._get(self.current(run)) if run else None
            if found is not None:
                for name, count in counts.items():
                    setattr(found.record, name, max(0, getattr(found.record, name) + count))
                found.record.used, found.is_changed = time.time_ns(), True

    def cover(self, run: int, graph: Covered) -> None:
        """A run has hit a graph: the graph's kernels are not counted again."""
        with self._lock:
            found = self._get(self.current(run)) if run else None
            if found is not None:
                found.covered = [*found.covered, graph][-_COVERED:]

    def covered(self, run: int) -> list[Covered]:
        """The graphs that a run has hit."""
        with self._lock:
            found = self._counted.get(self.current(run))
            return found.covered if found is not None else []

    def flush(self) -> None:
        """Write down what was counted since the last time."""
        self.latest = 0
        with self._lock:
            for number in [number for number, run in self._counted.items() if run.is_changed]:
                self._write(number)

    def _get(self, number: int) -> _Run | None:
        found = self._counted.get(number)
        if found is None and (raw := self._ring.get(number)) is not None:
            found = _Run(RunRecord.unpack(raw))
            self._keep(number, found)
        return found

    def _keep(self, number: int, run: _Run) -> None:
        if len(self._counted) >= _COUNTED:
            oldest = min(self._counted, key=lambda one: self._counted[one].record.used)
            self._write(oldest)
            self._counted.pop(oldest, None)
        self._counted[number] = run

    def _write(self, number: int) -> None:
        run = self._counted[number]
        if number < self._ring.next_number - self._ring.slots:  # a newer run took its slot: it goes on as the newest
            self._counted.pop(number)
            self._newest = max(self._newest + 1, self._ring.next_number)
            self._into[number] = self._newest
            number = self._newest
            self._counted[number] = run
        try:
            self._ring.put(number, run.record.pack())
            run.is_changed = False
        except (KcachefsError, OSError) as error:
            log.debug("run %d was not written: %s", number, error)

    # --- reporting ----------------------------------------------------------------------------------------------------

    def all(self, uid: int | None, reader: int) -> list[RunInfo]:
        """Every run, or those of one user, the oldest first. Command lines are for root and the program's own user."""
        self.flush()
        return list(self._told(uid, reader))

    def _told(self, uid: int | None, reader: int) -> Iterator[RunInfo]:
        with self._lock:
            records = [(number, RunRecord.unpack(raw)) for number, raw in self._ring.records()]
        for number, one in records:
            if one.into or uid not in (None, one.uid):
                continue
            may_see = reader in (0, one.uid)
            yield RunInfo(
                run=number,
                pid=one.pid,
                uid=one.uid,
                started=one.started / 1e9,
                last_used=one.used / 1e9,
                argv=one.argv.decode(errors="replace") if may_see else "",
                hits=one.hits,
                misses=one.misses,
                bytes_served=one.served,
                seconds_compiled=one.compiled / 1e9,
                seconds_saved=one.saved / 1e9,
                unknown_compiled=one.unknown_compiled,
                unknown_saved=one.unknown_saved,
            )
