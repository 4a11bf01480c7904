"""The store: a directory that holds objects, catalog, journal and spool, opened by one process at a time.

    kcachefs.json   what this directory is: format, LMDB version, the boot under which it was last open
    lock            flock; who has it open
    catalog/        LMDB
    journal/        acknowledged, not yet in LMDB
    volumes/        objects; incoming/: a large one on its way there
    spool/          bytes that are not sealed yet, one plain file each; spool.arena: those of small files, a slot each
    quarantine/     what failed verification

A background thread folds the journal into the catalog every second or so, and sooner when much has gathered.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import lmdb
import msgspec

from kcachefs.errors import (
    NoSpace,
    NotAStore,
    StoreAccessError,
    StoreClosed,
    StoreError,
    StoreReadOnly,
    StoreVersionError,
    or_no_space,
)
from kcachefs.store.arena import Arena
from kcachefs.store.catalog import DEFAULT_MAP_SIZE, Catalog, Transaction
from kcachefs.store.frames import DEFAULT_LEVEL
from kcachefs.store.lock import StoreLock
from kcachefs.store.objects import CACHE_BYTES, DEFAULT_VOLUME_SIZE, Objects
from kcachefs.store.records import FORMAT, number_of, spool_key
from kcachefs.store.spool import Spool
from kcachefs.store.volumes import Volumes

log = logging.getLogger(__name__)

HEADER = "kcachefs.json"
FOLDERS = ("catalog", "journal", "volumes", "incoming", "spool", "quarantine")
FOLD_SECONDS = 1.0
FOLD_BYTES = 4 << 20
"""Journal bytes that start a fold early: they bound what recovery has to replay, and so its time."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to open a store."""

    create: bool = True
    level: int = DEFAULT_LEVEL
    volume_size: int = DEFAULT_VOLUME_SIZE
    cache_bytes: int = CACHE_BYTES
    map_size: int = DEFAULT_MAP_SIZE
    background: bool = True
    """Fold from a thread of its own; otherwise the owner calls `fold`."""


class Header(msgspec.Struct, kw_only=True):
    """The content of kcachefs.json."""

    kcachefs: str = "store"
    format: int = FORMAT
    lmdb: str = ""
    boot: str = ""
    """Boot id of the machine that has or had it open; empty after a clean close."""


class Store:
    """Everything under one directory. Threads may share it; a process must open it after forking."""

    def __init__(self, directory: str | os.PathLike[str], options: Options = Options()) -> None:  # noqa: B008
        self.path = Path(directory)
        self.options = options
        self._wake = threading.Event()
        self._stopping = False
        self._closed = False
        self._opened = False
        self._thread: threading.Thread | None = None
        with contextlib.ExitStack() as undo:
            header = _enter(self.path, create=options.create)
            self._lock = StoreLock(self.path / "lock")
            undo.callback(self._lock.release)
            self.lost_power = _note_boot(self.path, header)
            """The machine went down while the store was open: what was not synced may be gone."""
            self.volumes = Volumes(self.path / "volumes", self.path / "incoming")
            undo.callback(self.volumes.close)
            self.spool = Spool(self.path / "spool")
            undo.callback(self.spool.close)
            self.catalog = Catalog(
                self.path, freed=self._freed, before_fold=self.volumes.sync, map_size=options.map_size
            )
            undo.callback(self.catalog.close, fold=False)
            self.objects = Objects(
                self.catalog,
                self.volumes,
                self.path / "quarantine",
                level=options.level,
                volume_size=options.volume_size,
                cache_bytes=options.cache_bytes,
            )
            self.arena = Arena(self.path / "spool.arena", self._used_slots())
            undo.callback(self.arena.close)
            self._opened = True
            self._recycle_spool()
            if options.background:
                self._thread = threading.Thread(target=self._fold_forever, name="kcachefs-fold", daemon=True)
                self._thread.start()
            undo.pop_all()

    @property
    def recovered(self) -> int:
        """Journal records that the last owner had acknowledged and not folded."""
        return self.catalog.recovered

    def transaction(self) -> Transaction:
        """A mutation: `with store.transaction() as txn`. Acknowledged when the block ends without an exception."""
        if self._closed:
            raise StoreClosed(f"{self.path}: the store is closed")
        if self.catalog.unfolded > FOLD_BYTES:
            self._wake.set()
        return self.catalog.transaction()

    def fold(self) -> None:
        """Move the journal into the catalog now."""
        self.catalog.fold()

    def sync(self) -> None:
        """Everything acknowledged so far survives power loss when this returns."""
        self.volumes.sync()
        self.catalog.sync()

    def compact(self) -> int:
        """Copy together what is left of mostly dead volumes; returns the bytes that frees."""
        self.fold()
        freed = sum([self.objects.compact(number) for number in list(self.objects.sparse_volumes())])
        self.fold()
        return freed

    def disk_bytes(self) -> int:
        """Allocated bytes of everything in the store's directory."""
        total = 0
        for folder, _, files in os.walk(self.path):
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
        return total

    def close(self) -> None:
        """Fold, let go of everything. A full disk does not stop it: what cannot be folded stays in the journal."""
        if self._closed:
            return
        self._closed = True
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        clean = True
        try:
            self.fold()
        except NoSpace as error:
            clean = False
            log.warning("%s: left in the journal, to be folded at the next open: %s", self.path, error)
        self.catalog.close(fold=clean)
        self.spool.close()
        self.arena.close()
        self.volumes.close()
        if clean:
            with contextlib.suppress(OSError):
                _write_header(self.path, Header(lmdb=_lmdb_version()))
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _freed(self, keys: list[bytes]) -> None:
        for key in keys:
            if key[:1] == b"v":
                self.volumes.remove(number_of(key))
            elif key[:1] == b"s":
                self.spool.recycle(number_of(key))
            elif key[:1] == b"a" and self._opened:
                self.arena.free(number_of(key))

    def _used_slots(self) -> list[int]:
        self.catalog.fold()
        return [number_of(key) for key, _ in self.catalog.walk(b"a")]

    def _recycle_spool(self) -> None:
        # A kill leaves the empty files kept for reuse, and those taken for a file that was never acknowledged.
        for number in self.spool.numbers():
            if self.catalog.get(spool_key(number)) is None:
                self.spool.recycle(number)

    def _fold_forever(self) -> None:
        complained = False
        while not self._stopping:
            self._wake.wait(FOLD_SECONDS)
            self._wake.clear()
            try:
                self.fold()
                complained = False
            except (StoreError, OSError) as error:
                if not complained:
                    log.error("%s: the journal could not be folded, and is kept: %s", self.path, error)
                complained = True


# --- entering a directory ---------------------------------------------------------------------------------------------


def _enter(path: Path, *, create: bool) -> Header:
    """Read the directory's header, or make a new store of an absent or empty directory. Touches nothing else."""
    try:
        present = set(os.listdir(path))
    except FileNotFoundError:
        if not create:
            raise NotAStore(f"{path}: there is no store here") from None
        present = set()
    except NotADirectoryError:
        raise NotAStore(f"{path}: is a file, not a store's directory") from None
    except PermissionError:
        raise StoreAccessError(f"{path}: not yours to read; use another --store, or ask its owner") from None
    if HEADER in present:
        return _check_header(path)
    # A kill while a store was being made leaves folders and no header: that is still no store, and may become one.
    if not create or present - {*FOLDERS, "lock", HEADER + ".new"}:
        raise NotAStore(f"{path}: holds files but no {HEADER}, so it is no kcachefs store; choose an empty directory")
    return _guarded(path, lambda: _make(path))


def _make(path: Path) -> Header:
    os.makedirs(path, mode=0o700, exist_ok=True)
    for folder in FOLDERS:
        os.makedirs(path / folder, mode=0o700, exist_ok=True)
    header = Header(lmdb=_lmdb_version())
    _write_header(path, header)
    return header


def _check_header(path: Path) -> Header:
    try:
        header = msgspec.json.decode((path / HEADER).read_bytes(), type=Header)
    except PermissionError:
        raise StoreAccessError(f"{path}: not yours to read; use another --store, or ask its owner") from None
    except msgspec.DecodeError as error:
        raise NotAStore(f"{path / HEADER}: is damaged ({error}); run: kcachefs fsck --repair") from None
    if header.kcachefs != "store":
        raise NotAStore(f"{path / HEADER}: does not describe a store")
    if header.format > FORMAT:
        raise StoreVersionError(
            f"{path}: is of format {header.format}, this kcachefs knows up to {FORMAT}; upgrade kcachefs"
        )
    if header.lmdb and header.lmdb.split(".")[0] != _lmdb_version().split(".")[0]:
        raise StoreVersionError(
            f"{path}: was written with LMDB {header.lmdb}, this is {_lmdb_version()}; the two cannot read each other"
        )
    return header


def _note_boot(path: Path, header: Header) -> bool:
    boot = boot_id()
    lost = header.boot not in ("", boot)
    header.boot = boot
    _guarded(path, lambda: _write_header(path, header))
    return lost


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _write_header(path: Path, header: Header) -> None:
    new = path / (HEADER + ".new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        raw = msgspec.json.format(msgspec.json.encode(header)) + b"\n"
        if os.write(fd, raw) != len(raw):
            raise OSError(errno.ENOSPC, "short write")
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(new, path / HEADER)


def _guarded(path: Path, action: Callable[[], Header | None]) -> Header:
    try:
        return action()  # type: ignore[return-value]
    except PermissionError:
        raise StoreAccessError(f"{path}: not yours to write; use another --store, or ask its owner") from None
    except OSError as error:
        if error.errno == errno.EROFS:
            raise StoreReadOnly(f"{path}: is on a read-only filesystem; use another --store") from None
        raise or_no_space(error, path) from error


def _lmdb_version() -> str:
    major, minor, patch = lmdb.version()[:3]
    return f"{major}.{minor}.{patch}"
