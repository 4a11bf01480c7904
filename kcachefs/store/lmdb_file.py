"""The care of LMDB's file: make it, open it, verify it without crashing on it, and put its errors into words."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path

import lmdb
import lmdb.verify

from kcachefs.errors import NoSpace, StoreError, or_no_space
from kcachefs.store.checksum import show_key, with_checksum
from kcachefs.store.descriptor import sync_directory
from kcachefs.store.lmdb_pages import badly_packed

DEFAULT_MAP_SIZE = 64 << 30
"""Address space set aside for LMDB, not disk: 64 GiB holds some 300 million records."""

log = logging.getLogger(__name__)

_LOCK_FILE_SIZE = 8192
_NEARLY_FULL = 4 << 20
_COMPACT_MIN, COMPACT_MAX = 64 << 10, 8 << 20
"""A file is rewritten only if that saves at least `_COMPACT_MIN` bytes and an eighth of the file. An unmount waits
while the used bytes are checked and copied, so it rewrites no file with more than `COMPACT_MAX` bytes in use."""
_AHEAD_MAX = 32 << 20
"""Bytes of a file that are read ahead when it is opened."""
_RECORD_OVERHEAD = 16
"""Bytes that LMDB takes for a record on top of its key and its value."""


def open_lmdb(directory: Path, map_size: int) -> lmdb.Environment:
    """Open the file in `directory`, which must exist, and clear the reader slots of processes that died."""
    data = directory / "data.mdb"
    if not data.is_file() or not data.stat().st_size:  # LMDB would make a new, empty file
        raise StoreError(f"{data}: the catalog is missing; run: kcachefs fsck --repair")
    _write_lock_file(directory)
    try:
        _read_ahead(data)
        # readahead off: lookups are random, and read-ahead would fill memory with pages that nobody asked for.
        env = lmdb.open(str(directory), map_size=map_size, readahead=False, meminit=False, mode=0o600)
    except lmdb.Error as error:
        raise lmdb_error(directory, error) from error
    try:
        env.reader_check()
        _check_size(env, data)
    except lmdb.Error as error:
        env.close()
        raise lmdb_error(directory, error) from error
    except BaseException:
        env.close()
        raise
    return env


def _read_ahead(data: Path) -> None:
    """Ask the disk for a file, or for the beginning of a large one, without waiting for it.

    Otherwise, after a reboot, the first request for a page waits: a listing of a thousand names needs 30 pages.
    """
    with contextlib.suppress(OSError), open(data, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, _AHEAD_MAX, os.POSIX_FADV_WILLNEED)


def make_lmdb(directory: Path, records: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Make an LMDB file with `records` in it. When this returns, the file survives a power cut."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    _write_lock_file(directory)
    try:
        with lmdb.open(str(directory), map_size=DEFAULT_MAP_SIZE, mode=0o600) as env:
            with env.begin(write=True) as txn:
                for key, value in records:
                    txn.put(key, with_checksum(key, value))
            env.sync(True)  # LMDB neither commits an empty transaction nor syncs the first pages of a new file
        sync_directory(directory)
    except lmdb.Error as error:
        raise lmdb_error(directory, error) from error


def free_bytes(env: lmdb.Environment) -> int:
    """Bytes of the file's free pages."""
    stat = env.stat()
    used = 2 + stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    return max(0, env.info()["last_pgno"] + 1 - used) * int(stat["psize"])


def _part_of(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.part")


def remove_part(directory: Path) -> None:
    """Remove the leftovers of a process that was killed while rewriting the file in `directory`."""
    shutil.rmtree(_part_of(directory), ignore_errors=True)


def compact_lmdb(directory: Path) -> None:
    """Rewrite the file in `directory` as `close_compact` does, whatever its size. Nobody may have it open."""
    if not _page_problems(directory):  # LMDB may crash on a damaged tree, even on opening it
        close_compact(open_lmdb(directory, DEFAULT_MAP_SIZE), directory, is_checked=True)


def close_compact(env: lmdb.Environment, directory: Path, *, is_checked: bool = False) -> None:
    """Close the file in `directory`; if it has many free or half-filled pages, replace it by a file without them.

    A kill or a power cut leaves the old file or the new one. If there is no room for a second file, or the tree is
    damaged, the old one stays: LMDB may crash on a damaged tree. `is_checked` says that the tree is known to be sound
    and that nobody waits, so that it does not matter how many bytes are in use.
    """
    part = _part_of(directory)
    try:
        size = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        if not is_checked and (size - free_bytes(env) > COMPACT_MAX or _page_problems(directory)):
            return
        with env.begin(buffers=True) as records:
            needed = sum(len(key) + len(value) + _RECORD_OVERHEAD for key, value in records.cursor())
        if size - needed < max(_COMPACT_MIN, size // 8):
            return
        remove_part(directory)
        os.mkdir(part, 0o700)
        _write_lock_file(part)
        with lmdb.open(str(part), map_size=env.info()["map_size"], mode=0o600) as new:
            with env.begin() as records, new.begin(write=True) as txn, txn.cursor() as cursor:
                cursor.putmulti(records.cursor(), append=True)
            new.sync(True)
        env.close()
        os.rename(part / "data.mdb", directory / "data.mdb")
        sync_directory(directory)
    except (lmdb.Error, StoreError, OSError) as error:
        log.info("%s: could not be made smaller, and stays as it is: %s", directory, error)
    finally:
        env.close()
        remove_part(directory)


def structure_problems(directory: Path) -> list[str]:
    """The problems of the tree that LMDB keeps in `directory`. Nobody may have it open."""
    try:
        return _page_problems(directory) or badly_packed(directory / "data.mdb") or _unfindable_records(directory)
    except lmdb.Error as error:
        return [str(error)]


def lmdb_error(thing: object, error: lmdb.Error) -> StoreError:
    """Our error for one of LMDB's: it names `thing` and says what to do."""
    code = getattr(error, "code", None)
    if isinstance(error, lmdb.DiskError) or code == errno.ENOSPC or "No space" in str(error):
        return NoSpace(f"{thing}: the disk is full; free some space and try again")
    if isinstance(error, lmdb.VersionMismatchError):
        return StoreError(f"{thing}: written by an incompatible LMDB; use the kcachefs that made it")
    if isinstance(error, lmdb.InvalidError | lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.CursorFullError):
        return StoreError(f"{thing}: is damaged ({error}); run: kcachefs fsck --repair")
    if "already open in this process" in str(error):  # we hold the store's lock, so the parent had it open
        return StoreError(f"{thing}: was open when this process was forked; open it in a new process")
    if "allocate memory" in str(error):  # the file's first page says how much address space it needs
        return StoreError(
            f"{thing}: needs more memory than this process may have: raise `ulimit -v`; "
            "if there is no such limit, it is damaged: run: kcachefs fsck --repair"
        )
    return StoreError(f"{thing}: {error}")


def write_error(env: lmdb.Environment, error: lmdb.Error) -> StoreError:
    """Like `lmdb_error`, for a failed commit. LMDB reports EIO when the disk took only part of a write."""
    if isinstance(error, lmdb.MapFullError):
        return NoSpace("the catalog's map is full; evict something, or raise its size")
    if getattr(error, "code", None) == errno.EIO:
        disk = os.statvfs(env.path())
        if disk.f_bavail * disk.f_frsize < _NEARLY_FULL:
            return NoSpace("the catalog could not be written: the disk is full; free some space")
    return lmdb_error(env.path(), error)


def _write_lock_file(directory: Path) -> None:
    # LMDB writes to this file through a map. Left to itself, LMDB makes the file sparse, and on a full disk the
    # first write to a page without a block is SIGBUS. Nobody else has the store open, so the old content is of no use.
    fd = os.open(directory / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.pwrite(fd, bytes(_LOCK_FILE_SIZE), 0) != _LOCK_FILE_SIZE:
            raise OSError(errno.ENOSPC, "short write")
    except OSError as error:
        raise or_no_space(error, directory) from error
    finally:
        os.close(fd)


def _check_size(env: lmdb.Environment, path: Path) -> None:
    # LMDB reads through a map, and reading past the end of a truncated file raises SIGBUS. A file may also be short for
    # a good reason: its last pages were freed before they were ever written. Such a file is lengthened.
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if path.stat().st_size >= needed:
        return
    if needed > env.info()["map_size"]:
        raise StoreError(f"{path}: is damaged (claims {needed} bytes); run: kcachefs fsck --repair")
    if problems := _page_problems(path.parent):
        raise StoreError(f"{path}: is damaged ({problems[0]}); run: kcachefs fsck --repair")
    os.truncate(path, needed)


def _page_problems(directory: Path) -> list[str]:
    """The problems of the pages, read byte by byte: LMDB itself would crash on some kinds of damage."""
    try:
        return list(lmdb.verify.verify(str(directory)))  # type: ignore[no-untyped-call]
    except (lmdb.verify.VerifyError, OSError, struct.error) as error:
        return [str(error)]


def _unfindable_records(directory: Path) -> list[str]:
    """The first record that a walk in order finds but a search by key does not: a key higher in the tree is damaged.

    Mending single records does not help such a tree, because a deletion by key would not reach them.
    """
    with lmdb.open(str(directory), map_size=DEFAULT_MAP_SIZE, readonly=True, lock=False, create=False) as env:
        with env.begin(buffers=True) as txn, txn.cursor() as cursor:
            for key in cursor.iternext(keys=True, values=False):
                if txn.get(key) is None:
                    return [f"{show_key(bytes(key))} is not found by its key"]
    return []
