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
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import lmdb
import msgspec

from kcachefs.errors import (
    NoSpace,
    NotAStore,
    RecordDamaged,
    StoreAccessError,
    StoreClosed,
    StoreError,
    StoreReadOnly,
    StoreVersionError,
    or_no_space,
)
from kcachefs.store import ledger
from kcachefs.store.catalog import DEFAULT_MAP_SIZE, Catalog, Transaction, make_lmdb
from kcachefs.store.compaction import compact, sparse_volumes
from kcachefs.store.descriptor import sync_directory
from kcachefs.store.frames import DEFAULT_LEVEL
from kcachefs.store.lock import StoreLock
from kcachefs.store.objects import CACHE_BYTES, DEFAULT_VOLUME_SIZE, Objects
from kcachefs.store.records import FORMAT, Totals, number_of, spool_key
from kcachefs.store.slots import SlotFile
from kcachefs.store.spool import Spool
from kcachefs.store.volumes import Volumes

log = logging.getLogger(__name__)

HEADER = "kcachefs.json"
FOLDERS = ("catalog", "journal", "volumes", "incoming", "spool", "quarantine")
FOLD_SECONDS = 1.0
FOLD_BYTES = 1 << 20
"""Journal bytes that start a fold early: they bound what recovery replays and what a fold sorts at once."""


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

    kcachefs: str
    format: int
    lmdb: str = ""
    boot: str = ""
    """Boot id of the machine that has or had it open; empty after a clean close."""
    doubtful: bool = False
    """The machine went down while it was open, and nobody has looked at the unsealed files since."""


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
            self._lock, header = enter(self.path, create=options.create)
            undo.callback(self._lock.release)
            self._header = _note_boot(self.path, header)
            self.volumes = Volumes(self.path / "volumes", self.path / "incoming")
            undo.callback(self.volumes.close)
            self.spool = Spool(self.path / "spool")
            self.catalog = Catalog(
                self.path, freed=self._freed, before_fold=self.volumes.sync, map_size=options.map_size
            )
            undo.callback(self.catalog.close, fold=False)
            self._recover()
            self.objects = Objects(
                self.catalog,
                self.volumes,
                self.path / "quarantine",
                level=options.level,
                volume_size=options.volume_size,
                cache_bytes=options.cache_bytes,
            )
            # What is deleted and could not be folded is freed when it is: until then it is nobody else's.
            unfolded = {key for key in self.catalog.unfolded_keys() if key[:1] in (b"a", b"s")}
            slots = {key for key in unfolded if key[:1] == b"a"}.union(self.catalog.keys(b"a"))
            self.slots = SlotFile(self.path / "spool.arena", map(number_of, slots))
            undo.callback(self.slots.close)
            self._opened = True
            self._recycle_spool(unfolded)
            if options.background:
                self._thread = threading.Thread(target=self._fold_forever, name="kcachefs-fold", daemon=True)
                self._thread.start()
            undo.pop_all()

    @property
    def lost_power(self) -> bool:
        """The machine went down while the store was open: what was not sealed or synced may be gone.

        True, over as many openings as it takes, until `power_loss_settled` says that somebody saw to it.
        """
        return self._header.doubtful

    def power_loss_settled(self) -> None:
        """Every unsealed file that a power loss may have cut short has been dealt with."""
        if self._header.doubtful:
            self._header.doubtful = False
            with _clear_errors(self.path):
                _write_header(self.path, self._header)

    @property
    def recovered(self) -> int:
        """Journal records that the last owner had acknowledged and not folded."""
        return self.catalog.recovered

    def transaction(self, on_failure: Callable[[], None] | None = None) -> Transaction:
        """A mutation: `with store.transaction() as txn`. Acknowledged when the block ends without an exception."""
        if self._closed:
            raise StoreClosed(f"{self.path}: the store is closed")
        if self.catalog.unfolded > FOLD_BYTES:
            self._wake.set()
        return self.catalog.transaction(on_failure)

    def fold(self) -> None:
        """Move the journal into the catalog now."""
        self.catalog.fold()

    def sync(self) -> None:
        """Everything acknowledged so far survives power loss when this returns."""
        self.volumes.sync()
        self.catalog.sync()

    def compact(self, share: float = 0.5) -> int:
        """Copy together what is left of volumes of which less than `share` is alive; returns the bytes that frees."""
        self.objects.ledger.retire_if_sparse(share)
        self.fold()
        self.slots.trim()
        freed = sum([compact(self.objects, number) for number in list(sparse_volumes(self.catalog, share))])
        self.fold()
        return freed

    def used_bytes(self) -> int:
        """What it takes on disk, from its own accounts: volumes, catalog, journal, and what is not sealed yet."""
        catalog = self.catalog.statistics()
        unsealed = self.spool.allocated_bytes() + self.slots.allocated_bytes()
        return self.objects.totals().volumes + catalog["bytes"] + catalog["journal_bytes"] + unsealed

    def totals(self) -> Totals:
        """What the store holds, in numbers."""
        return self.objects.totals()

    def strays(self) -> list[Path]:
        """Files in the store's folders that are not the store's."""
        known = {
            "volumes": {self.volumes.path(number).name for number in self.volumes.numbers()},
            "incoming": {self.volumes.path(number).name for number in self.volumes.incoming()},
            "spool": {self.spool.path(number).name for number in self.spool.numbers()},
        }
        return [
            self.path / folder / name
            for folder, names in known.items()
            for name in sorted(os.listdir(self.path / folder))
            if name not in names
        ]

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
        with contextlib.ExitStack() as last:
            last.callback(self._lock.release)
            last.callback(self.volumes.close)
            last.callback(self.objects.close)
            last.callback(self.spool.close)
            last.callback(self.slots.close)
            try:
                self.catalog.close()
            except NoSpace as error:
                log.warning("%s: left in the journal, to be folded at the next open: %s", self.path, error)
                return
            self.spool.sync()
            self.slots.trim()  # what the next small files would have been written to: a store at rest needs none of it
            self.slots.sync()
            self._header.boot = ""
            with contextlib.suppress(OSError):
                _write_header(self.path, self._header)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _recover(self) -> None:
        # What a dead process wrote may still be in memory alone: it is synced before LMDB is told of it.
        self.volumes.touched(number_of(key) for key in self.catalog.unfolded_keys() if key[:1] == b"v")
        with contextlib.suppress(NoSpace):  # a full disk does not keep a store shut: the journal has it all
            self.fold()
        if ledger.is_damaged(self.catalog):
            log.error("%s: a record that every change needs is damaged; counting everything afresh", self.path)
            ledger.rebuild(self.catalog, self.volumes, self.spool)

    def _freed(self, keys: list[bytes]) -> None:
        for key in keys:
            try:
                if key[:1] == b"v":
                    self.volumes.remove(number_of(key))
                elif key[:1] == b"s":
                    self.spool.recycle(number_of(key))
                elif key[:1] == b"a" and self._opened:
                    self.slots.free(number_of(key))
            except OSError as error:  # the next open tries again
                log.error("%s: a file that nothing refers to could not be removed: %s", self.path, error)

    def _recycle_spool(self, unfolded: set[bytes]) -> None:
        # A kill leaves the empty files kept for reuse, and those taken for a file that was never acknowledged.
        for number in self.spool.numbers():
            key = spool_key(number)
            with contextlib.suppress(RecordDamaged):
                if key not in unfolded and self.catalog.get(key) is None:
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


def enter(path: Path, *, create: bool) -> tuple[StoreLock, Header]:
    """Lock the store at `path`, or make one of an absent or empty directory. What cannot be used is not touched."""
    is_store = _look(path, create=create)
    with _clear_errors(path):
        if not is_store:
            os.makedirs(path, mode=0o700, exist_ok=True)
        lock = StoreLock(path / "lock")
    try:
        _keep_to_owner(path)
        if (path / HEADER).exists():
            return lock, read_header(path)
        with _clear_errors(path):
            return lock, _make(path)
    except BaseException:
        lock.release()
        raise


def _keep_to_owner(path: Path) -> None:
    """A store is its owner's alone: what is in it belongs to people who may not read each other's. No links inside."""
    for folder in FOLDERS:
        if (path / folder).is_symlink():
            raise NotAStore(f"{path / folder}: is a link, and may lead out of the store; put the folder itself there")
    found = path.stat()
    if found.st_uid == os.geteuid() and found.st_mode & 0o077:
        with contextlib.suppress(OSError):  # a read-only disk is found out about where it is written to
            os.chmod(path, 0o700)


@contextlib.contextmanager
def lock_store(path: Path) -> Iterator[None]:
    """Keep everyone else out of the store at `path`, which is not opened. For fsck."""
    with _clear_errors(path):
        lock = StoreLock(path / "lock")
    try:
        yield
    finally:
        lock.release()


def replace_header(path: Path) -> None:
    """Set a damaged kcachefs.json aside and write another. Whether the machine went down is not known any more."""
    os.replace(path / HEADER, path / "quarantine" / HEADER)
    header = _new_header()
    header.doubtful = True
    _write_header(path, header)


def _look(path: Path, *, create: bool) -> bool:
    """Whether a store is there; raises where there is none and none may be made."""
    try:
        present = set(os.listdir(path))
    except FileNotFoundError:
        present = set()
        if not create:
            raise NotAStore(f"{path}: there is no store here") from None
    except NotADirectoryError:
        raise NotAStore(f"{path}: is a file, not a store's directory") from None
    except PermissionError:
        raise StoreAccessError(f"{path}: not yours to read; use another --store, or ask its owner") from None
    if HEADER in present:
        read_header(path)
        return True
    # A kill while a store was being made leaves folders and no header: that is still no store, and may become one.
    if not create or present - {*FOLDERS, "lock", HEADER + ".new"}:
        raise NotAStore(f"{path}: holds files but no {HEADER}, so it is no kcachefs store; choose an empty directory")
    return False


def _make(path: Path) -> Header:
    for folder in FOLDERS:
        os.makedirs(path / folder, mode=0o700, exist_ok=True)
    make_lmdb(path / "catalog")
    header = _new_header()
    _write_header(path, header)  # last: a directory with a header is a whole store
    with contextlib.suppress(OSError):  # it may not be ours to read
        sync_directory(path.absolute().parent)
    return header


def read_header(path: Path) -> Header:
    """What kcachefs.json says, if this kcachefs can use it."""
    try:
        header = msgspec.json.decode((path / HEADER).read_bytes(), type=Header)
    except PermissionError:
        raise StoreAccessError(f"{path}: not yours to read; use another --store, or ask its owner") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAStore(f"{path / HEADER}: is damaged ({error}); run: kcachefs fsck --repair") from None
    if header.kcachefs != "store":
        raise NotAStore(f"{path / HEADER}: does not describe a store")
    if header.format < FORMAT:
        raise StoreVersionError(
            f"{path}: is of format {header.format}, from before the first release; remove it, and it is made anew"
        )
    if header.format > FORMAT:
        raise StoreVersionError(
            f"{path}: is of format {header.format}, this kcachefs knows up to {FORMAT}; upgrade kcachefs"
        )
    if header.lmdb and header.lmdb.split(".")[0] != _lmdb_version().split(".")[0]:
        raise StoreVersionError(
            f"{path}: was written with LMDB {header.lmdb}, this is {_lmdb_version()}; the two cannot read each other"
        )
    return header


def _note_boot(path: Path, header: Header) -> Header:
    boot = boot_id()
    if header.boot != boot:
        header.doubtful |= header.boot != ""
        header.boot = boot
        with _clear_errors(path):
            _write_header(path, header)
    return header


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _new_header() -> Header:
    return Header(kcachefs="store", format=FORMAT, lmdb=_lmdb_version())


def _write_header(path: Path, header: Header) -> None:
    new = path / (HEADER + ".new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        raw = msgspec.json.format(msgspec.json.encode(header)) + b"\n"
        if os.write(fd, raw) != len(raw):
            raise OSError(errno.ENOSPC, "short write")
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(new, path / HEADER)
    sync_directory(path)


@contextlib.contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError:
        raise StoreAccessError(f"{path}: not yours to write; use another --store, or ask its owner") from None
    except OSError as error:
        if error.errno == errno.EROFS:
            raise StoreReadOnly(f"{path}: is on a read-only filesystem; use another --store") from None
        raise or_no_space(error, path) from error


def _lmdb_version() -> str:
    major, minor, patch = lmdb.version()[:3]
    return f"{major}.{minor}.{patch}"
