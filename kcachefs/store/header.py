"""Entering a store: find it or make it, lock it, read and write kcachefs.json, which says what the directory is.

A directory that cannot be used is left untouched. Every refusal says what is wrong and what to do about it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import lmdb
import msgspec

from kcachefs.errors import (
    KcachefsError,
    NotAStore,
    StoreAccessError,
    StoreGone,
    StoreReadOnly,
    StoreVersionError,
    gone,
    or_no_space,
)
from kcachefs.store.descriptor import replace_file, sync_directory
from kcachefs.store.lmdb_file import make_lmdb
from kcachefs.store.lock import StoreLock
from kcachefs.store.places import FOLDERS, HEADER, NO_FILE, make_folder, refuse_lost, refuse_misplaced, set_aside
from kcachefs.store.records import FORMAT

OLDEST_FORMAT = 2
"""Stores from this format on can be opened: format 3 only adds dictionaries, and format 4 only frame checksums."""


class Header(msgspec.Struct, kw_only=True):
    """The content of kcachefs.json."""

    kcachefs: str
    """Always "store"."""
    format: int
    lmdb: str = ""
    """The version of LMDB that made the catalog."""
    boot: str = ""
    """Boot id of the machine that has or had the store open; empty after a clean close."""
    doubtful: bool = False
    """The machine went down while the store was open, and nobody has looked at the unsealed files since."""
    mounted: float | None = None
    """When the last mount of the store began, in seconds since 1970; 0 if it was never mounted; None if a version
    without this field wrote it."""


def make_directory(path: Path) -> None:
    """Make the store's directory if it is absent, and close it to others. Refuses somebody else's directory.

    For a process that gives up the right to make directories there before it opens the store.
    """
    refuse_foreign(path)
    with clear_errors(path):
        os.makedirs(path, mode=0o700, exist_ok=True)
    _keep_private(path)


def enter(path: Path, *, create: bool) -> tuple[StoreLock, Header]:
    """Lock the store at `path`, or make one if the directory is absent or empty and `create` is set."""
    exists = _look_for_store(path, create=create)
    with clear_errors(path):
        if not exists:
            os.makedirs(path, mode=0o700, exist_ok=True)
        lock = StoreLock(path / "lock")
    try:
        _keep_private(path)
        if (path / HEADER).exists():
            header = read_header(path)
            _make_emptied(path, header)
            return lock, header
        with clear_errors(path):
            return lock, _make(path)
    except BaseException:
        lock.release()
        raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep all other processes out of the store at `path` without opening it. For fsck."""
    refuse_foreign(path)
    with clear_errors(path):
        lock = StoreLock(path / "lock")
    try:
        yield
    finally:
        lock.release()


def refuse_foreign(path: Path) -> None:
    """Raise if the store belongs to another user, who could change it at any moment, or if a folder in it is a link.

    Root is refused too, because code that reads a store trusts its owner.
    """
    for one in (path, *(path / folder for folder in FOLDERS)):
        try:
            found = os.stat(one, follow_symlinks=one == path)
        except FileNotFoundError:
            continue
        except PermissionError:
            raise StoreAccessError(f"{path}: not yours to read; use another --store, or ask its owner") from None
        except NotADirectoryError:
            raise NotAStore(f"{path}: is a file, not a store's directory") from None
        if stat.S_ISLNK(found.st_mode):
            raise NotAStore(f"{one}: is a link, and may lead out of the store; put the folder itself there")
        if found.st_uid != os.geteuid():
            raise StoreAccessError(
                f"{one}: belongs to user {found.st_uid}; run kcachefs as that user, or use another --store"
            )


def refuse_another(path: Path, mounted: float) -> None:
    """Raise unless the store at `path` is the one that was mounted at that time.

    The kernel still knows files of that mount by their inode numbers. In any other store, such as one made in its place
    or restored from a backup, the same numbers would mean other files.
    """
    try:
        header = read_header(path)
    except (FileNotFoundError, NotADirectoryError):
        raise gone(path) from None
    if header.mounted not in (None, mounted):
        raise StoreGone(
            f"{path}: is not the store that this mount began with; put that one back, or unmount and mount again"
        )


def read_header(path: Path) -> Header:
    """The store's header, if this kcachefs can use the store."""
    try:
        header = msgspec.json.decode((path / HEADER).read_bytes(), type=Header)
    except PermissionError:
        raise StoreAccessError(f"{path}: not yours to read; use another --store, or ask its owner") from None
    except IsADirectoryError:
        raise NotAStore(f"{path / HEADER}: {NO_FILE}; run: kcachefs fsck --repair") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAStore(f"{path / HEADER}: is damaged ({error}); run: kcachefs fsck --repair") from None
    if header.kcachefs != "store":
        raise NotAStore(f"{path / HEADER}: does not describe a store; choose another directory")
    if header.format < OLDEST_FORMAT:
        raise StoreVersionError(
            f"{path}: has format {header.format}, from before the first release; remove it to have a new one made"
        )
    if header.format > FORMAT:
        raise StoreVersionError(
            f"{path}: has format {header.format}, this kcachefs knows up to {FORMAT}; upgrade kcachefs"
        )
    if header.lmdb and header.lmdb.split(".")[0] != _lmdb_version().split(".")[0]:
        raise StoreVersionError(
            f"{path}: was written with LMDB {header.lmdb}, this is {_lmdb_version()}; neither reads the other's files; "
            f"install an lmdb with that version, or choose another directory"
        )
    return header


def write_header(path: Path, header: Header) -> None:
    """Replace kcachefs.json. A kill or a power cut leaves the old one or the new one."""
    replace_file(path / HEADER, msgspec.json.format(msgspec.json.encode(header)) + b"\n")


def replace_damaged_header(path: Path) -> None:
    """Set a damaged kcachefs.json aside. The new one says that the machine went down, because it may have."""
    set_aside(path, path / HEADER)
    header = _new_header()
    header.doubtful = True
    write_header(path, header)


def do_without(path: Path, part: Path) -> None:
    """Go on, in a repair, without a missing part of the store.

    Without volumes, the checks find objects missing one by one. Unsealed files cannot be trusted without the journal or
    without their bytes: the next mount checks them as after a power cut.
    """
    if part.name in FOLDERS:
        make_folder(path, part.name)
    if part.name != "volumes":
        header = read_header(path)
        header.doubtful = True
        write_header(path, header)


def note_opening(path: Path, header: Header, mounted: float | None) -> None:
    """Record in the header the current boot, the mount for which the store is opened, if any, and its format.

    If the header names another boot, the machine went down while the store was open.
    """
    boot, mounted = boot_id(), header.mounted if mounted is None else mounted
    if (header.boot, header.format, header.mounted) != (boot, FORMAT, mounted):
        header.doubtful |= header.boot not in ("", boot)
        header.boot, header.format, header.mounted = boot, FORMAT, mounted
        with clear_errors(path):
            write_header(path, header)


def forget_boot(path: Path, header: Header) -> None:
    """Undo `note_opening` for a store that had been closed cleanly and could not be opened."""
    header.boot = ""
    with contextlib.suppress(OSError, KcachefsError):
        write_header(path, header)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@contextlib.contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Turn errors of writing to the store's directory into errors that say what to do."""
    try:
        yield
    except PermissionError:
        raise StoreAccessError(f"{path}: not yours to write; use another --store, or ask its owner") from None
    except OSError as error:
        if error.errno == errno.EROFS:
            raise StoreReadOnly(f"{path}: is on a read-only filesystem; use another --store") from None
        raise or_no_space(error, path) from error


def _look_for_store(path: Path, *, create: bool) -> bool:
    """Whether `path` holds a store; raises if it holds none and none may be made there."""
    try:
        present = set(os.listdir(path))
    except FileNotFoundError:
        present = set()
    except NotADirectoryError:
        raise NotAStore(f"{path}: is a file, not a store's directory") from None
    except PermissionError:
        raise StoreAccessError(f"{path}: not yours to read; use another --store, or ask its owner") from None
    refuse_foreign(path)
    if HEADER in present:
        refuse_misplaced(path)
        read_header(path)
        return True
    # A kill during the making of a store leaves folders without a header: not a store yet, but it may become one.
    if present - {*FOLDERS, "lock", HEADER + ".new"}:
        raise NotAStore(f"{path}: has files but no {HEADER}, so it is not a kcachefs store; choose an empty directory")
    if not create:
        raise NotAStore(f"{path}: there is no store here")
    return False


def _keep_private(path: Path) -> None:
    """Close the store to everyone but its owner: it holds files of users who may not read each other's."""
    for one in (path, *(path / folder for folder in FOLDERS)):
        with contextlib.suppress(OSError):  # the folder may not exist yet; the first write notices a read-only disk
            if stat.S_IMODE(one.stat().st_mode) != 0o700:
                os.chmod(one, 0o700)


def _make_emptied(path: Path, header: Header) -> None:
    """Recreate empty folders that some tool left out or removed. `Store` takes care of the other folders."""
    refuse_lost(path / "journal", header.boot != "")  # `boot` is empty only after a clean close, and so is the journal
    with clear_errors(path):
        for folder in ("journal", "incoming", "quarantine"):
            make_folder(path, folder)


def _make(path: Path) -> Header:
    for folder in FOLDERS:
        make_folder(path, folder)
    make_lmdb(path / "catalog")
    header = _new_header()
    write_header(path, header)  # last: a directory with a header is a complete store
    with contextlib.suppress(OSError):  # we may not be allowed to open the folder above
        sync_directory(path.absolute().parent)
    return header


def _new_header() -> Header:
    return Header(kcachefs="store", format=FORMAT, lmdb=_lmdb_version(), mounted=0.0)


def _lmdb_version() -> str:
    major, minor, patch = lmdb.version()[:3]
    return f"{major}.{minor}.{patch}"
