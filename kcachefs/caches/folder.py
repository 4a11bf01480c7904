"""The second level: one file per entry in a folder that any number of processes share. No daemon, no index.

Layout: `entries/v<format>/<2 hex>/<62 hex>`, `writers/` and `locks/`. What makes it safe:

- A file appears under its name by rename, whole. Nothing is synced: after a power cut a file may be empty or cut short,
  and its checksum tells.
- Temporary files lie beside their final names and are called after their writer. A rename between folders would take a
  lock of the whole filesystem: with eight processes that doubled the time of an operation.
- A writer is a file in `writers/` that its process holds locked. The kernel drops the lock when the process dies, so
  whoever can take it knows the temporary files of that name for a dead writer's and removes them: no ages, no guesses.
- A file is removed by giving it a temporary name first and looking at what was caught: if another process has put a
  fresh one there since, it goes back. So neither eviction nor the removal of a damaged entry loses one just written.
- The age of an entry is its mtime, set on each use to the nanosecond. In a mount that is left to the mount, which keeps
  an LRU order of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blake3 import blake3

from kcachefs.caches.bound import LOW_WATER, Bound, on_disk
from kcachefs.caches.record import FORMAT, Entry, Key, Meta, key_of, pack, unpack
from kcachefs.caches.writers import Writers, listed, remove_if_free
from kcachefs.errors import CacheError

_READ = os.O_RDONLY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_KEY_PEEK = 4096
_FIRST_READ = 64 << 10
_RELAXED_SECONDS = 60

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
        self.locks = os.path.join(root, "locks", "")
        self._writers = Writers(os.path.join(root, "writers", ""), os.path.join(root, "entries", ""))
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
        try:
            self._write(path, pieces)
        except FileNotFoundError:  # the folder is missing still, or was removed beneath us
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._write(path, pieces)
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
        temporary = self._writers.temporary(path)
        file = os.open(temporary, _CREATE, 0o666)
        try:
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

    def _remove(self, path: str, seen: Identity) -> bool:
        """Remove the very file that was seen, and no other that has taken its name since."""
        try:
            if _identity(os.stat(path)) != seen:
                return False
            caught = self._writers.temporary(path)
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
        self._sweep(everywhere=True)

    def close(self) -> None:
        """No more writes will come."""
        self._writers.close()

    def after_fork(self) -> None:
        """In a forked child: another thread may have held the lock, and it does not exist here."""
        self._writers.after_fork()
        if self._bound is not None:
            self._bound.forget()

    def _scan(self, entries: str) -> Iterator[tuple[str, os.stat_result]]:
        for folder in listed(entries):
            for file in listed(folder.path):
                if file.name.startswith("."):
                    continue
                with contextlib.suppress(OSError):
                    yield file.path, file.stat(follow_symlinks=False)

    def _sweep(self, everywhere: bool = False) -> None:
        """Remove what dead writers have left, and lock files that nobody holds."""
        self._writers.sweep(everywhere)
        for file in listed(self.locks):
            remove_if_free(file.path)

    # --- the bound ---------------------------------------------------------------------------------------------------

    def _evict(self, limit: int) -> int:
        """Count what is there, of every format, and remove the least recently used while it is too much."""
        found = []
        for version in listed(os.path.join(self.root, "entries")):
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
        self._sweep(everywhere=True)
        return total


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
