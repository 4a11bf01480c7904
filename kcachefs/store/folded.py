"""Folded records: the records in LMDB, each value checked against its checksum when it is read.

A record that fails its check is reported once and a copy goes to the quarantine. If its table is in
`records.EXPENDABLE` it then counts as absent; elsewhere absence would do harm, and reading it raises RecordDamaged.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from zlib import crc32

import lmdb
from blake3 import blake3

from kcachefs.errors import RecordDamaged, StoreClosed, StoreError
from kcachefs.store.checksum import INTACT, is_intact, show_key, with_checksum
from kcachefs.store.journal import Changes, Mark
from kcachefs.store.lmdb_file import close_compact, free_bytes, lmdb_error, open_lmdb, write_error
from kcachefs.store.records import EXPENDABLE, META_FOLDED

log = logging.getLogger(__name__)

_MARK = struct.Struct("<QQ")
_BATCH = 256
"""Records put at once, so that their checksums and tuples are not all in memory together."""
_FIRST_PAGE = 16
"""Records in the first page that is read: most folders have fewer names, and reading more than that is wasted."""
_PAGE = 1000
"""Records that a walk reads at a time, so that it holds no LMDB snapshot while its caller works."""


class FoldedRecords:
    """The LMDB file in `directory`. Any thread may read; one thread at a time writes."""

    def __init__(self, directory: Path, quarantine: Path, map_size: int) -> None:
        self.damaged = 0
        """Records that failed their checksum since the file was opened."""
        self.env = open_lmdb(directory, map_size)
        self._directory = directory
        self._quarantine = quarantine
        self._reported: set[bytes] = set()
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        try:
            txn = self.env.begin()
            raw = txn.get(key)
            txn.abort()  # quicker than `with`, on the busiest path there is; a failed transaction ends by itself
        except lmdb.Error as error:
            raise self._unreadable(error) from error
        return None if raw is None else self._checked(key, raw)

    def get_many(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """The records that exist among `keys`, from one snapshot."""
        try:
            with self.env.begin() as txn, txn.cursor() as cursor:
                rows = cursor.getmulti(keys)
        except lmdb.Error as error:
            raise self._unreadable(error) from error
        for key, raw in rows:
            if (value := self._checked(key, raw)) is not None:
                yield key, value

    def snapshot(self) -> lmdb.Transaction[bytes]:
        """The present state, for `rows`."""
        try:
            return self.env.begin()
        except lmdb.Error as error:
            raise self._unreadable(error) from error

    def rows(
        self,
        snapshot: lmdb.Transaction[bytes],
        prefix: bytes,
        start: bytes,
        limit: int,
        hidden: Callable[[bytes], bool] | None,
    ) -> list[tuple[bytes, bytes]]:
        """At most `limit` records under `prefix` from `start` on, in key order, except hidden ones. Ends `snapshot`."""
        found: list[tuple[bytes, bytes]] = []
        start, size = max(prefix, start), _FIRST_PAGE
        try:
            with snapshot, snapshot.cursor() as cursor:
                rows = cursor.iternext() if cursor.set_range(start) else iter(())
                # In pages, because a listing waits for each name, and the interpreter accounts for most of that time.
                while len(found) < limit and (page := list(islice(rows, min(size, limit - len(found))))):
                    size = min(4 * size, _PAGE)
                    keys = [key for key, _ in page]
                    # A damaged tree could lead in a circle, and this loop would never end.
                    if keys[0] < start or any(map(operator.ge, keys, keys[1:])):
                        raise lmdb.CorruptedError("keys are out of order")
                    start, is_last = keys[-1] + b"\0", not keys[-1].startswith(prefix)
                    if is_last:
                        page = [row for row in page if row[0].startswith(prefix)]
                    if hidden is not None:
                        page = [row for row in page if not hidden(row[0])]
                    found += self._all_checked(page)
                    if is_last:
                        break
        except lmdb.Error as error:
            raise self._unreadable(error) from error
        return found

    def _all_checked(self, rows: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        intact = [(key, raw[:-4]) for key, raw in rows if crc32(raw, crc32(key)) == INTACT]
        if len(intact) < len(rows):
            for key, raw in rows:
                self._checked(key, raw)  # reports the damaged ones, or raises
        return intact

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        """Every record under `prefix`; a value that fails its checksum is None. Logs no damage: fsck reports it."""
        start, more = prefix, True
        while more:
            more = False
            page: list[tuple[bytes, bytes]] = []
            try:
                with self.env.begin() as txn, txn.cursor() as cursor:
                    if cursor.set_range(start):
                        for key, raw in _ascending(cursor, start):
                            if not key.startswith(prefix):
                                break
                            page.append((key, raw))
                            if len(page) == _PAGE:
                                start, more = key + b"\0", True
                                break
            except lmdb.Error as error:
                raise self._unreadable(error) from error
            for key, raw in page:
                yield key, (raw[:-4] if is_intact(key, raw) else None)

    def mark(self) -> Mark:
        """How far the journal was folded. If the mark cannot be read, all remaining segments are replayed."""
        try:
            with self.env.begin() as txn:
                raw = txn.get(META_FOLDED)
        except lmdb.Error as error:
            raise self._unreadable(error) from error
        return Mark(*_MARK.unpack(raw[:-4])) if raw is not None and is_intact(META_FOLDED, raw) else Mark(0, 0)

    def write(self, changes: Changes, mark: Mark) -> None:
        """Commit changes, together with the mark that records how far the journal is folded, with a full sync."""
        puts, deletes = _sorted_by_table(changes)
        try:
            with self.env.begin(write=True) as txn:
                with txn.cursor() as cursor:
                    for start in range(0, len(puts), _BATCH):
                        batch = ((key, changes[key]) for key in puts[start : start + _BATCH])
                        cursor.putmulti([(key, with_checksum(key, value)) for key, value in batch if value is not None])
                for key in deletes:
                    txn.delete(key)
                txn.put(META_FOLDED, with_checksum(META_FOLDED, _MARK.pack(*mark)))
        except lmdb.Error as error:
            raise write_error(self.env, error) from error

    def statistics(self) -> dict[str, int]:
        info, stat = self.env.info(), self.env.stat()
        return {
            "records": stat["entries"],
            "depth": stat["depth"],
            "bytes": (info["last_pgno"] + 1) * stat["psize"],
            "free_bytes": free_bytes(self.env),
            "damaged": self.damaged,
        }

    def close(self, *, compact: bool = False) -> None:
        """Close the file; with `compact`, rewrite it first without its free pages if there are many."""
        self._closed = True
        if compact:
            close_compact(self.env, self._directory)
        else:
            self.env.close()

    def _checked(self, key: bytes, raw: bytes) -> bytes | None:
        if crc32(raw, crc32(key)) == INTACT:
            return raw[:-4]
        self._set_aside(key, raw)
        if key[0] in EXPENDABLE:
            return None
        raise RecordDamaged(f"catalog record {show_key(key)} fails its checksum; run: kcachefs fsck --repair")

    def _set_aside(self, key: bytes, raw: bytes) -> None:
        if key in self._reported:
            return
        self._reported.add(key)
        self.damaged += 1
        log.error("catalog record %s fails its checksum and was set aside", show_key(key))
        with contextlib.suppress(OSError):
            (self._quarantine / f"record-{blake3(key).hexdigest(8)}").write_bytes(key + b"\n" + raw)

    def _unreadable(self, error: lmdb.Error) -> StoreError:
        return StoreClosed("the store is closed") if self._closed else lmdb_error("the catalog", error)


def _sorted_by_table(changes: Changes) -> tuple[list[bytes], list[bytes]]:
    """The keys to put and those to delete, each in order. A sort keeps the interpreter, so it has one table's keys."""
    tables: dict[int, tuple[list[bytes], list[bytes]]] = {}
    for key, value in changes.items():
        tables.setdefault(key[0], ([], []))[value is None].append(key)
    puts: list[bytes] = []
    deletes: list[bytes] = []
    for _, (put, deleted) in sorted(tables.items()):
        puts += sorted(put)
        deletes += sorted(deleted)
    return puts, deletes


def _ascending(cursor: lmdb.Cursor[bytes], start: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The records from the cursor on. A damaged tree could lead in a circle, and the walk would never end."""
    for key, raw in cursor:
        if key < start:
            raise lmdb.CorruptedError("keys are out of order")
        yield key, raw
        start = key + b"\0"
