"""Copies files and folders that others may be changing at the same time: through descriptors, never through a link.

Between a look at a path and opening it, somebody who can write to the source may swap in a link to a file that only
the caller may read. So every step opens one name in a folder that is open already, refuses a link there, and looks at
what it has opened.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import uuid
from collections.abc import Callable
from pathlib import Path, PurePath
from types import TracebackType

from kcachefs.core.layouts import ADOPTING, is_temporary
from kcachefs.errors import MountError
from kcachefs.frameworks.graph_paths import GRAPH_MAX, cache_directory, relocated_graph

DEPTH_MAX = 64
"""How many folders an entry may have inside each other."""
GROUP_FILE_MAX = 1 << 20
"""The largest group file of Triton that is read: one lists a handful of names."""

_OF_THE_KIND = frozenset((errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV))
"""The errors with which opening a link, a socket or a device fails."""

Skip = Callable[[str], None]
"""Called with a path and the reason why it is not copied, in one line."""


class Skipped(Exception):
    """Something cannot be copied; the message names it and says why."""


class Unreadable(Skipped):
    """It could be copied, but reading it failed, through the disk's fault or the mount's; the next try may succeed."""


class Folder:
    """An open folder. It stays the same one whatever is renamed above it."""

    def __init__(self, path: Path, fd: int | None = None) -> None:
        """Open the folder at `path`, which may be a link, or take over `fd`."""
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if fd is None else fd

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            os.close(fd)

    def below(self, *names: str) -> Folder:
        """A folder below this one; Skipped if a folder on the way is missing, or is a link."""
        return self._walk(names, lambda folder, name: folder.open(name, os.O_DIRECTORY))

    def made_below(self, *names: str) -> Folder:
        """The same, but makes the folders that are missing; MountError if something else is in the way."""

        def make(folder: Folder, name: str) -> int:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder.fd)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                return os.open(name, flags, dir_fd=folder.fd)
            except NotADirectoryError:
                raise MountError(f"{folder.path / name}: is not a folder; remove it and try again") from None

        return self._walk(names, make)

    def _walk(self, names: tuple[str, ...], step: Callable[[Folder, str], int]) -> Folder:
        folder = Folder(self.path, os.dup(self.fd))
        for name in names:
            with folder:
                folder = Folder(folder.path / name, step(folder, name))
        return folder

    def open(self, name: str, flags: int = 0) -> int:
        """Open the file or folder of that name for reading; Skipped if it is a link or may not be read."""
        # Without O_NONBLOCK a FIFO would wait for a writer.
        flags |= os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            try:
                return os.open(name, flags | os.O_NOATIME, dir_fd=self.fd)  # leaves no trace in the source
            except PermissionError:  # only an owner may ask for that
                return os.open(name, flags, dir_fd=self.fd)
        except (PermissionError, FileNotFoundError):
            raise Skipped(f"{self.path / name}: cannot be read and was skipped") from None
        except OSError as error:
            kind = Skipped if error.errno in _OF_THE_KIND else Unreadable
            raise kind(f"{self.path / name}: was skipped: {error.strerror}") from None

    def children(self) -> list[os.DirEntry[str]]:
        with os.scandir(self.fd) as found:
            return sorted(found, key=lambda one: one.name)


def size_of(folder: Folder, depth: int = 1) -> int:
    """The bytes of all files below a folder; Skipped if it is too deep."""
    _check_depth(folder, depth)
    total = 0
    for child in folder.children():
        if child.is_dir(follow_symlinks=False):
            with folder.below(child.name) as inner:
                total += size_of(inner, depth + 1)
        else:
            with contextlib.suppress(FileNotFoundError):
                total += child.stat(follow_symlinks=False).st_size
    return total


def copy_tree(
    source: Folder, target: Folder, home: Path, copied: Callable[[int], None], skip: Skip, depth: int = 1
) -> None:
    """Copy what is in one folder into another, whose final path is `home`."""
    _check_depth(source, depth)
    for child in source.children():
        if is_temporary(os.fsencode(child.name)):
            continue
        if child.is_dir(follow_symlinks=False):
            with source.below(child.name) as inner, target.made_below(child.name) as copy:
                copy_tree(inner, copy, home / child.name, copied, skip, depth + 1)
        else:
            copy_file(source, child.name, target, child.name, home, copied, skip)
    found = os.fstat(source.fd)
    os.utime(target.fd, ns=(found.st_atime_ns, found.st_mtime_ns))


def copy_file(
    source: Folder, name: str, target: Folder, copy: str, home: Path, copied: Callable[[int], None], skip: Skip
) -> bool:
    """Copy a file or a link as `copy`, whose final folder is `home`; False if it was skipped."""
    try:
        seen = os.stat(name, dir_fd=source.fd, follow_symlinks=False)
        link = os.readlink(name, dir_fd=source.fd) if stat.S_ISLNK(seen.st_mode) else None
    except OSError:  # it is gone, or is no longer a link
        raise Skipped(f"{source.path / name}: cannot be read and was skipped") from None
    if link is not None:
        os.symlink(link, copy, dir_fd=target.fd)
        return True
    if not stat.S_ISREG(seen.st_mode):  # opening a device may already do something
        skip(f"{source.path / name}: is not a file and was skipped")
        return False
    with open(source.open(name), "rb") as reader:
        found = os.fstat(reader.fileno())
        if not stat.S_ISREG(found.st_mode):
            skip(f"{source.path / name}: is not a file and was skipped")
            return False
        content = None
        if is_group_file(name):
            content = relocated(reader.read(GROUP_FILE_MAX + 1), home)
            if content is None:
                skip(f"{source.path / name}: is not a group file of Triton and was skipped")
                return False
        elif (directory := cache_directory(home)) is not None and found.st_size <= GRAPH_MAX:
            content = relocated_graph(reader.read(GRAPH_MAX + 1), directory)
            reader.seek(0)
        made = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=target.fd)
        with open(made, "wb") as writer:
            if content is not None:
                writer.write(content)
                copied(found.st_size)
            else:
                while chunk := reader.read(1 << 20):
                    writer.write(chunk)
                    copied(len(chunk))
            os.fchmod(writer.fileno(), found.st_mode & 0o777)  # nobody's setuid bit becomes ours
    os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=target.fd, follow_symlinks=False)
    return True


def staging_name() -> str:
    """A unique name. Not the pid: processes in two containers that share a mount may have the same one."""
    return f"{ADOPTING.decode()}{uuid.uuid4().hex}"


def is_group_file(name: str) -> bool:
    """Whether a file of this name lists absolute paths, as Triton's group files do."""
    return name.startswith("__grp__")


def is_name(text: str) -> bool:
    """Whether a text is the name of a file in the same folder."""
    return text not in ("", ".", "..") and "/" not in text and "\0" not in text


def relocated(raw: bytes, home: PurePath, is_member: Callable[[str], bool] = is_name) -> bytes | None:
    """A group file of Triton with the paths of its members in `home`; None if it is something else."""
    try:
        group = json.loads(raw) if len(raw) <= GROUP_FILE_MAX else None
    except (ValueError, RecursionError):
        return None
    names = group.get("child_paths") if isinstance(group, dict) else None
    if not isinstance(group, dict) or not isinstance(names, dict) or not all(map(is_member, names)):
        return None
    return json.dumps({**group, "child_paths": {name: str(home / name) for name in names}}).encode()


def _check_depth(folder: Folder, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise Skipped(f"{folder.path}: has more than {DEPTH_MAX} folders inside each other above it and was skipped")
