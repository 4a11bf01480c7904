"""Folders of files that are useless apart: found whole or not at all, stored in one step, evicted together by LRU.

`<root>/<key>/` holds the files of a group and a manifest with the size and the digest of each. A group is filled in a
folder of its own beneath `<root>/.kcachefs/` and appears by a rename; where its folder exists already, the files are
moved into it and the manifest comes last. A reader keeps a shared lock on the folder of a group until it is done with
the group, and a folder is removed only under an exclusive lock: so no file disappears that a reader was promised. Locks
are the kernel's, so they die with their holders.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from blake3 import blake3

from kcachefs import filelock
from kcachefs.caches.bound import BLOCK, LOW_WATER, Bound, brought_back, check_limit, on_disk

_PRIVATE = ".kcachefs"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Pin:
    """A promise that a folder stays until `close`."""

    def __init__(self, path: Path, file: int) -> None:
        self.path: Path = path
        self._file = file

    def touch(self) -> None:
        """Note that the folder has been used, which makes it the youngest."""
        now = time.time_ns()
        with contextlib.suppress(OSError):
            os.utime(self._file, ns=(now, now))

    def take_over(self, other: Pin) -> None:
        """Hold the folder of `other` instead; `other` is closed without releasing its lock."""
        self.close()
        self.path, self._file = other.path, other._file
        other._file = -1

    def close(self) -> None:
        """Release the folder: its files are no longer needed."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Groups:
    """All groups beneath one root, shared by any number of processes."""

    def __init__(self, root: Path, max_bytes: int | None) -> None:
        check_limit(max_bytes)
        self.root = root
        self.max_bytes = max_bytes
        self._private = root / _PRIVATE
        self._bound = None if max_bytes is None else Bound(max_bytes, self._evict)
        self._opened = time.time_ns()

    def pin(self, key: str) -> Pin | None:
        """Hold on to the folder of `key`, where there is one."""
        return _pinned(self.root / key, fcntl.LOCK_SH)

    def stage(self, key: str) -> Pin:
        """A new folder to fill, which is removed if its writer dies."""
        while True:
            path = self._private / f"{key}-{uuid.uuid4().hex}"
            os.makedirs(path)
            pin = _pinned(path, fcntl.LOCK_SH)
            if pin is not None:  # otherwise the sweep took it before it was locked
                return pin

    def publish(self, key: str, staged: Pin, manifest: str, is_whole: Callable[[Path], bool]) -> bool:
        """Make a filled folder the group of `key`, unless a whole one is there; returns whether it became the group."""
        try:
            if not self._publish(key, staged, manifest, is_whole):
                return False
        except OSError:
            return False
        staged.touch()
        self.grew(key)
        return True

    def grew(self, key: str) -> None:
        """Note that files have been added to the folder of `key`: other folders may have to go."""
        if self._bound is not None:
            path = self.root / key
            self._bound.grew(_size(path), str(path))

    def remove(self, key: str) -> bool:
        """Remove the folder of `key` unless someone holds on to it."""
        return self._remove(self.root / key, None)

    def sweep(self) -> None:
        """Remove what dead writers have left."""
        for folder in _folders(self._private):
            self._remove(folder, None)

    def keys(self) -> list[str]:
        """The keys of all folders, the least recently used first."""
        return [path.name for _, path in sorted(self._aged())]

    def _publish(self, key: str, staged: Pin, manifest: str, is_whole: Callable[[Path], bool]) -> bool:
        target = self.root / key
        while not _moved(staged.path, target):
            there = self.pin(key)
            if there is None:
                if target.exists():
                    return False  # something has that name that we may not open
                continue  # evicted since the attempt to move
            if is_whole(target):
                there.close()
                return False
            _move_files(staged.path, target, manifest)
            staged.take_over(there)
        staged.path = target
        return True

    def _remove(self, path: Path, age: int | None) -> bool:
        pin = _pinned(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if pin is None:
            return False
        try:
            if age is not None and path.stat().st_mtime_ns != age:
                return False  # used since it was picked
            gone = self._private / f"removed-{uuid.uuid4().hex}"
            self._private.mkdir(parents=True, exist_ok=True)
            os.rename(path, gone)
            shutil.rmtree(gone, ignore_errors=True)
            return True
        except OSError:
            return False
        finally:
            pin.close()

    def _evict(self, newest: str) -> int:
        assert self.max_bytes is not None
        self.sweep()
        self._bring_back()
        found = [(age, path, _size(path)) for age, path in self._aged()]
        total = sum(size for _, _, size in found)
        if total <= self.max_bytes:
            return total
        for age, path, size in sorted(found):
            if total <= self.max_bytes * LOW_WATER:
                break
            if str(path) != newest and self._remove(path, age):
                total -= size
        return total

    def _bring_back(self) -> None:
        found = sorted(self._aged())
        for place, age in brought_back([age for age, _ in found], self._opened).items():
            with contextlib.suppress(OSError):
                os.utime(found[place][1], ns=(age, age))

    def _aged(self) -> Iterator[tuple[int, Path]]:
        for folder in _folders(self.root):
            if folder.name != _PRIVATE:
                with contextlib.suppress(OSError):
                    yield folder.stat().st_mtime_ns, folder


def file_facts(path: Path) -> tuple[int, str]:
    """The size and the digest of a file, as a manifest states them."""
    content = path.read_bytes()
    return len(content), blake3(content).hexdigest()


def _pinned(path: Path, how: int) -> Pin | None:
    """A locked folder that still has its name; None where there is none, or it is locked against us."""
    try:
        return Pin(path, filelock.open_locked(path, _FOLDER, how))
    except OSError:
        return None


def _moved(source: Path, target: Path) -> bool:
    """Rename a folder, unless it is there already; False where `target` is a folder with something else in it."""
    if source == target:
        return True
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _move_files(source: Path, target: Path, last: str) -> None:
    """Move every file of a folder into another, one of them last, and remove the folder."""
    names = sorted(os.listdir(source), key=lambda name: (name == last, name))
    for name in names:
        os.replace(source / name, target / name)
    with contextlib.suppress(OSError):
        os.rmdir(source)


def _folders(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as found:
            return [Path(child.path) for child in found if child.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _size(folder: Path) -> int:
    total = BLOCK
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for child in found:
            with contextlib.suppress(OSError):
                total += on_disk(child.stat(follow_symlinks=False).st_size)
    return total
