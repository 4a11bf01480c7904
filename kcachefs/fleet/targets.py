"""Trees that entries are unpacked into: a mount, and a store that is not mounted.

They share only the few operations that unpacking needs. A folder is a handle that stays the same whatever is renamed
above it, and nothing is ever reached through a link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from kcachefs import reports
from kcachefs.core import Filesystem
from kcachefs.core.caller import Caller
from kcachefs.core.report import Statistics
from kcachefs.core.tree import RENAME_NOREPLACE
from kcachefs.core.user_eviction import HIGH_WATER
from kcachefs.errors import FsError, MountError
from kcachefs.fleet.room_left import QUOTA, RoomLeft
from kcachefs.fleet.views import rows_in
from kcachefs.frameworks.copying import Folder
from kcachefs.store.inode_numbers import ROOT_INO

Handle = TypeVar("Handle")


class Target(Protocol, Generic[Handle]):
    """A folder of namespaces."""

    home: Path
    """The path at which programs will see it."""
    writers: int
    """How many threads may add entries at a time."""

    def names(self, path: tuple[str, ...]) -> frozenset[str]:
        """The names in a folder, none if it is missing; MountError if something else is in the way. Makes nothing."""

    def folder(self, path: tuple[str, ...]) -> AbstractContextManager[Handle]:
        """Open a folder. It and the folders above it are made where they are missing."""

    def below(self, folder: Handle, path: tuple[str, ...]) -> AbstractContextManager[Handle]:
        """The same, starting from another folder."""

    def add(self, folder: Handle, name: str, mode: int, mtime: int, content: memoryview | bytes) -> None:
        """Add a new file."""

    def rename(self, folder: Handle, old: str, new: str) -> bool:
        """Rename within one folder; False if something already has the new name."""

    def remove(self, folder: Handle, name: str) -> None:
        """Remove a file, or a folder with everything below it, if it exists."""

    def settle(self) -> None:
        """Called after much was added."""

    def room(self) -> RoomLeft:
        """How much more fits before anything is evicted for it."""


class MountTarget:
    """A mount. Its daemon does the work: while it serves one thread, the others prepare their requests."""

    writers = 4

    def __init__(self, mount: Path, ask: Callable[[], Statistics] | None = None) -> None:
        """`ask` returns the mount's settled statistics; without it they are read from the mount's own folder."""
        self.home = mount
        self._ask = ask or self._read
        self._root = Folder(mount)
        self._last = _LastFolder()
        self._umask = _umask()

    def names(self, path: tuple[str, ...]) -> frozenset[str]:
        folder = self._root
        for number, name in enumerate(path):
            try:
                found = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.fd)
            except FileNotFoundError:
                return frozenset()
            except NotADirectoryError:
                raise _in_the_way(self.home, path[: number + 1]) from None
            folder = Folder(folder.path / name, found)
        return frozenset(os.listdir(folder.fd))

    @contextmanager
    def folder(self, path: tuple[str, ...]) -> Iterator[Folder]:
        if self._last.path != path:  # entries come folder by folder
            self._last.path, self._last.folder = path, self._root.made_below(*path)
        yield self._last.folder

    def below(self, folder: Folder, path: tuple[str, ...]) -> Folder:
        return folder.made_below(*path)

    def add(self, folder: Folder, name: str, mode: int, mtime: int, content: memoryview | bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, mode, dir_fd=folder.fd)
        try:
            if mode & self._umask:
                os.fchmod(fd, mode)
            left = memoryview(content)
            while left:
                left = left[os.write(fd, left) :]
            os.utime(fd, ns=(time.time_ns(), mtime))
        finally:
            os.close(fd)

    def rename(self, folder: Folder, old: str, new: str) -> bool:
        try:
            os.rename(old, new, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR):
                return False
            raise
        return True

    def remove(self, folder: Folder, name: str) -> None:
        try:
            os.unlink(name, dir_fd=folder.fd)
        except FileNotFoundError:
            return
        except OSError:
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder.fd)

    def settle(self) -> None:
        pass  # the daemon seals by itself

    def room(self) -> RoomLeft:
        told = self._ask().store  # settled, because an unsealed file takes room twice for a moment
        if told.room_bytes is not None:
            # To users other than the mount's owner and root, this is what their own quota leaves.
            return RoomLeft.told_by(told)
        found = os.statvfs(self._root.fd)  # a daemon of an older version
        return RoomLeft({QUOTA: (found.f_bavail - int(found.f_blocks * (1.0 - HIGH_WATER))) * found.f_frsize})

    def _read(self) -> Statistics:
        return reports.decoded(reports.read(self.home, reports.SETTLED), Statistics, "stats")


class _LastFolder(threading.local):
    """The folder that a thread last added to, still open."""

    path: tuple[str, ...] | None = None
    folder: Folder


class StoreTarget:
    """The filesystem of a store that is not mounted, in this process; `home` is where it will be mounted."""

    writers = 1

    def __init__(self, fs: Filesystem, home: Path) -> None:
        self.home = home
        self.has_grown = False
        """Whether anything was added."""
        self._fs = fs
        self._caller = Caller(os.getuid(), os.getgid(), os.getpid())

    def names(self, path: tuple[str, ...]) -> frozenset[str]:
        ino = ROOT_INO
        for number, name in enumerate(path):
            found = self._fs.tree.find(ino, os.fsencode(name))
            if found is None:
                return frozenset()
            if not self._fs.nodes.get(found).is_dir:
                raise _in_the_way(self.home, path[: number + 1])
            ino = found
        return frozenset(os.fsdecode(name) for _, name, _, _ in rows_in(self._fs, ino))

    @contextmanager
    def folder(self, path: tuple[str, ...]) -> Iterator[int]:
        with self.below(ROOT_INO, path) as ino:
            yield ino

    @contextmanager
    def below(self, folder: int, path: tuple[str, ...]) -> Iterator[int]:
        ino = folder
        for name in path:
            found = self._fs.tree.find(ino, os.fsencode(name))
            if found is None:
                found, _ = self._fs.make(self._caller, ino, os.fsencode(name), stat.S_IFDIR | 0o755)
                self._fs.forget(found, 1)
            elif not self._fs.nodes.get(found).is_dir:
                raise _in_the_way(self.home, (*path,))
            ino = found
        yield ino

    def add(self, folder: int, name: str, mode: int, mtime: int, content: memoryview | bytes) -> None:
        self.has_grown = True
        ino, _ = self._fs.create(self._caller, folder, os.fsencode(name), mode)
        try:
            if content:
                self._fs.write(ino, 0, content)
            self._fs.set_attributes(self._caller, ino, atime=time.time_ns(), mtime=mtime)
        finally:
            self._fs.forget(ino, 1)

    def rename(self, folder: int, old: str, new: str) -> bool:
        try:
            self._fs.rename(self._caller, folder, os.fsencode(old), folder, os.fsencode(new), RENAME_NOREPLACE)
        except FsError as error:
            if error.errno == errno.EEXIST:
                return False
            raise
        return True

    def remove(self, folder: int, name: str) -> None:
        with contextlib.suppress(FsError):
            self._remove(folder, os.fsencode(name))

    def _remove(self, folder: int, name: bytes) -> None:
        ino = self._fs.tree.find(folder, name)
        if ino is None:
            return
        if not self._fs.nodes.get(ino).is_dir:
            self._fs.unlink(self._caller, folder, name)
            return
        for _, child, _, _ in list(rows_in(self._fs, ino)):
            self._remove(ino, child)
        self._fs.rmdir(self._caller, folder, name)

    def settle(self) -> None:
        self._fs.settle()

    def room(self) -> RoomLeft:
        return RoomLeft.told_by(self._fs.statistics().store)


def _umask() -> int:
    """The umask of this process. os.umask() can only read it by changing it for a moment, for all threads."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as status:
        return next((int(line.split()[1], 8) for line in status if line.startswith("Umask:")), 0o777)


def _in_the_way(home: Path, path: tuple[str, ...]) -> MountError:
    return MountError(f"{home.joinpath(*path)}: is not a folder; remove it and try again")
