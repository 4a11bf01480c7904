"""The second level: one file per entry in a folder that any number of processes share. No daemon, no index.

Layout: `entries/v<format>/<2 hex>/<62 hex>`, `writers/` and `locks/`. What makes it safe:

- A file appears under its name by rename, whole. Nothing is synced: after a power cut a file may be empty or cut short,
  and its checksum shows it.
- Temporary files lie beside their final names, because a rename between folders takes a lock of the whole filesystem,
  and are named after their writer.
- A writer is a file in `writers/` that its process holds locked. The kernel drops the lock when the process dies, so
  a process that can take it knows that the temporary files of that name are a dead writer's, and removes them.
- A file is removed by giving it a temporary name first and checking which file was caught: if another process has put a
  fresh one there meanwhile, that one goes back. So neither eviction nor the removal of a damaged entry loses one just
  written.

The age of an entry is its mtime. A process records the use of an entry at most once a minute, and records all pending
uses before it evicts. So it evicts in the exact order of its own uses, and knows those of others to the minute. In a
mount the ages are left to the mount, which keeps an LRU order of its own and sees every lookup.

Every value is verified when this process first reads its file. A large one is not hashed again while the file's inode,
size, mtime and ctime stay the same: see `reading.Verified`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from blake3 import blake3

from kcachefs.caches.bound import AHEAD_NS, LOW_WATER, Bound, brought_back, check_limit, on_disk
from kcachefs.caches.memory import STALE_SECONDS
from kcachefs.caches.reading import Identity, Verified, identity, read_head
from kcachefs.caches.record import FORMAT, Entry, Head, Key, Meta, pack, unpack
from kcachefs.caches.writers import Writers, listed, remove_if_free
from kcachefs.errors import CacheError

# Whatever lies in an entry's place, opening it must not wait: a FIFO would, for a writer.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_LARGE = 32 << 10
_STAMP_SIZE = 32
_USES_KEPT = 8192

Stamp = bytes
"""A record's checksum, which tells it from another without reading all of it."""


class Folder:
    """A folder of entries. A write that fails for want of space or permission says so and changes nothing.

    `uses` says when this process last used each entry, as far as that is not recorded in the folder yet; the memory in
    front of the folder adds to it. It is None without a bound, where the exact order does not matter.
    """

    def __init__(self, root: Path, max_bytes: int | None, keeps_ages: bool, uses: dict[bytes, int] | None) -> None:
        check_limit(max_bytes)
        self.root = root
        self.max_bytes = max_bytes
        self.evictions: int = 0
        self.damaged: int = 0
        self._keeps_ages = keeps_ages
        self.uses = uses
        self._entries = os.path.join(root, "entries", f"v{FORMAT}", "")
        self._locks = os.path.join(root, "locks", "")
        self._writers = Writers(os.path.join(root, "writers", ""), os.path.join(root, "entries", ""))
        self._bound = None if max_bytes is None else Bound(max_bytes, self._evict)
        self._opened = time.time_ns()
        self._verified = Verified()
        if root.exists() and not root.is_dir():
            raise CacheError(f"{root} is not a directory; give the cache a directory")
        self._sweep()

    # --- one entry ---------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> tuple[Entry, Stamp] | None:
        """The entry of `key` and its stamp; a file that is not a whole record of `key` is removed and is a miss."""
        path = self._path(key)
        try:
            file = os.open(path, _READ)
        except OSError:
            return None
        try:
            status = os.fstat(file)
            if status.st_size <= _LARGE:
                record = os.read(file, status.st_size + 1)
                entry, stamp = unpack(key, record), record[:_STAMP_SIZE]
            else:
                entry, stamp = self._verified.read(key, path, file, status)
            if entry is None:
                self.damaged += 1
                self._remove(path, identity(status))
                return None
            if self._keeps_ages:
                self._used(key, file, status)
            return entry, stamp
        except OSError:
            return None
        finally:
            os.close(file)

    def put(self, key: bytes, is_text: bool, value: bytes, meta: Meta | None) -> Stamp | None:
        """Store the entry; returns its stamp, or None where it is larger than the bound and cannot be kept.

        Raises the OSError that prevented it, and then leaves nothing behind.
        """
        pieces = pack(key, is_text, value, meta)
        path = self._path(key)
        size = on_disk(sum(len(piece) for piece in pieces))
        if self.max_bytes is not None and size > self.max_bytes:
            self.delete(key)  # an older value must not be served, although nothing takes its place
            return None
        try:
            self._write(path, pieces)
        except FileNotFoundError:  # the folder is missing still, or was removed beneath us
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._write(path, pieces)
        self._forget_use(key)
        if self._bound is not None:
            self._bound.grew(size, path)
        stamp: Stamp = pieces[0]
        return stamp

    def delete(self, key: bytes) -> bool:
        """Remove the entry; returns whether there was one."""
        self._forget_use(key)
        try:
            os.unlink(self._path(key))
        except FileNotFoundError:
            return False
        return True

    def has(self, key: bytes) -> bool:
        """Whether there is a file for `key`. It is not read, so it may turn out to be damaged."""
        try:
            return stat.S_ISREG(os.stat(self._path(key)).st_mode)
        except OSError:
            return False

    def is_current(self, key: bytes, stamp: Stamp) -> bool:
        """Whether the entry still has that stamp; if so, it becomes the youngest."""
        path = self._path(key)
        try:
            file = os.open(path, _READ)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # the disk cannot be asked; what memory has is still good
        try:
            if os.read(file, _STAMP_SIZE) != stamp:
                return False
            if self._keeps_ages:
                self._forget_use(key)
                _set_age(file, time.time_ns())
            return True
        except OSError:
            return True
        finally:
            os.close(file)

    def lock_path(self, key: bytes) -> str:
        """The file by which processes agree on who computes the entry of `key`."""
        return self._locks + blake3(key).hexdigest()

    def _path(self, key: bytes) -> str:
        # A key of 32 bytes is a digest already. Its name is longer, so as not to collide with the key it was made from.
        name = key.hex() + "k" if len(key) == 32 else blake3(key).hexdigest()
        return f"{self._entries}{name[:2]}/{name[2:]}"

    def _write(self, path: str, pieces: list[Any]) -> None:
        temporary = self._writers.temporary(path)
        file = os.open(temporary, _CREATE, 0o666)
        try:
            _write_all(file, pieces)
            if self._keeps_ages:
                _set_age(file, time.time_ns())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(file)

    def _remove(self, path: str, seen: Identity) -> bool:
        """Remove the very file that was seen, and no other that has taken its name since."""
        try:
            if identity(os.lstat(path)) != seen:
                return False
            caught = self._writers.temporary(path)
            os.rename(path, caught)
            if identity(os.lstat(caught))[:4] == seen[:4]:  # the rename has changed the ctime
                os.unlink(caught)
                return True
        except OSError:
            return False
        with contextlib.suppress(OSError):
            os.link(caught, path)
        with contextlib.suppress(OSError):
            os.unlink(caught)
        return False

    # --- ages --------------------------------------------------------------------------------------------------------

    def _used(self, key: bytes, file: int, status: os.stat_result) -> None:
        now = time.time_ns()
        if not now - STALE_SECONDS * 1_000_000_000 <= status.st_mtime_ns <= now + AHEAD_NS:
            _set_age(file, now)
            return
        if self.uses is not None:
            self.uses[key] = time.monotonic_ns()
            if len(self.uses) > _USES_KEPT:
                self._write_uses()

    def _forget_use(self, key: bytes) -> None:
        if self.uses is not None:
            self.uses.pop(key, None)

    def _write_uses(self) -> None:
        """Record the uses by this process since the last time; other threads may add more while this runs."""
        uses = self.uses or {}
        now = time.time_ns()
        offset = now - time.monotonic_ns()
        for key in list(uses):
            used, path = uses.pop(key, 0) + offset, self._path(key)
            with contextlib.suppress(OSError):
                if not used <= os.stat(path).st_mtime_ns <= now + AHEAD_NS:
                    os.utime(path, ns=(used, used))

    # --- all of them -------------------------------------------------------------------------------------------------

    def keys(self) -> Iterator[Key]:
        """The keys of all entries of this format, in no order."""
        for _, _, head in self._heads():
            key = head.given_key()
            if key is not None:
                yield key

    def remove_where(self, condition: Callable[[dict[str, Any]], bool]) -> list[bytes]:
        """Remove every entry whose metadata meets a condition; returns their keys."""
        removed = []
        for path, status, head in self._heads():
            if condition(head.told() or {}) and self._remove(path, identity(status)):
                removed.append(head.key)
        return removed

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
        """Record the pending uses and sign off: no more writes will come."""
        if self._keeps_ages:
            self._write_uses()
        self._writers.close()

    def after_fork(self) -> None:
        """In a forked child: a thread that does not exist here may have held the lock."""
        self._writers.after_fork()
        if self._bound is not None:
            self._bound.forget()

    def _heads(self) -> Iterator[tuple[str, os.stat_result, Head]]:
        for path, status in self._scan(self._entries):
            try:
                file = os.open(path, _READ)
            except OSError:
                continue
            try:
                head = read_head(file, status.st_size)
            except OSError:
                continue
            finally:
                os.close(file)
            if head is not None:
                yield path, status, head

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
        for file in listed(self._locks):
            remove_if_free(file.path)

    def _bring_back(self, found: list[tuple[int, str, os.stat_result]]) -> None:
        for place, age in brought_back([age for age, _, _ in found], self._opened).items():
            _, path, status = found[place]
            with contextlib.suppress(OSError):
                os.utime(path, ns=(age, age))
                told = os.lstat(path)
                if os.path.samestat(told, status):  # not replaced since
                    found[place] = age, path, told
        found.sort(key=lambda item: item[0])

    def _evict(self, newest: str) -> int:
        """Remove the least recently used entries, of any format, until the rest fits; returns how much is left."""
        assert self.max_bytes is not None
        self._write_uses()
        found = []
        for version in listed(os.path.join(self.root, "entries")):
            found += [(status.st_mtime_ns, path, status) for path, status in self._scan(version.path)]
        total = sum(on_disk(status.st_size) for _, _, status in found)
        if total <= self.max_bytes:
            return total
        found.sort(key=lambda item: item[0])
        self._bring_back(found)
        for _, path, status in found:
            if total <= self.max_bytes * LOW_WATER:
                break
            if path != newest and self._remove(path, identity(status)):
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


def _set_age(file: int, age: int) -> None:
    with contextlib.suppress(OSError):
        os.utime(file, ns=(age, age))


def _write_all(file: int, pieces: list[Any]) -> None:
    views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    while views:
        written = os.writev(file, views)
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if written:
            views[0] = views[0][written:]
