"""Writes into a bucket that is a folder, and gives everything there the rights of the folder itself.

So whoever may write into the folder may write everywhere in it. obstore would use the umask of the first writer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kcachefs.errors import FleetError, FleetRefused
from kcachefs.fleet import bucket_urls, folder_listing

_REASONS = {
    errno.ENOSPC: (FleetError, "its disk is full"),
    errno.EDQUOT: (FleetError, "its disk has no more room for this user"),
    errno.EROFS: (FleetRefused, "it can only be read here"),
    errno.EACCES: (FleetRefused, "this user may not write there; see: kcachefs fleet init --print-only"),
    errno.EPERM: (FleetRefused, "this user may not write there; see: kcachefs fleet init --print-only"),
}
"""Errors for which nothing can be written, although reading may still work: the exception to raise, and the reason."""


def write(root: str, key: str, content: bytes | Path, *, if_absent: bool = False) -> bool:
    """Write an object below a folder, whole or not at all; `storage.put` says what it returns."""
    *folders, name = key.split("/")
    try:
        with _opened(root, folders) as (at, rights):
            return _write(at, name, content, rights, if_absent)
    except OSError as error:
        kind, why = _REASONS.get(error.errno or 0, (None, ""))
        if kind is None:
            raise
        raise kind(f"{os.path.join(root, key)}: cannot be written: {why}") from None


def join_group(url: str) -> None:
    """As root, join the group of a bucket that is a folder: without capabilities only members can give it files."""
    where = bucket_urls.parse(url)
    if where.scheme == "file" and os.geteuid() == 0:
        with contextlib.suppress(OSError):  # the folder does not exist, or we are root in a user namespace
            os.setgroups([*os.getgroups(), os.stat(where.path).st_gid])


def delete(root: str, keys: Iterable[str]) -> None:
    """Remove objects; one that is gone already is not an error."""
    for key in keys:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(root, key))


@contextmanager
def _opened(root: str, folders: Sequence[str]) -> Iterator[tuple[int, os.stat_result]]:
    """Open a folder, made if it is missing; yields its descriptor and the rights of the root.

    Each step goes by descriptor: others may write there too, and could replace a new folder with a link.
    """
    at = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        rights = os.fstat(at)
        for name in folders:
            below = _open_folder(at, name, rights)
            os.close(at)
            at = below
        yield at, rights
    finally:
        os.close(at)


def _open_folder(at: int, name: str, rights: os.stat_result) -> int:
    mode = stat.S_IMODE(rights.st_mode) | 0o700
    try:
        os.mkdir(name, dir_fd=at)
    except FileExistsError:
        there = os.open(name, os.O_PATH | os.O_DIRECTORY, dir_fd=at)
        found = os.fstat(there)
        differs = (found.st_gid, stat.S_IMODE(found.st_mode)) != (rights.st_gid, mode)
        if differs and found.st_uid == os.geteuid():
            with contextlib.suppress(OSError):  # it is a link: its target stays as it is
                os.close(_open_and_share(at, name, rights, mode))
        return there
    return _open_and_share(at, name, rights, mode)


def _open_and_share(at: int, name: str, rights: os.stat_result, mode: int) -> int:
    """Open a folder that we have made, and share it. One made earlier has other rights if its maker was killed."""
    made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
    _share(made, rights, mode)
    return made


def _write(at: int, name: str, content: bytes | Path, rights: os.stat_result, if_absent: bool) -> bool:
    """Write a file, whole or not at all."""
    if if_absent and _is_there(at, name):
        return False
    staged = folder_listing.staged_name(name, secrets.randbelow(10**12))
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=at)
    try:
        with open(fd, "wb") as file:
            _share(fd, rights, rights.st_mode & 0o444 | 0o600)
            if isinstance(content, Path):
                with open(content, "rb") as original:
                    shutil.copyfileobj(original, file, 1 << 20)
            else:
                file.write(content)
        if if_absent:
            os.link(staged, name, src_dir_fd=at, dst_dir_fd=at)
        else:
            os.replace(staged, name, src_dir_fd=at, dst_dir_fd=at)
        return True
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(staged, dir_fd=at)


def _is_there(at: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _share(fd: int, rights: os.stat_result, mode: int) -> None:
    """Give a new file or folder the root's group and these rights. If its group stays another, that group gets no more
    than the umask gave it."""
    with contextlib.suppress(OSError):  # some network filesystems have no rights to give
        if os.fstat(fd).st_gid != rights.st_gid:
            with contextlib.suppress(PermissionError):
                os.fchown(fd, -1, rights.st_gid)
        made = os.fstat(fd)
        if made.st_gid != rights.st_gid:
            mode = mode & ~0o2070 | made.st_mode & 0o2070
        if stat.S_IMODE(made.st_mode) != mode:
            os.fchmod(fd, mode)
