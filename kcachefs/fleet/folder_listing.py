"""Lists a bucket that is a folder. Files that no fleet puts there are skipped, where obstore would give up."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator

from kcachefs.errors import FleetMissing

_STAGED = re.compile(r".*#\d+")
"""The name of a file that is still being written, by us or by obstore."""


def staged_name(name: str, number: int) -> str:
    return f"{name}#{number}"


def check_there(url: str, folder: str) -> None:
    """Raise FleetMissing unless the folder exists. It is not created: it may be on a disk that is not mounted yet."""
    if not os.path.isdir(folder):
        remedy = f"mount the disk that it is on, or make it with: mkdir -p {shlex.quote(folder)}"
        raise FleetMissing(f"{url}: there is no such folder; {remedy}")


def files(
    folder: str, ancestors: frozenset[tuple[int, int]] = frozenset(), *, staged: bool = False
) -> Iterator[tuple[str, os.stat_result]]:
    """The files below a folder, at any depth, by their paths from there. Links are followed, but not in circles.

    By default only whole files are listed; with `staged`, only those that are being written or were left unfinished.
    """
    try:
        found = os.stat(folder)
    except OSError:  # it is gone, or a link that leads nowhere
        return
    here = (found.st_dev, found.st_ino)
    if here in ancestors:
        return
    for child in _children(folder):
        if _is_folder(child):
            for path, told in files(child.path, ancestors | {here}, staged=staged):
                yield f"{child.name}/{path}", told
        elif bool(_STAGED.fullmatch(child.name)) is staged:
            with contextlib.suppress(OSError):  # as above
                if child.is_file():
                    yield child.name, child.stat()


def folders(folder: str) -> list[str]:
    """The names of the folders in a folder, sorted."""
    return sorted(child.name for child in _children(folder) if _is_folder(child))


def _is_folder(child: os.DirEntry[str]) -> bool:
    try:
        return child.is_dir()
    except OSError:
        return False


def _children(folder: str) -> list[os.DirEntry[str]]:
    """What is in a folder under names that a bucket can have: UTF-8 without line feeds."""
    try:
        with os.scandir(folder) as found:
            return [child for child in found if child.name.isprintable()]
    except (FileNotFoundError, NotADirectoryError):
        return []
