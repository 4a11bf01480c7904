"""The store: a directory that holds objects, catalog, journal and spool, opened by one process at a time.

    kcachefs.json   what this directory is: format, LMDB version, the boot under which it was last open
    lock            flock: held by the process that has the store open
    catalog/        LMDB
    journal/        acknowledged changes that are not yet in LMDB
    volumes/        objects; incoming/: volumes that are still being written
    dictionaries/   the bytes that objects have in common, for compression
    spool/          files that are not sealed yet, one plain file each
    spool.arena     the slot file: small files that are not sealed yet, one slot each
    quarantine/     data that failed verification
    listings/       listings of large folders, ready to be sent
    history/        past runs, start profiles, events, tombstones and samples, in files of bounded size

docs/format.md describes each of them byte by byte.

A background thread folds the journal into the catalog every second, and sooner when many changes have gathered.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from kcachefs.errors import NoSpace, RecordDamaged, StoreClosed, StoreError
from kcachefs.store import ledger, unfolded_objects
from kcachefs.store.catalog import Catalog, Transaction
from kcachefs.store.compaction import compact, sparse_volumes
from kcachefs.store.dictionaries import Dictionaries
from kcachefs.store.frames import DEFAULT_LEVEL
from kcachefs.store.header import clear_errors, enter, forget_boot, note_opening, refuse_another, write_header
from kcachefs.store.history_files import HistoryFiles
from kcachefs.store.listings import Listings
from kcachefs.store.lmdb_file import DEFAULT_MAP_SIZE, remove_part
from kcachefs.store.object_records import Totals
from kcachefs.store.objects import CACHE_BYTES, DEFAULT_VOLUME_SIZE, Objects
from kcachefs.store.places import SLOTS, in_their_places, make_folder, refuse_lost
from kcachefs.store.records import number_of, spool_key
from kcachefs.store.repacking import REST_SECONDS, Attempts, Steps, repack
from kcachefs.store.slots import SlotFile
from kcachefs.store.spool import Spool
from kcachefs.store.volumes import Volumes

log = logging.getLogger(__name__)

COPIED_MAX = 1 << 20
"""Bytes that compaction copies before it removes their old volumes: a full disk has no room for more."""
FOLD_SECONDS = 1.0
FOLD_BYTES = 1 << 20
"""Journal bytes that start a fold early. This bounds what recovery replays and what a fold sorts at once."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to open a store."""

    create: bool = True
    mounted: float | None = None
    """When the mount that opens the store began, in seconds since 1970."""
    resumed: bool = False
    """Open only the store that this mount has had open before."""
    level: int = DEFAULT_LEVEL
    volume_size: int = DEFAULT_VOLUME_SIZE
    cache_bytes: int = CACHE_BYTES
    map_size: int = DEFAULT_MAP_SIZE
    background: bool = True
    """Fold in a background thread; otherwise the owner calls `fold`."""


class Parts(NamedTuple):
    """The disk space that a store takes, by purpose."""

    payload: int
    """The bytes stored for objects."""
    overhead: int
    """Records, dictionaries, listings and history."""
    slack: int
    """Space that holds nothing useful: deleted objects, free pages of the catalog, slots kept for future files."""


class Store:
    """Everything under one directory. Threads may share it; a forked child may only `close` it."""

    def __init__(self, directory: str | os.PathLike[str], options: Options = Options()) -> None:  # noqa: B008
        self.path = Path(directory)
        self.options = options
        self._wake = threading.Event()
        self._stopping = False
        self.is_closed = False
        self._opened = False
        self.folding: threading.Thread | None = None
        self._repacking: Attempts = {}
        with in_their_places(), contextlib.ExitStack() as undo:
            if options.resumed and options.mounted is not None:
                refuse_another(self.path, options.mounted)
            self.lock, self._header = enter(self.path, create=options.create and not options.resumed)
            undo.callback(self.lock.release)
            was_closed = not self._header.boot
            note_opening(self.path, self._header, options.mounted)
            if was_closed:  # if opening fails, the store counts as closed again
                undo.callback(forget_boot, self.path, self._header)
            self.volumes = Volumes(self.path / "volumes", self.path / "incoming")
            undo.callback(self.volumes.close)
            self.dictionaries = Dictionaries(self.path / "dictionaries")
            self.dictionaries.remove_leftovers()
            self.listings = Listings(self.path / "listings")
            self.listings.remove_leftovers()
            self.history = HistoryFiles(self.path)
            undo.callback(self.history.close)
            remove_part(self.path / "catalog")
            self.catalog = Catalog(
                self.path,
                freed=self._freed,
                before_fold=self.volumes.sync,
                make_room=lambda: self.slots.trim() if self._opened else None,
                map_size=options.map_size,
            )
            undo.callback(self.catalog.close, fold=False)
            _make_emptied(self.path, self.catalog, self.volumes, self.lost_power)
            self.spool = Spool(self.path / "spool")
            self._recover()
            self.objects = Objects(
                self.catalog,
                self.volumes,
                self.path / "quarantine",
                self.dictionaries,
                level=options.level,
                volume_size=options.volume_size,
                cache_bytes=options.cache_bytes,
            )
            # A slot or file whose deletion is not folded yet may not be reused before a fold frees it.
            unfolded = {key for key in self.catalog.unfolded_keys() if key[:1] in (b"a", b"s")}
            slots = {key for key in unfolded if key[:1] == b"a"}.union(self.catalog.keys(b"a"))
            refuse_lost(self.path / SLOTS, bool(slots) and not self.lost_power)
            self.slots = SlotFile(self.path / SLOTS, map(number_of, slots))
            undo.callback(self.slots.close)
            self._opened = True
            self._recycle_spool(unfolded)
            if options.background:
                self.folding = threading.Thread(target=self._fold_forever, name="kcachefs-fold", daemon=True)
                self.folding.start()
            undo.pop_all()

    @property
    def lost_power(self) -> bool:
        """Whether the machine went down while the store was open: bytes that were not sealed or synced may be gone.

        Stays true, even if the store is closed and opened again, until somebody calls `power_loss_settled`.
        """
        return self._header.doubtful

    def power_loss_settled(self) -> None:
        """Note that every unsealed file that the power cut may have damaged has been dealt with."""
        if self._header.doubtful:
            self._header.doubtful = False
            with clear_errors(self.path):
                write_header(self.path, self._header)

    @property
    def recovered(self) -> int:
        """How many journal records the last owner had acknowledged but not folded."""
        return self.catalog.recovered

    def transaction(self, on_failure: Callable[[], None] | None = None) -> Transaction:
        """A mutation: `with store.transaction() as txn`. Acknowledged when the block ends without an exception."""
        if self.is_closed:
            raise StoreClosed(f"{self.path}: the store is closed")
        if self.catalog.unfolded > FOLD_BYTES and not self._wake.is_set():
            self._wake.set()
        return Transaction(self.catalog, on_failure)

    def fold(self) -> None:
        """Move the journal into the catalog now."""
        self.catalog.fold()

    def sync(self) -> None:
        """When this returns, everything acknowledged so far survives a power cut."""
        self.volumes.sync()
        self.catalog.sync()

    def compact(self, share: float = 0.5) -> int:
        """Move objects out of volumes with less than `share` alive, and remove these volumes; returns bytes freed."""
        self.objects.ledger.retire_if_sparse(share)
        self.fold()
        self.slots.trim()
        freed = copied = 0
        for number, live in list(sparse_volumes(self.catalog, share)):
            freed += compact(self.objects, number)
            copied += live
            if copied >= COPIED_MAX:
                self.fold()
                copied = 0
        self.fold()
        return freed

    def repack(self, rest_seconds: float = REST_SECONDS, room: Callable[[], int] = lambda: 1 << 62) -> Steps:
        """Compress objects that have rested for `rest_seconds` as far as possible, step by step; see `repacking.py`.

        `room` says how many more bytes the store may take meanwhile.
        """
        return repack(self.objects, self._repacking, rest_seconds, room)

    def rest(self) -> None:
        """Nothing has happened for a while: give back space that is only kept for later. Cheap to repeat."""
        self.slots.trim()
        self.catalog.rest()

    def keep_reserve(self) -> None:
        """Reserve the space that deletions need on a full disk, if `rest` gave it back. Call it every second or so."""
        self.catalog.keep_reserve()

    def used_bytes(self) -> int:
        """The disk space that the store takes, by its own records; `bytes_by_kind` lists what is counted."""
        return sum(self.bytes_by_kind().values())

    def bytes_by_kind(self) -> dict[str, int]:
        """The same, by kind of data."""
        catalog, totals = self.catalog.statistics(), self.objects.totals()
        return {
            "objects": totals.live,
            "dead": totals.volumes - totals.live,
            "catalog": catalog["bytes"],
            "journal": catalog["journal_bytes"],
            "dictionaries": self.dictionaries.allocated_bytes(),
            "history": self.history.allocated_bytes(),
            "listings": self.listings.allocated_bytes(),
            "unsealed": self.unsealed_bytes(),
        }

    def parts(self) -> Parts:
        """The parts of `used_bytes`; of unsealed files, only the slack of free slots counts."""
        catalog, totals, slack = self.catalog.statistics(), self.objects.totals(), self.slots.slack_bytes()
        free = catalog["free_bytes"]
        kept = sum(one.allocated_bytes() for one in (self.history, self.dictionaries, self.listings))
        overhead = catalog["bytes"] - free + catalog["journal_bytes"] + kept
        return Parts(totals.live, overhead, totals.volumes - totals.live + free + slack)

    def unsealed_bytes(self) -> int:
        """The disk space of files that are not sealed yet."""
        return self.spool.allocated_bytes() + self.slots.allocated_bytes()

    def totals(self) -> Totals:
        """Sums over all objects and volumes."""
        return self.objects.totals()

    def strays(self) -> list[Path]:
        """Files in the store's folders that do not belong to it."""
        known = {
            "volumes": {self.volumes.path(number).name for number in self.volumes.numbers()},
            "incoming": {self.volumes.path(number).name for number in self.volumes.incoming()},
            "spool": {self.spool.path(number).name for number in self.spool.numbers()},
            "dictionaries": {self.dictionaries.path(number).name for number in self.dictionaries.numbers()},
            "listings": {self.listings.path(folder).name for folder in self.listings.folders()},
        }
        return [
            self.path / folder / name
            for folder, names in known.items()
            if (self.path / folder).is_dir()
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
        """Fold and release everything. On a full disk, changes that cannot be folded stay in the journal.

        In a forked child of the process that opened the store, this frees memory and descriptors and changes no file.
        """
        if self.is_closed:
            return
        self.is_closed = True
        if self.lock.is_inherited:
            _close_inherited(self)
            return
        self._stopping = True
        self._wake.set()
        if self.folding is not None:
            self.folding.join()
        with contextlib.ExitStack() as last:
            last.callback(self.lock.release)
            last.callback(self.volumes.close)
            last.callback(self.objects.close)
            last.callback(self.spool.close)
            last.callback(self.slots.close)
            last.callback(self.history.close)
            try:
                self.catalog.close()
            except NoSpace as error:
                log.warning("%s: the last changes were left in the journal until the next open: %s", self.path, error)
                return
            self.spool.sync()
            self.slots.trim()
            self.slots.sync()
            self._header.boot = ""
            with contextlib.suppress(OSError):
                write_header(self.path, self._header)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _recover(self) -> None:
        # The bytes that a dead process wrote may be only in the page cache: sync them before LMDB refers to them.
        self.volumes.mark_unsynced(number_of(key) for key in self.catalog.unfolded_keys() if key[:1] == b"v")
        if self._header.doubtful:
            unfolded_objects.mark_damaged(self.catalog, self.volumes, self.dictionaries)
        with contextlib.suppress(NoSpace):  # a store can be opened on a full disk: the journal has all changes
            self.fold()
        if ledger.is_damaged(self.catalog):
            log.error("%s: a record that every change needs is damaged; counting everything again", self.path)
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
            except OSError as error:  # opening the store tries again
                log.error("%s: could not remove a file that nothing refers to: %s", self.path, error)

    def _recycle_spool(self, unfolded: set[bytes]) -> None:
        # A kill leaves empty files that were kept for reuse, and files taken for writes that were never acknowledged.
        for number in self.spool.numbers():
            key = spool_key(number)
            with contextlib.suppress(RecordDamaged):
                if key not in unfolded and self.catalog.get(key) is None:
                    self.spool.recycle(number)

    def _fold_forever(self) -> None:
        complained = False
        while not self._stopping:
            self._wake.wait(FOLD_SECONDS)
            try:
                self.fold()
                complained = False
            except (StoreError, OSError) as error:
                if not complained:
                    log.error("%s: the journal could not be folded, and is kept: %s", self.path, error)
                complained = True
            self._wake.clear()  # only now: until the fold begins, changes that it takes along may ask for it


def _make_emptied(path: Path, catalog: Catalog, volumes: Volumes, lost_power: bool) -> None:
    """Recreate missing folders that held nothing. After a power cut, nobody needs the content of the spool."""
    if not (path / "volumes").exists():
        known = {number_of(key) for key in catalog.keys(b"v")}
        refuse_lost(path / "volumes", not known.issubset(volumes.incoming()))
    if not (path / "spool").exists():
        refuse_lost(path / "spool", not lost_power and bool(catalog.keys(b"s")))
    with clear_errors(path):
        make_folder(path, "volumes")
        make_folder(path, "spool")


def _close_inherited(store: Store) -> None:
    # In a forked child no thread folds, and any lock may be held for ever by a thread that does not exist here.
    store.catalog.after_fork()
    store.volumes.close(inherited=True)
    store.objects.cache.after_fork()
    store.objects.frames.clear()
    store.slots.close()
    store.history.close()
