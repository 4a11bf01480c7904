"""The catalog: an ordered map of records in LMDB, with a journal before it and the unfolded changes in memory.

A mutation is a `Transaction`: it collects changes under the catalog's lock, is acknowledged by one journal record, and
is then visible to every reader through the overlay. `fold` moves what has gathered into LMDB with one full-sync commit,
off the caller's path. Any thread may read; any thread may transact; one thread at a time folds.

Readers look into the overlay first and into LMDB second, and the fold empties the overlay only after LMDB has
committed: so a change is always found in at least one of the two, and the newer is always found first.

Behind each value in LMDB stands a CRC-32 of its key and itself. LMDB has no checksums of its own, and a flipped bit in
a name's inode number would serve one file's bytes under the name of another. A record that fails its check is set
aside and reported; it then counts as absent, or raises RecordDamaged where absence would do harm
(`records.EXPENDABLE`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from zlib import crc32

import lmdb
import lmdb.verify
from blake3 import blake3

from kcachefs.errors import NoSpace, RecordDamaged, StoreClosed, StoreError, or_no_space
from kcachefs.store.descriptor import sync_directory
from kcachefs.store.journal import Changes, Journal, Mark, replay
from kcachefs.store.records import EXPENDABLE, META_FOLDED

log = logging.getLogger(__name__)

DEFAULT_MAP_SIZE = 64 << 30
"""Address space set aside for LMDB, not disk: 64 GiB holds some 300 million records."""

_NAMES = ord("n")
_LOCK_FILE_SIZE = 8192
_CRC = struct.Struct("<I")
_INTACT = 0x2144DF1C
"""What the CRC-32 of anything with its own CRC-32 behind it comes to."""
_MARK = struct.Struct("<QQ")
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

    __slots__ = ("_catalog", "_undo", "changes")

    def __init__(self, catalog: Catalog, on_failure: Callable[[], None] | None = None) -> None:
        self._catalog = catalog
        self._undo: list[Callable[[], object]] = [on_failure] if on_failure is not None else []
        self.changes: Changes = {}

    def undo(self, step: Callable[[], object]) -> None:
        """Have `step` taken, with the lock still held, if this is not acknowledged."""
        self._undo.append(step)

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
            if not done:
                for step in self._undo:
                    step()
            self._catalog.lock.release()


class Catalog:
    """Opens LMDB in `directory/catalog` and the journal in `directory/journal`, and replays what was not folded.

    `before_fold` is called ahead of every commit: what the records speak of must be on disk before they are. `freed` is
    called behind it with every key that was deleted for good: the place to remove files whose last record is gone.
    """

    def __init__(
        self,
        directory: Path,
        *,
        freed: Callable[[list[bytes]], None] = lambda keys: None,
        before_fold: Callable[[], None] = lambda: None,
        map_size: int = DEFAULT_MAP_SIZE,
    ) -> None:
        self.lock = threading.RLock()
        self.damaged = 0
        """Records that failed their checksum since the catalog was opened."""
        self._closed = False
        self._fold_lock = threading.Lock()
        self._freed = freed
        self._before_fold = before_fold
        self._quarantine = directory / "quarantine"
        self._reported: set[bytes] = set()
        self._pending = Overlay()
        self._folding = Overlay()
        self._env = _open_lmdb(directory / "catalog", map_size)
        try:
            mark = self._read_mark()
            self.recovered = self._replay(directory, mark)
            """How many journal records were found that had not been folded."""
            self._journal = Journal(directory / "journal", mark)
        except BaseException:
            self._env.close()
            raise

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        value = self._pending.values.get(key, _NOTHING)
        if value is _NOTHING:
            value = self._folding.values.get(key, _NOTHING)
            if value is _NOTHING:
                try:
                    txn = self._env.begin()
                    raw = txn.get(key)
                    txn.abort()  # a third quicker than a with, in the busiest line of all; what failed ends by itself
                except lmdb.Error as error:
                    raise self._unreadable(error) from error
                return None if raw is None else self._checked(key, raw)
        return value  # type: ignore[return-value]

    def get_all(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The records under these keys, those that there are: one look into LMDB instead of many."""
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
        try:
            with self._env.begin() as txn, txn.cursor() as cursor:
                rows = cursor.getmulti(folded)
        except lmdb.Error as error:
            raise self._unreadable(error) from error
        for key, raw in rows:
            if (whole := self._checked(key, raw)) is not None:
                found[key] = whole
        return found

    def scan(self, prefix: bytes, start: bytes = b"", limit: int = 1 << 30) -> list[tuple[bytes, bytes]]:
        """The records whose keys begin with `prefix`, from `start` on, in key order, at most `limit` of them.

        Unfolded changes are merged in for names; other tables are scanned after a fold.
        """
        changed: Changes = {}
        rows: list[tuple[bytes, bytes]] = []
        try:
            with self.lock:
                for overlay in (self._folding, self._pending):
                    for key in overlay.names.get(prefix[:9], ()):
                        if key >= start:
                            changed[key] = overlay.values[key]
                txn = self._env.begin()  # under the lock: what a fold moves meanwhile is in one of the two
            with txn, txn.cursor() as cursor:
                if cursor.set_range(max(prefix, start)):
                    for key, raw in cursor:
                        if not key.startswith(prefix) or len(rows) >= limit:
                            break
                        if key not in changed and (value := self._checked(key, raw)) is not None:
                            rows.append((key, value))
        except lmdb.Error as error:
            raise self._unreadable(error) from error
        if changed:
            complete = len(rows) < limit
            last = rows[-1][0] if rows else b""
            for key, value in changed.items():
                if value is not None and (complete or key <= last):
                    rows.append((key, value))
            rows.sort()
        return rows[:limit]

    def page(self, prefix: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Folded records under `prefix` from `start` on, less those that were deleted since."""
        rows: list[tuple[bytes, bytes]] = []
        with self._env.begin() as txn, txn.cursor() as cursor:
            if cursor.set_range(max(prefix, start)):
                for key, raw in cursor:
                    if not key.startswith(prefix) or len(rows) >= limit:
                        break
                    if (
                        self._pending.values.get(key, b"") is not None
                        and (value := self._checked(key, raw)) is not None
                    ):
                        rows.append((key, value))
        return rows

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        """Every folded record under `prefix`, with None in place of one that fails its checksum. For fsck."""
        start, more = prefix, True
        while more:
            more = False
            page: list[tuple[bytes, bytes]] = []
            try:
                with self._env.begin() as txn, txn.cursor() as cursor:
                    if cursor.set_range(start):
                        for key, raw in cursor:
                            if not key.startswith(prefix):
                                break
                            page.append((key, raw))
                            if len(page) == 1000:
                                start, more = key + b"\0", True
                                break
            except lmdb.Error as error:
                raise self._unreadable(error) from error
            for key, raw in page:
                yield key, (raw[:-4] if is_whole(key, raw) else None)

    # --- changing -----------------------------------------------------------------------------------------------------

    def transaction(self, on_failure: Callable[[], None] | None = None) -> Transaction:
        """`on_failure` is called, with the lock still held, when it is not acknowledged."""
        return Transaction(self, on_failure)

    def commit(self, changes: Changes) -> None:
        """Acknowledge one mutation: journal first, then visible. The lock is held."""
        if self._closed:
            raise StoreClosed("the store is closed")
        self._journal.append(changes)
        self._pending.update(changes)

    def sync(self) -> None:
        """Everything acknowledged so far survives power loss when this returns."""
        with self.lock:
            segments = self._journal.segments()  # also those whose fold has not committed yet
        for segment in segments:
            os.fdatasync(segment.fd)
        self._journal.sync_names()

    @property
    def unfolded(self) -> int:
        """Bytes of journal that a fold would retire."""
        return self._journal.length

    def unfolded_keys(self) -> list[bytes]:
        """Keys that were set or deleted and are not in LMDB yet."""
        with self.lock:
            return [*self._folding.values, *self._pending.values]

    def keys(self, prefix: bytes) -> list[bytes]:
        """Every key under `prefix`, folded or not, also where the value is damaged."""
        with self.lock:
            changed = {**self._folding.values, **self._pending.values}
            there = {key for key, _ in self.walk(prefix)}
        for key, value in changed.items():
            if key.startswith(prefix):
                there.discard(key) if value is None else there.add(key)
        return sorted(there)

    def fold(self) -> None:
        """Move what is pending into LMDB. On failure nothing is lost: it stays in the journal and in the overlay."""
        with self._fold_lock:
            with self.lock:
                if not self._pending.values:
                    return
                try:
                    mark = self._journal.end if self._journal.is_empty else self._journal.rotate()
                except NoSpace:
                    # No room for another segment. Writers wait, and the one there is stays: deleting makes room again.
                    self._fold_pending(self._journal.end)
                    return
                self._start_folding()
            self._finish_folding(mark)

    def close(self, *, fold: bool = True) -> None:
        """Let go of everything. What is not folded stays in the journal; what was begun and not acknowledged is not."""
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
            self._env.close()

    def statistics(self) -> dict[str, int]:
        info, stat = self._env.info(), self._env.stat()
        pending, folding = self._pending, self._folding
        return {
            "records": stat["entries"],
            "depth": stat["depth"],
            "bytes": (info["last_pgno"] + 1) * stat["psize"],
            "pending": len(pending.values) + (0 if folding is pending else len(folding.values)),
            "journal_bytes": self._journal.length,
            "damaged": self.damaged,
        }

    # --- inside -------------------------------------------------------------------------------------------------------

    def _read_mark(self) -> Mark:
        with self._env.begin() as txn:
            raw = txn.get(META_FOLDED)
        return Mark(*_MARK.unpack(raw[:-4])) if raw is not None and is_whole(META_FOLDED, raw) else Mark(0, 0)

    def _replay(self, directory: Path, mark: Mark) -> int:
        records = 0
        for changes in replay(directory / "journal", self._quarantine, mark):
            self._pending.update(changes)
            records += 1
        return records

    def _start_folding(self) -> None:
        self._folding, self._pending = self._pending, Overlay()

    def _fold_pending(self, mark: Mark) -> None:
        self._start_folding()
        self._finish_folding(mark)

    def _finish_folding(self, mark: Mark) -> None:
        changes = self._folding.values
        try:
            self._before_fold()
            self._write_or_make_room(changes, mark)
        except BaseException:
            with self.lock:
                # The same for both: who reads without the lock and has looked into the first finds it in the second.
                self._folding.update(self._pending.values)
                self._pending = self._folding
            raise
        with self.lock:
            self._folding = Overlay()
            self._journal.remove_before(mark)
        if deleted := [key for key, value in changes.items() if value is None]:
            self._freed(deleted)

    def _write_or_make_room(self, changes: Changes, mark: Mark) -> None:
        try:
            self._write(changes, mark)
        except NoSpace:
            with self.lock:
                self._journal.give_reserve_back()
            self._write(changes, mark)

    def _write(self, changes: Changes, mark: Mark) -> None:
        puts = sorted((key, with_check(key, value)) for key, value in changes.items() if value is not None)
        deletes = sorted(key for key, value in changes.items() if value is None)
        try:
            with self._env.begin(write=True) as txn:
                with txn.cursor() as cursor:
                    # In small helpings: putmulti keeps the interpreter to itself, and requests wait for it.
                    for start in range(0, len(puts), 256):
                        cursor.putmulti(puts[start : start + 256])
                for key in deletes:
                    txn.delete(key)
                txn.put(META_FOLDED, with_check(META_FOLDED, _MARK.pack(*mark)))
        except lmdb.MapFullError as error:
            raise NoSpace("the catalog's map is full; evict something, or raise its size") from error
        except lmdb.Error as error:
            if getattr(error, "code", None) == errno.EIO and _is_nearly_full(self._env.path()):
                raise NoSpace("the catalog could not be written: the disk is full; free some space") from error
            raise _lmdb_error(self._env.path(), error) from error

    def _checked(self, key: bytes, raw: bytes) -> bytes | None:
        if crc32(raw, crc32(key)) == _INTACT:
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
        if self._closed:
            return StoreClosed("the store is closed")
        return _lmdb_error("the catalog", error)


def _open_lmdb(directory: Path, map_size: int) -> lmdb.Environment:
    data = directory / "data.mdb"
    if not data.exists() or not data.stat().st_size:  # LMDB would make a new one of it
        raise StoreError(f"{data}: the catalog is missing; run: kcachefs fsck --repair")
    _write_lock_file(directory)
    try:
        # readahead off: lookups are random, and read-ahead would fill memory with neighbours nobody asked for.
        env = lmdb.open(str(directory), map_size=map_size, readahead=False, meminit=False, mode=0o600)
    except lmdb.Error as error:
        raise _lmdb_error(directory, error) from error
    try:
        env.reader_check()
        _check_size(env, data)
    except lmdb.Error as error:
        env.close()
        raise _lmdb_error(directory, error) from error
    except BaseException:
        env.close()
        raise
    return env


def make_lmdb(directory: Path, records: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """An LMDB file with nothing in it, or with `records`, that survives power loss."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    _write_lock_file(directory)
    try:
        with lmdb.open(str(directory), map_size=DEFAULT_MAP_SIZE, mode=0o600) as env:
            with env.begin(write=True) as txn:
                for key, value in records:
                    txn.put(key, with_check(key, value))
            env.sync(True)  # an empty transaction is not committed, and the first pages of a new file are not synced
        sync_directory(directory)
    except lmdb.Error as error:
        raise _lmdb_error(directory, error) from error


def _write_lock_file(directory: Path) -> None:
    # LMDB writes to this file through a map. It would make it sparse, and on a full disk the first write to a page
    # that has no block is SIGBUS. Nobody else has it open, so what it held is of no use.
    fd = os.open(directory / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.pwrite(fd, bytes(_LOCK_FILE_SIZE), 0) != _LOCK_FILE_SIZE:
            raise OSError(errno.ENOSPC, "short write")
    except OSError as error:
        raise or_no_space(error, directory) from error
    finally:
        os.close(fd)


def _check_size(env: lmdb.Environment, path: Path) -> None:
    # LMDB reads through a map, and behind the end of a file that was cut short there is SIGBUS. A file may also end
    # early for a good reason (its last pages were freed before they were ever written): that one is lengthened.
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if path.stat().st_size >= needed:
        return
    if problems := _page_problems(path.parent):
        raise StoreError(f"{path}: is damaged ({problems[0]}); run: kcachefs fsck --repair")
    os.truncate(path, needed)


def structure_problems(directory: Path) -> list[str]:
    """What is wrong with LMDB's tree, which nobody has open."""
    try:
        return _page_problems(directory) or _lost_records(directory)
    except lmdb.Error as error:
        return [str(error)]


def _page_problems(directory: Path) -> list[str]:
    """What is wrong with its pages, read byte by byte: LMDB itself would crash on some of it."""
    try:
        return list(lmdb.verify.verify(str(directory)))  # type: ignore[no-untyped-call]
    except (lmdb.verify.VerifyError, OSError, struct.error) as error:
        return [str(error)]


def _lost_records(directory: Path) -> list[str]:
    """The first record that is come to in order and not found by its key: then a key on the way to it is damaged.

    To mend the records one by one would not help such a tree: what is deleted from it by its key stays in it.
    """
    with lmdb.open(str(directory), map_size=DEFAULT_MAP_SIZE, readonly=True, lock=False, create=False) as env:
        with env.begin(buffers=True) as txn, txn.cursor() as cursor:
            for key in cursor.iternext(keys=True, values=False):
                if txn.get(key) is None:
                    return [f"{show_key(bytes(key))} is not found by its key"]
    return []


def _lmdb_error(thing: object, error: lmdb.Error) -> StoreError:
    code = getattr(error, "code", None)
    if isinstance(error, lmdb.DiskError) or code == errno.ENOSPC or "No space" in str(error):
        return NoSpace(f"{thing}: the disk is full; free some space and try again")
    if isinstance(error, lmdb.VersionMismatchError):
        return StoreError(f"{thing}: written by an incompatible LMDB; use the kcachefs that made it")
    if isinstance(error, lmdb.InvalidError | lmdb.CorruptedError | lmdb.PageNotFoundError):
        return StoreError(f"{thing}: is damaged ({error}); run: kcachefs fsck --repair")
    return StoreError(f"{thing}: {error}")


def _is_nearly_full(path: str) -> bool:
    # LMDB calls a write that the disk took only a part of an input/output error.
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize < 4 << 20


def with_check(key: bytes, value: bytes) -> bytes:
    """A value as LMDB keeps it."""
    return value + _CRC.pack(crc32(value, crc32(key)))


def is_whole(key: bytes, raw: bytes) -> bool:
    """Whether what LMDB keeps under `key` passes its check."""
    return crc32(raw, crc32(key)) == _INTACT


def show_key(key: bytes) -> str:
    return f"{key[:1].decode(errors='replace')}:{key[1:].hex()}"
