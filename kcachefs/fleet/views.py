"""Trees that entries are read from: a mount or any folder of namespaces, and a store that is not mounted."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from kcachefs.core import Filesystem
from kcachefs.core.tree import DOTDOT, Row
from kcachefs.errors import FsError, KcachefsError
from kcachefs.fleet.rules import THING_MAX
from kcachefs.frameworks.copying import Folder, Skipped, Unreadable
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.records import Content

_ROWS = 4096
_FOLDER, _FILE = stat.S_IFDIR >> 12, stat.S_IFREG >> 12


class Child(NamedTuple):
    """A name in a folder. If it is neither a folder nor a file, it is a link, a socket or the like."""

    name: str
    is_folder: bool
    is_file: bool


class Seen(NamedTuple):
    """A file as it was when it was read."""

    mode: int
    mtime: int
    content: bytes
    uid: int = -1
    gid: int = -1
    """The file's owner and group in the store; -1 where they are not looked up."""
    is_sealed: bool = True
    """False while a writer may still change the file; only a store knows."""


class View(Protocol):
    """A folder of namespaces, from which paths start. `Skipped` says what cannot be read, and why."""

    def children(self, path: tuple[str, ...]) -> list[Child]:
        """What is in a folder, by name."""

    def size(self, path: tuple[str, ...]) -> int: ...

    def read(self, path: tuple[str, ...]) -> Seen: ...


class FolderView:
    """A mount, or a plain folder. Reads through descriptors and follows no link, since others may write there."""

    def __init__(self, root: Path) -> None:
        self._root = Folder(root)
        self._open: tuple[tuple[str, ...], Folder] | None = None

    def children(self, path: tuple[str, ...]) -> list[Child]:
        found = self._folder(path).children()
        return [Child(one.name, one.is_dir(follow_symlinks=False), one.is_file(follow_symlinks=False)) for one in found]

    def size(self, path: tuple[str, ...]) -> int:
        folder = self._folder(path[:-1])
        try:
            return os.stat(path[-1], dir_fd=folder.fd, follow_symlinks=False).st_size
        except FileNotFoundError:
            raise Skipped(f"{'/'.join(path)}: is gone") from None
        except OSError as error:
            raise Unreadable(f"{'/'.join(path)}: cannot be read: {error.strerror}") from None

    def read(self, path: tuple[str, ...]) -> Seen:
        with open(self._folder(path[:-1]).open(path[-1]), "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise Skipped(f"{'/'.join(path)}: is not a file")
            parts, left = [], THING_MAX + 1
            try:
                while left > 0 and (chunk := file.read(min(left, 1 << 20))):
                    parts.append(chunk)
                    left -= len(chunk)
            except OSError as error:
                raise Unreadable(f"{'/'.join(path)}: cannot be read: {error.strerror}") from None
        return Seen(found.st_mode & 0o777, found.st_mtime_ns, b"".join(parts))

    def _folder(self, path: tuple[str, ...]) -> Folder:
        """The folder, kept open until another is asked for: files are read folder by folder."""
        if self._open is None or self._open[0] != path:
            self._open = (path, self._root.below(*path))
        return self._open[1]


class StoreView:
    """The filesystem of a store that is not mounted, in this process."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs

    def children(self, path: tuple[str, ...]) -> list[Child]:
        rows = rows_in(self._fs, self._find(path))
        return sorted(Child(os.fsdecode(name), kind == _FOLDER, kind == _FILE) for _, name, _, kind in rows)

    def size(self, path: tuple[str, ...]) -> int:
        return self._fs.attributes(self._find(path)).size

    def read(self, path: tuple[str, ...]) -> Seen:
        ino = self._find(path)
        try:
            node, raw = self._fs.attributes(ino), self._fs.nodes.get(ino)
            content = self._fs.read(ino, 0, min(node.size, THING_MAX + 1))
            is_sealed = raw.content in (Content.OBJECT, Content.NONE)
            return Seen(node.mode & 0o777, node.mtime, content, raw.uid, raw.gid, is_sealed)
        except KcachefsError as error:
            raise Unreadable(f"{'/'.join(path)}: cannot be read: {error}") from None

    def _find(self, path: tuple[str, ...]) -> int:
        ino = ROOT_INO
        try:
            for name in path:
                found = self._fs.tree.find(ino, os.fsencode(name))
                if found is None:
                    raise Skipped(f"{'/'.join(path)}: is gone")
                ino = found
        except FsError:
            raise Skipped(f"{'/'.join(path)}: is gone") from None
        return ino


def rows_in(fs: Filesystem, folder: int) -> Iterator[Row]:
    """What is in a folder of a filesystem, without `.` and `..`."""
    cookie = DOTDOT
    while rows := fs.tree.listing(folder, cookie, _ROWS):
        cookie = rows[-1][0]
        yield from rows
