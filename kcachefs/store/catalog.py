"""The catalog: an ordered map of records in LMDB, with a journal before it and the unfolded changes in memory.

A mutation is a `Transaction`: it collects changes under the catalog's lock, is acknowledged by one journal record, and
is then visible to every reader through the overlay. `fold` moves what has gathered into LMDB with one full-sync commit,
off the caller's path. Any thread may read; any thread may transact; one thread at a time folds.

Readers look into the overlay first and into LMDB second, and the fold empties the overlay only after LMDB has
committed: so a change is always found in at least one of the two, and the newer is always found first.

Behind each value in LMDB stands a CRC-32 of its key and itself. LMDB has no checksums of its own, and a flipped bit
in a name's inode number would serve one file's bytes under the name of another.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import lmdb

from kcachefs.errors import NoSpace, RecordDamaged, StoreError
from kcachefs.store.journal import Changes, Journal, replay

DEFAULT_MAP_SIZE = 64 << 30
"""Address space set aside for LMDB, not disk: 64 GiB holds some 300 million records."""

_NAMES = ord("n")
_CRC = struct.Struct("<I")
_NOTHING = object()


class Overlay:
    """Changes that are in the journal but not yet in LMDB."""

    __slots__ = ("names", "values")

    def __init__(self) -> None:
        self.values: Changes = {}
        self.names: dict[bytes, set[bytes]] = {}
        """Keys of changed names, by directory: what a listing has to merge in."""

    def update(self, changes: Changes) -> None:
        self.values.update(changes)
        for key in changes:
            if key[0] == _NAMES:
                self.names.setdefault(key[:9], set()).add(key)


class Transaction:
    """A mutation being put together; sees its own changes. Made by `Catalog.transaction`, never shared."""

    __slots__ = ("_catalog", "_on_failure", "changes")

    def __init__(self, catalog: Catalog, on_failure: Callable[[], None] | None = None) -> None:
        self._catalog = catalog
        self._on_failure = on_failure
        self.changes: Changes = {}

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
        finally:
            if not done and self._on_failure is not None:
                self._on_failure()
            self._catalog.lock.release()


class Catalog:
    """Opens LMDB in `directory/catalog` and the journal in `directory/journal`, and recovers what was not folded.

    `freed` is called by a fold with every key that the fold deleted for good: the place to remove files whose last
    record is gone. It may be called again for the same keys after a crash.
    """

    def __init__(
        self,
        directory: Path,
        *,
        freed: Callable[[list[bytes]], None],
        before_fold: Callable[[], None] = lambda: None,
        map_size: int = DEFAULT_MAP_SIZE,
    ) -> None:
        self.lock = threading.RLock()
        self._fold_lock = threading.Lock()
        self._freed = freed
        self._before_fold = before_fold
        self._pending = Overlay()
        self._folding = Overlay()
        self._env = _open_lmdb(directory / "catalog", map_size)
        try:
            self.recovered = self._recover(directory)
            """How many journal records recovery found that had not been folded."""
            self._journal = Journal(directory / "journal")
            if self.recovered:
                with contextlib.suppress(NoSpace):  # a full disk does not keep a store shut: the journal has it all
                    self.fold()
            else:
                self._journal.remove_before(self._journal.number)
        except BaseException:
            self._env.close()
            raise

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        value = self._pending.values.get(key, _NOTHING)
        if value is _NOTHING:
            value = self._folding.values.get(key, _NOTHING)
            if value is _NOTHING:
                with self._env.begin() as txn:
                    raw = txn.get(key)
                return None if raw is None else _checked(key, raw)
        return value  # type: ignore[return-value]

    def scan(self, prefix: bytes, start: bytes = b"", limit: int = 1 << 30) -> list[tuple[bytes, bytes]]:
        """The records whose keys begin with `prefix`, from `start` on, in key order, at most `limit` of them.

        Unfolded changes are merged in for names; other tables are scanned after a fold.
        """
        changed: Changes = {}
        with self.lock:
            for overlay in (self._folding, self._pending):
                for key in overlay.names.get(prefix[:9], ()):
                    if key >= start:
                        changed[key] = overlay.values[key]
        rows: list[tuple[bytes, bytes]] = []
        with self._env.begin() as txn, txn.cursor() as cursor:
            if cursor.set_range(max(prefix, start)):
                for key, raw in cursor:
                    if not key.startswith(prefix) or len(rows) >= limit:
                        break
                    if key not in changed:
                        rows.append((key, _checked(key, raw)))
        if changed:
            complete = len(rows) < limit
            last = rows[-1][0] if rows else b""
            for key, value in changed.items():
                if value is not None and (complete or key <= last):
                    rows.append((key, value))
            rows.sort()
        return rows[:limit]

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        """Every folded record under `prefix`, with None in place of one that fails its checksum. For fsck."""
        start, more = prefix, True
        while more:
            more = False
            page: list[tuple[bytes, bytes]] = []
            with self._env.begin() as txn, txn.cursor() as cursor:
                if cursor.set_range(start):
                    for key, raw in cursor:
                        if not key.startswith(prefix):
                            break
                        page.append((key, raw))
                        if len(page) == 1000:
                            start, more = key + b"\0", True
                            break
            for key, raw in page:
                try:
                    yield key, _checked(key, raw)
                except RecordDamaged:
                    yield key, None

    # --- changing -----------------------------------------------------------------------------------------------------

    def transaction(self, on_failure: Callable[[], None] | None = None) -> Transaction:
        """`on_failure` is called, with the lock still held, when it is not acknowledged."""
        return Transaction(self, on_failure)

    def commit(self, changes: Changes) -> None:
        """Acknowledge one mutation: journal first, then visible. The lock is held."""
        self._journal.append(changes)
        self._pending.update(changes)

    def sync(self) -> None:
        """Everything acknowledged so far survives power loss when this returns."""
        self._journal.sync()

    @property
    def unfolded(self) -> int:
        """Bytes of journal that a fold would retire."""
        return self._journal.length

    @property
    def pending(self) -> int:
        return len(self._pending.values)

    def fold(self) -> None:
        """Move what is pending into LMDB. On failure nothing is lost: it stays in the journal and in the overlay."""
        with self._fold_lock:
            with self.lock:
                if not self._pending.values:
                    return
                number = self._journal.rotate()
                self._folding, self._pending = self._pending, Overlay()
            try:
                self._before_fold()
                self._write(self._folding.values)
            except BaseException:
                with self.lock:
                    merged = self._folding
                    merged.update(self._pending.values)
                    self._pending, self._folding = merged, Overlay()
                raise
            deleted = [key for key, value in self._folding.values.items() if value is None]
            with self.lock:
                self._folding = Overlay()
            if deleted:
                self._freed(deleted)
            self._journal.remove_before(number)

    def close(self, *, fold: bool = True) -> None:
        if fold:
            self.fold()
        self._journal.close()
        if fold:
            self._journal.remove_before(self._journal.number + 1)
        self._env.close()

    def statistics(self) -> dict[str, int]:
        info, stat = self._env.info(), self._env.stat()
        return {
            "records": stat["entries"],
            "depth": stat["depth"],
            "bytes": (info["last_pgno"] + 1) * stat["psize"],
            "pending": len(self._pending.values) + len(self._folding.values),
            "journal_bytes": self._journal.length,
        }

    def copy_to(self, directory: Path) -> None:
        """A walk over every page of LMDB's tree: fails when its structure is damaged."""
        self._env.copy(str(directory), compact=True)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _recover(self, directory: Path) -> int:
        records = 0
        for changes in replay(directory / "journal", directory / "quarantine"):
            self._pending.update(changes)
            records += 1
        return records

    def _write(self, changes: Changes) -> None:
        puts = sorted((key, value + _CRC.pack(_crc(key, value))) for key, value in changes.items() if value is not None)
        deletes = sorted(key for key, value in changes.items() if value is None)
        try:
            with self._env.begin(write=True) as txn:
                with txn.cursor() as cursor:
                    cursor.putmulti(puts)
                for key in deletes:
                    txn.delete(key)
        except lmdb.MapFullError as error:
            raise NoSpace("the catalog's map is full; evict something, or raise its size") from error
        except lmdb.DiskError as error:
            raise NoSpace(f"the catalog could not be written: {error}") from error
        except lmdb.Error as error:
            if getattr(error, "code", None) == errno.ENOSPC or "No space" in str(error):
                raise NoSpace("the disk is full; free some space and try again") from error
            raise StoreError(f"the catalog could not be written: {error}") from error


def _open_lmdb(directory: Path, map_size: int) -> lmdb.Environment:
    os.makedirs(directory, mode=0o700, exist_ok=True)
    try:
        # readahead off: lookups are random, and read-ahead would fill memory with neighbours nobody asked for.
        env = lmdb.open(str(directory), map_size=map_size, max_readers=64, readahead=False, meminit=False, mode=0o600)
        env.reader_check()
    except lmdb.VersionMismatchError as error:
        raise StoreError(f"{directory}: written by an incompatible LMDB; use the kcachefs that made it") from error
    except (lmdb.InvalidError, lmdb.CorruptedError) as error:
        raise StoreError(f"{directory}: the catalog is damaged ({error}); run: kcachefs fsck --repair") from error
    except lmdb.Error as error:
        if "No space" in str(error):
            raise NoSpace(f"{directory}: the disk is full; free some space and try again") from error
        raise StoreError(f"{directory}: the catalog cannot be opened: {error}") from error
    return env


def _crc(key: bytes, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(key))


def _checked(key: bytes, raw: bytes) -> bytes:
    value = raw[:-4]
    if zlib.crc32(value, zlib.crc32(key)) != int.from_bytes(raw[-4:], "little"):
        raise RecordDamaged(f"catalog record {key[:1].decode(errors='replace')}:{key[1:].hex()} fails its checksum")
    return value
