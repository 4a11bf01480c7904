"""The exceptions that callers of kcachefs may see, with the errno for the kernel and the exit code for the shell.

Raise the class that names the cause, where the cause is known. Translate once, at the edge: `errno_of` for a
filesystem request, `exit_code_of` for a command. A message names the thing, what is wrong with it, and what to do.

Exit codes: 0 success, 1 the answer is no (a check failed) or damage was repaired, 2 wrong usage or damage remains,
3 the store or a bucket cannot be used, 4 the mount cannot be used, 5 no space, 6 permission, 70 a bug in kcachefs.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path


class KcachefsError(Exception):
    """Base of every error that kcachefs raises on purpose."""

    errno: int = errno.EIO
    exit_code: int = 70


class UsageError(KcachefsError):
    """A flag, a path or a value that makes no sense."""

    errno = errno.EINVAL
    exit_code = 2


# --- the store -------------------------------------------------------------------------------------------------------


class StoreError(KcachefsError):
    """The store cannot be used as asked."""

    errno = errno.EIO
    exit_code = 3


class NotAStore(StoreError):
    """The directory holds something that is not a kcachefs store."""


class StoreGone(StoreError):
    """The store that a mount had open no longer exists, or another store is in its place."""


class PartMissing(StoreError):
    """A folder or file of the store is missing, together with data that the store needs."""

    def __init__(self, part: Path, message: str) -> None:
        super().__init__(message)
        self.part = part


class StoreVersionError(StoreError):
    """The store was written by a newer kcachefs or an incompatible LMDB."""


class StoreBusy(StoreError):
    """Another process has the store open."""

    errno = errno.EBUSY


class StoreAccessError(StoreError):
    """This user may not read or write the store's directory."""

    errno = errno.EACCES
    exit_code = 6


class StoreReadOnly(StoreError):
    """The store is open for reading only, or is on a read-only disk, and cannot be changed."""

    errno = errno.EROFS


class StoreClosed(StoreError):
    """The store was used after it was closed, or after a failed write made it unsafe to continue."""


class NoSpace(StoreError):
    """The store's disk, or the catalog's map, is full."""

    errno = errno.ENOSPC
    exit_code = 5


class ObjectMissing(StoreError):
    """The store has no object with that digest."""

    errno = errno.ENOENT


class ObjectDamaged(StoreError):
    """An object's bytes do not match its digest; it has been set aside and is not served."""


class RecordDamaged(StoreError):
    """A record of the catalog fails its checksum."""


# --- what compilers stored --------------------------------------------------------------------------------------------


class ArtefactGarbled(KcachefsError):
    """A stored artefact is not what its name promises, or holds more than a reader would ever have to read."""

    errno = errno.EBADMSG
    exit_code = 2


# --- the filesystem --------------------------------------------------------------------------------------------------


class FsError(KcachefsError):
    """A filesystem request that is refused in the ordinary way, with an errno."""

    exit_code = 4

    def __init__(self, number: int, what: str = "") -> None:
        super().__init__(what or errno.errorcode.get(number, str(number)))
        self.errno = number


class RequestGarbled(KcachefsError):
    """A malformed request from the kernel: too short, an unterminated name, a count beyond the data."""

    errno = errno.EINVAL


# --- mounts ----------------------------------------------------------------------------------------------------------


class MountError(KcachefsError):
    """The mount cannot be made, found or ended."""

    exit_code = 4


class MountBusy(MountError):
    """Something still uses the mount."""

    errno = errno.EBUSY


class MountDenied(MountError):
    """This user may not mount there, or may not look there."""

    errno = errno.EACCES
    exit_code = 6


class FreeThreaded(MountError):
    """This Python runs without the GIL, which the daemon still depends on."""


class DaemonError(MountError):
    """The daemon did not start, does not answer, or died. The exit code is that of the cause, if it is known."""

    def __init__(self, message: str, exit_code: int = 4) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class DaemonRefused(DaemonError):
    """The daemon answered that it could not do what was asked."""


# --- packs -----------------------------------------------------------------------------------------------------------


class PackError(KcachefsError):
    """A pack is damaged, cut off, or holds something that a pack must not hold. Nothing of it was used."""

    errno = errno.EBADMSG
    exit_code = 1


class PackMissing(KcachefsError):
    """There is no such pack."""

    errno = errno.ENOENT
    exit_code = 3


class PackUntrusted(PackError):
    """A pack is not signed, or not by a trusted key."""

    errno = errno.EACCES
    exit_code = 6


# --- the fleet -------------------------------------------------------------------------------------------------------


class FleetError(KcachefsError):
    """A bucket cannot be used as asked."""

    exit_code = 3


class FleetUnreachable(FleetError):
    """The bucket did not answer, or not in time. It may answer later: wait before asking again."""

    errno = errno.EHOSTUNREACH


class FleetFails(FleetUnreachable):
    """The bucket answered with an error. Other requests may still succeed: a full bucket can be read."""


class FleetTooSlow(FleetUnreachable):
    """The bucket answered, but the transfer would have taken longer than the data is worth."""


class FleetTrickles(FleetTooSlow):
    """Almost no data arrived: the network or the bucket is to blame, whatever was requested."""


class FleetRefused(FleetError):
    """The bucket does not know these credentials, or they have no right to do this."""

    errno = errno.EACCES
    exit_code = 6


class FleetMissing(FleetError):
    """The bucket holds no such object, or there is no such bucket: most stores give the same answer to both."""

    errno = errno.ENOENT


# --- the store that went away, and the full disk ---------------------------------------------------------------------


def or_gone(error: Exception, store: Path) -> Exception:
    """A StoreGone if `error` says that a file is missing and the whole store is missing, else `error` itself."""
    return gone(store) if isinstance(error, FileNotFoundError) and not store.exists() else error


def gone(store: Path) -> StoreGone:
    return StoreGone(f"{store}: the store of this mount is gone; put it back, or unmount, and mount again")


def or_no_space(error: OSError, thing: object) -> Exception:
    """A NoSpace that names `thing` if `error` means a full disk or quota, else `error` itself."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    if _has_no_inodes(str(thing)):
        return NoSpace(f"{thing}: the disk has no inodes left, though it has room; remove some files and try again")
    return NoSpace(f"{thing}: the disk is full; free some space and try again")


def _has_no_inodes(path: str) -> bool:
    """Whether the disk that `path` is on, or would be, has free space but no free inodes."""
    for one in (path, os.path.dirname(path) or "."):
        with contextlib.suppress(OSError, ValueError):
            disk = os.statvfs(one)
            return disk.f_files > 0 and disk.f_favail == 0 and disk.f_bavail > 0
    return False


# --- keys and library caches -----------------------------------------------------------------------------------------


class Unkeyable(KcachefsError):
    """A value that cannot be read in full: any key made of it could serve the wrong kernel.

    `path` leads from the function or value whose key was requested to the value that cannot be read.
    """

    errno = errno.EINVAL
    exit_code = 2

    def __init__(self, message: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(f"{' > '.join(path)}: {message}" if path else message)
        self.path = path


class CacheError(KcachefsError):
    """A library cache cannot be used as asked."""

    exit_code = 3


class CacheClosed(CacheError):
    """A library cache was used after it was closed."""


class CacheRecursion(CacheError):
    """The computation of a key asked the cache for that same key, and would wait for itself forever."""

    errno = errno.EDEADLK


class CompileFailed(KcachefsError):
    """The compiler rejected a program; its output is in the message."""

    exit_code = 1

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


# --- the edges -------------------------------------------------------------------------------------------------------


def describe(error: BaseException) -> str:
    """One line that names the thing and what is wrong with it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error).replace("\n", " ") or type(error).__name__


_ORDINARY = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOMEM))
"""Errors of the underlying disk that the request itself explains; any other error is our fault."""


def errno_of(error: BaseException) -> int:
    """The errno to return for a filesystem request that raised `error`."""
    if isinstance(error, KcachefsError):
        return error.errno
    if isinstance(error, OSError) and error.errno in _ORDINARY:
        return error.errno
    return errno.EIO


def exit_code_of(error: BaseException) -> int:
    """The exit code of a command that raised `error`."""
    if isinstance(error, KcachefsError):
        return error.exit_code
    if isinstance(error, PermissionError):
        return 6
    if isinstance(error, OSError):
        return 5 if error.errno == errno.ENOSPC else 3
    return 70
