"""The catalog: an ordered map of records in LMDB, with a journal in front of it and the unfolded changes in memory.

A mutation is a `Transaction`: it collects changes under the catalog's lock, is acknowledged by one journal record, and
is then visible to every reader through the overlay. `fold` moves the gathered changes into LMDB with one full-sync
commit, off the caller's path. Any thread may read; any thread may transact; one thread at a time folds.

Readers look into the overlay first and into LMDB second, and a fold empties the overlay only after LMDB has committed.
So every change is found in at least one of the two, and the newer value is found first.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol

from kcachefs.errors import NoSpace, StoreClosed
from kcachefs.store.folded import FoldedRecords
from kcachefs.store.journal import Changes, Journal, Mark, replay
from kcachefs.store.lmdb_file import DEFAULT_MAP_SIZE

_NAMES = ord("n")
_NOTHING = object()


class Overlay:
    """Changes that are in the journal but not yet in LMDB."""

    __slots__ = ("names", "values")

    def __init__(self) -> None:
        self.values: Changes = {}
        self.names: dict[bytes, set[bytes]] = {}
        """Keys of changed names, by directory: a listing has to merge these changes in."""

    def update(self, changes: Changes) -> None:
        self.values.update(changes)
        for key in changes:
            if key[0] == _NAMES:
                self.names.setdefault(key[:9], set()).add(key)


class Transaction:
    """A mutation being put together; sees its own changes. Made by `Catalog.transaction`, never shared."""

    __slots__ = ("_catalog", "_then", "_undo", "changes")

    def __init__(self, catalog: Catalog, on_failure: Callable[[], None] | None = None) -> None:
        self._catalog = catalog
        self._undo: list[Callable[[], object]] = [] if on_failure is None else [on_failure]
        self._then: Callable[[], object] | None = None
        self.changes: Changes = {}

    def undo(self, step: Callable[[], object]) -> None:
        """Call `step`, with the lock still held, if this transaction is not acknowledged."""
        self._undo.append(step)

    def then(self, step: Callable[[], object]) -> None:
        """Call `step`, with the lock still held, once this transaction is acknowledged."""
        before = self._then
        self._then = step if before is None else lambda: (before(), step())

    def get(self, key: bytes) -> bytes | None:
        value = self.changes.get(key, _NOTHING)
        return self._catalog.get(key) if value is _NOTHING else value  # type: ignore[return-value]

    def put(self, key: bytes, value: bytes) -> None:
        self.changes[key] = value

    def delete(self, key: bytes) -> None:
        self.changes[key] = None

    def __enter__(self) -> Transaction:
        self._catalog.lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        done = False
        try:
            if kind is None:
                if self.changes:
                    self._catalog.commit(self.changes)
                done = True
                if self._then is not None:
                    self._then()
        finally:
            if not done:
                for step in self._undo:
                    step()
            self._catalog.lock.release()


class Observer(Protocol):
    """Notified of every commit, with the catalog's lock held. If `prepare` raises, the commit fails."""

    def prepare(self, changes: Changes) -> object:
        """A commit is about to be made; the catalog still shows the state before it."""

    def done(self, prepared: object) -> None:
        """The commit was made; `prepared` is what `prepare` returned."""


class Catalog:
    """Opens LMDB in `directory/catalog` and the journal in `directory/journal`, and replays the unfolded changes.

    `before_fold` is called before every commit to LMDB: the bytes that records refer to must be on disk before the
    records are. `freed` is called after a commit with every key that it deleted, to remove files whose last record is
    gone. `make_room` is called when the disk is full, to free as much as possible.
    """

    def __init__(
        self,
        directory: Path,
        *,
        freed: Callable[[list[bytes]], None] = lambda keys: None,
        before_fold: Callable[[], None] = lambda: None,
        make_room: Callable[[], None] = lambda: None,
        map_size: int = DEFAULT_MAP_SIZE,
    ) -> None:
        self.lock = threading.RLock()
        self._observer: Observer | None = None
        self._closed = False
        self._fold_lock = threading.Lock()
        self._freed = freed
        self._before_fold = before_fold
        self._make_room = make_room
        self._pending = Overlay()
        self._folding = Overlay()
        quarantine = directory / "quarantine"
        self._folded = FoldedRecords(directory / "catalog", quarantine, map_size)
        try:
            mark = self._folded.mark()
            self.recovered = 0
            """How many journal records were found that had not been folded."""
            for changes in replay(directory / "journal", quarantine, mark):
                self._pending.update(changes)
                self.recovered += 1
            self._journal = Journal(directory / "journal", mark)
        except BaseException:
            self._folded.close()
            raise

    def observe(self, observer: Observer) -> None:
        """Notify this observer of every commit from now on; it replaces any earlier observer."""
        self._observer = observer

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        value = self._pending.values.get(key, _NOTHING)
        if value is _NOTHING:
            value = self._folding.values.get(key, _NOTHING)
            if value is _NOTHING:
                return self._folded.get(key)
        return value  # type: ignore[return-value]

    def get_all(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The records that exist among `keys`, with one read of LMDB instead of many."""
        found: dict[bytes, bytes] = {}
        folded: list[bytes] = []
        for key in keys:
            value = self._pending.values.get(key, _NOTHING)
            if value is _NOTHING:
                value = self._folding.values.get(key, _NOTHING)
            if value is _NOTHING:
                folded.append(key)
            elif value is not None:
                found[key] = value  # type: ignore[assignment]
        found.update(self._folded.get_many(folded))
        return found

    def scan(self, prefix: bytes, start: bytes = b"", limit: int = 1 << 30) -> list[tuple[bytes, bytes]]:
        """At most `limit` records whose keys begin with `prefix`, from `start` on, in key order.

        Unfolded changes are merged in for names only; fold before scanning another table.
        """
        changed: Changes = {}
        with self.lock:
            for overlay in (self._folding, self._pending):
                for key in overlay.names.get(prefix[:9], ()):
                    if key >= start:
                        changed[key] = overlay.values[key]
            # Under the lock, so that a change that a fold is moving is either in the overlays or in the snapshot.
            snapshot = self._folded.snapshot()
        rows = self._folded.rows(snapshot, prefix, start, limit, changed.__contains__ if changed else None)
        if changed:
            complete = len(rows) < limit
            last = rows[-1][0] if rows else b""
            for key, value in changed.items():
                if value is not None and (complete or key <= last):
                    rows.append((key, value))
            rows.sort()
        return rows[:limit]

    def page(self, prefix: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Folded records under `prefix` from `start` on, except records that were deleted since they were folded."""
        snapshot = self._folded.snapshot()
        return self._folded.rows(
            snapshot, prefix, start, limit, lambda key: self._pending.values.get(key, _NOTHING) is None
        )

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        """Every folded record under `prefix`, with None in place of a value that fails its checksum."""
        return self._folded.walk(prefix)

    def keys(self, prefix: bytes) -> list[bytes]:
        """Every key under `prefix`, folded or not, even if its value is damaged."""
        with self.lock:
            changed = {**self._folding.values, **self._pending.values}
            there = {key for key, _ in self.walk(prefix)}
        for key, value in changed.items():
            if key.startswith(prefix):
                there.discard(key) if value is None else there.add(key)
        return sorted(there)

    def unfolded_keys(self) -> list[bytes]:
        """Keys that were set or deleted and are not in LMDB yet."""
        with self.lock:
            return [*self._folding.values, *self._pending.values]

    @property
    def trouble(self) -> str:
        """Why no change can be written; empty if changes can be written, as far as that is known."""
        return self._journal.trouble

    @property
    def unfolded(self) -> int:
        """Bytes of journal that a fold would retire."""
        return self._journal.length

    @property
    def damaged(self) -> int:
        """Records that failed their checksum since the catalog was opened."""
        return self._folded.damaged

    def statistics(self) -> dict[str, int]:
        pending, folding = self._pending, self._folding
        return {
            **self._folded.statistics(),
            "pending": len(pending.values) + (0 if folding is pending else len(folding.values)),
            "journal_bytes": self._journal.length,
        }

    # --- changing -----------------------------------------------------------------------------------------------------

    def transaction(self, on_failure: Callable[[], None] | None = None) -> Transaction:
        """`on_failure` is called, with the lock still held, if the transaction is not acknowledged."""
        return Transaction(self, on_failure)

    def commit(self, changes: Changes) -> None:
        """Acknowledge one mutation: journal first, then visible. The caller holds the lock."""
        if self._closed:
            raise StoreClosed("the store is closed")
        observer = self._observer
        prepared = observer.prepare(changes) if observer is not None else None
        try:
            self._journal.append(changes)
        except NoSpace:
            self._make_room()
            self._journal.append(changes)
        self._pending.update(changes)
        if observer is not None:
            observer.done(prepared)

    def sync(self) -> None:
        """When this returns, everything acknowledged so far survives a power cut."""
        with self.lock:
            segments = self._journal.segments()  # including segments whose fold has not committed yet
        for segment in segments:
            os.fdatasync(segment.fd)
        self._journal.sync_names()

    def fold(self) -> None:
        """Move pending changes into LMDB. If that fails, they stay in the journal and the overlay: nothing is lost."""
        with self._fold_lock:
            with self.lock:
                if not self._pending.values:
                    return
                try:
                    mark = self._journal.end if self._journal.is_empty else self._journal.rotate()
                except NoSpace:
                    # No room for another segment: fold with the lock held, and keep the segment. Writers wait,
                    # but the deletions among the changes make room again.
                    self._start_folding()
                    self._finish_folding(self._journal.end)
                    return
                self._start_folding()
            self._finish_folding(mark)

    def rest(self) -> None:
        """Give back disk space that is only reserved for future changes."""
        with self.lock:
            self._journal.rest()

    def keep_reserve(self) -> None:
        """Reserve again the space that deletions need on a full disk, if the disk has become short of room."""
        with self.lock:
            self._journal.keep_reserve()

    def close(self, *, fold: bool = True) -> None:
        """Release everything, after a fold if `fold` is set. Changes that are not folded stay in the journal."""
        with self.lock:
            self._closed = True
        try:
            if fold:
                self.fold()
        finally:
            self._journal.give_reserve_back()
            if not self._pending.values:
                self._journal.remove_before(Mark(self._journal.end.segment + 1, 0))
            self._journal.close()
            self._folded.close(compact=fold)

    def after_fork(self) -> None:
        """In a forked child: close the journal's descriptors."""
        # LMDB's file stays open: closing it would free the parent's slots in the reader table, which is shared.
        self._journal.close()

    # --- folding ------------------------------------------------------------------------------------------------------

    def _start_folding(self) -> None:
        self._folding, self._pending = self._pending, Overlay()

    def _finish_folding(self, mark: Mark) -> None:
        changes = self._folding.values
        try:
            self._before_fold()
            self._write_or_make_room(changes, mark)
        except BaseException:
            with self.lock:
                # One overlay serves as both: a reader without the lock may already have missed the change in
                # `_pending`. It looks into `_folding` next, and finds the change there.
                self._folding.update(self._pending.values)
                self._pending = self._folding
            raise
        with self.lock:
            self._folding = Overlay()
            self._journal.remove_before(mark)
        if deleted := [key for key, value in changes.items() if value is None]:
            self._freed(deleted)

    def _write_or_make_room(self, changes: Changes, mark: Mark) -> None:
        for make_room in (self._make_room, self._give_reserve_back):
            try:
                self._folded.write(changes, mark)
                return
            except NoSpace:
                make_room()
        self._folded.write(changes, mark)
        with self.lock:
            self._journal.reserve_what_is_left()

    def _give_reserve_back(self) -> None:
        with self.lock:
            self._journal.give_reserve_back()
