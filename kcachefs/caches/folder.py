"""The second level: one file per entry in a folder that any number of processes share. No daemon, no index.

Layout: `entries/v<format>/<2 hex>/<62 hex>`, `tmp/` and `locks/`. What makes it safe:

- A file appears under its name by rename, whole. Nothing is synced: after a power cut a file may be empty or cut short,
  and its checksum tells.
- A writer holds a flock on its temporary file. The kernel drops it when the writer dies, so whoever can take the lock
  knows the file for a dead writer's and removes it: no ages, no guesses.
- A file is removed by moving it into `tmp/` first and looking at what was caught: if another process has put a fresh
  one there since, it goes back. So neither eviction nor the removal of a damaged entry loses one that was just written.
- The age of an entry is its mtime, set on each use to the nanosecond. In a mount that is left to the mount, which keeps
  an LRU order of its own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blake3 import blake3

from kcachefs.caches.bound import LOW_WATER, Bound, on_disk
from kcachefs.caches.record import FORMAT, Entry, Key, Meta, key_of, pack, unpack
from kcachefs.errors import CacheError

_READ = os.O_RDONLY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_KEY_PEEK = 4096
_FIRST_READ = 64 << 10
_RELAXED_SECONDS = 60
_ATTEMPTS = 8

Identity = tuple[int, int, int]


class Folder:
    """A folder of entries. A write that fails for want of space or permission says so and changes nothing."""

    def __init__(self, root: Path, max_bytes: int | None, touches: bool) -> None:
        self.root = root
        self.max_bytes = max_bytes
        self.evictions = 0
        self.damaged = 0
        self._touches = touches
        self._entries = os.path.join(root, "entries", f"v{FORMAT}", "")
        self._tmp = os.path.join(root, "tmp", "")
        self.locks = os.path.join(root, "locks", "")
        self._names = itertools.count()
        self._bound = None if max_bytes is None else Bound(max_bytes, self._evict)
        if root.exists() and not root.is_dir():
            raise CacheError(f"{root} is not a directory; give the cache a directory")
        self._sweep()

    # --- one entry ---------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> Entry | None:
        """The entry of `key`; a file that is not a whole record of it is removed and is a miss."""
        path = self._path(key)
        try:
            file = os.open(path, _READ)
        except OSError:
            return None
        try:
            entry = unpack(key, _read(file))
            if entry is None:
                self._remove_damaged(path, file)
            elif self._touches:
                self._touch(file)
            return entry
        except OSError:
            return None
        finally:
            os.close(file)

    def put(self, key: bytes, is_text: bool, value: bytes, meta: Meta | None) -> None:
        """Store the entry; raises the OSError that prevented it, and then leaves nothing behind."""
        pieces = pack(key, is_text, value, meta)
        path = self._path(key)
        for left in reversed(range(_ATTEMPTS)):
            try:
                self._write(path, pieces)
                break
            except FileNotFoundError:
                # A folder is missing still, or was removed beneath us, or a sweep took the file in the instant before
                # it was locked.
                if not left:
                    raise
                self._make_folders(path)
        if self._bound is not None:
            self._bound.grew(on_disk(sum(len(piece) for piece in pieces)))

    def delete(self, key: bytes) -> bool:
        """Remove the entry; whether there was one."""
        try:
            os.unlink(self._path(key))
        except FileNotFoundError:
            return False
        return True

    def has(self, key: bytes) -> bool:
        return os.path.exists(self._path(key))

    def _path(self, key: bytes) -> str:
        # A key of 32 bytes is a digest already. It gets a longer name, so that it does not meet the key it is one of.
        name = key.hex() + "k" if len(key) == 32 else blake3(key).hexdigest()
        return f"{self._entries}{name[:2]}/{name[2:]}"

    def _write(self, path: str, pieces: list[Any]) -> None:
        temporary = f"{self._tmp}{os.getpid()}-{threading.get_ident():x}-{next(self._names)}-{os.urandom(4).hex()}"
        file = os.open(temporary, _CREATE, 0o666)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_all(file, pieces)
            if self._touches:
                _set_age(file)
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(file)

    def make_locks(self) -> None:
        """Make the folder of the lock files, where that can be."""
        with contextlib.suppress(OSError):
            os.makedirs(self.locks, exist_ok=True)

    def _touch(self, file: int) -> None:
        # Without a bound nobody here needs the order now; some other process may, later, and to the minute will do.
        if self.max_bytes is not None or os.fstat(file).st_mtime < time.time() - _RELAXED_SECONDS:
            _set_age(file)

    def _remove_damaged(self, path: str, file: int) -> None:
        self.damaged += 1
        self._remove(path, _identity(os.fstat(file)))

    def _make_folders(self, path: str) -> None:
        for folder in (os.path.dirname(path), self._tmp, self.locks):
            os.makedirs(folder, exist_ok=True)

    def _remove(self, path: str, seen: Identity) -> bool:
        """Remove the very file that was seen, and no other that has taken its name since."""
        caught = f"{self._tmp}caught-{os.getpid()}-{threading.get_ident():x}-{next(self._names)}"
        try:
            if _identity(os.stat(path)) != seen:
                return False
            os.rename(path, caught)
            if _identity(os.stat(caught)) == seen:
                os.unlink(caught)
                return True
        except OSError:
            return False
        with contextlib.suppress(OSError):
            os.link(caught, path)
        with contextlib.suppress(OSError):
            os.unlink(caught)
        return False

    # --- all of them -------------------------------------------------------------------------------------------------

    def keys(self) -> Iterator[Key]:
        """The keys of all entries of this format, in no order."""
        for path, _ in self._scan(self._entries):
            try:
                file = os.open(path, _READ)
            except OSError:
                continue
            with os.fdopen(file, "rb") as start:
                head = start.read(_KEY_PEEK)
                key = key_of(head)
                if key is None and len(head) == _KEY_PEEK:
                    key = key_of(head + start.read())
            if key is not None:
                yield key

    def count(self) -> tuple[int, int]:
        """How many entries of this format there are, and how many bytes on disk."""
        sizes = [on_disk(status.st_size) for _, status in self._scan(self._entries)]
        return len(sizes), sum(sizes)

    def clear(self) -> None:
        """Remove every entry of this format."""
        for path, _ in self._scan(self._entries):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        if self._bound is not None:
            self._bound.forget()
        self._sweep()

    def after_fork(self) -> None:
        """In a forked child: another thread may have held the lock, and it does not exist here."""
        if self._bound is not None:
            self._bound.forget()

    def _scan(self, entries: str) -> Iterator[tuple[str, os.stat_result]]:
        for folder in _listed(entries):
            for file in _listed(folder.path):
                with contextlib.suppress(OSError):
                    yield file.path, file.stat(follow_symlinks=False)

    def _sweep(self) -> None:
        """Remove what dead writers have left, and lock files that nobody holds."""
        for folder in (self._tmp, self.locks):
            for file in _listed(folder):
                with contextlib.suppress(OSError):
                    remove_if_free(file.path)

    # --- the bound ---------------------------------------------------------------------------------------------------

    def _evict(self, limit: int) -> int:
        """Count what is there, of every format, and remove the least recently used while it is too much."""
        found = []
        for version in _listed(os.path.join(self.root, "entries")):
            found += [(status.st_mtime_ns, path, status) for path, status in self._scan(version.path)]
        total = sum(on_disk(status.st_size) for _, _, status in found)
        if total <= limit:
            return total
        found.sort(key=lambda item: item[0])
        for _, path, status in found:
            if total <= limit * LOW_WATER:
                break
            if self._remove(path, _identity(status)):
                self.evictions += 1
                total -= on_disk(status.st_size)
        self._sweep()
        return total


def remove_if_free(path: str) -> bool:
    """Remove a file that nobody holds a lock on."""
    file = os.open(path, _READ)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever removes or replaces the file holds its lock, so once we hold it the name cannot change hands.
        if os.fstat(file).st_ino != os.stat(path).st_ino:
            return False
        os.unlink(path)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def is_refusal(error: OSError) -> bool:
    """Whether the disk or the permissions said no, which a cache lives with; anything else is worth raising."""
    return error.errno in _REFUSALS


_REFUSALS = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EIO,
        errno.ENOENT,
    }
    | {errno.ESTALE, errno.ENOTCONN, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ELOOP, errno.EMLINK}
)


def _identity(status: os.stat_result) -> Identity:
    # The time too: an entry that was used since it was picked for eviction is no longer the least recently used.
    return (status.st_dev, status.st_ino, status.st_mtime_ns)


def _set_age(file: int) -> None:
    now = time.time_ns()
    with contextlib.suppress(OSError):
        os.utime(file, ns=(now, now))


def _listed(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            yield from found
    except (FileNotFoundError, NotADirectoryError):
        return


def _read(file: int) -> bytes:
    # Most entries come with the first read, without asking for the size.
    record = os.read(file, _FIRST_READ)
    if len(record) < _FIRST_READ:
        return record
    pieces = [record]
    left = os.fstat(file).st_size - len(record)
    while piece := os.read(file, max(left, 0) + 1):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _write_all(file: int, pieces: list[Any]) -> None:
    views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    while views:
        written = os.writev(file, views)
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if written:
            views[0] = views[0][written:]
