"""The places of a store: its folders and files, and what to do if one is missing or something else is in its place.

Tools that copy or clean up may leave out empty folders. That loses nothing, and opening a store recreates them. If a
part is missing along with its content, that is a loss: opening refuses, and only a repair goes on without the part.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from kcachefs.errors import NotAStore, PartMissing

HEADER = "kcachefs.json"
FOLDERS = ("catalog", "journal", "volumes", "incoming", "dictionaries", "listings", "spool", "quarantine", "history")
SLOTS = "spool.arena"  # a name of the store's format: it stays, though the code says slots
_QUARANTINE = "quarantine"
NO_FILE = "is a directory and should be a file"


def make_folder(path: Path, name: str) -> None:
    """Make a folder of the store at `path` if it is missing."""
    os.makedirs(path / name, mode=0o700, exist_ok=True)


def closed_folder(path: Path) -> Path | None:
    """The folder that keeps this user from making the store at `path`; None if the store exists or can be made."""
    if os.path.lexists(path):
        return None
    nearest = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    return nearest if os.path.isdir(nearest) and not os.access(nearest, os.W_OK | os.X_OK) else None


def refuse_lost(part: Path, is_needed: bool) -> None:
    """Raise if a part of the store is missing although the store needs its content."""
    if is_needed and not os.path.lexists(part):
        raise PartMissing(part, f"{part}: is missing, with what it held; put it back, or run: kcachefs fsck --repair")


def refuse_misplaced(path: Path) -> None:
    """Raise if a file of the store at `path` is a directory, or a folder that the store needs is a file."""
    for one, problem in misplaced(path):
        if one.name == "listings":
            continue
        raise NotAStore(f"{one}: {problem}; run: kcachefs fsck --repair")


@contextlib.contextmanager
def in_their_places() -> Iterator[None]:
    """If a file in one of the folders is a directory, turn that error into one that says what to do."""
    try:
        yield
    except IsADirectoryError as error:
        raise NotAStore(f"{error.filename}: {NO_FILE}; run: kcachefs fsck --repair") from None


def misplaced(path: Path) -> Iterator[tuple[Path, str]]:
    """Each file or folder of the wrong kind in the store at `path`, and the problem in words.

    Links are not looked at: other code refuses them.
    """
    for name in (HEADER, f"{HEADER}.new", SLOTS):
        if _kind(path / name) == stat.S_IFDIR:
            yield path / name, NO_FILE
    for name in FOLDERS:
        if _kind(path / name) not in (None, stat.S_IFDIR, stat.S_IFLNK):
            yield path / name, "is a file and should be a directory"


def misplaced_inside(path: Path) -> Iterator[tuple[Path, str]]:
    """The same for the content of the folders, which may only hold files."""
    for name in FOLDERS:
        if name != _QUARANTINE and _kind(path / name) == stat.S_IFDIR:
            with os.scandir(path / name) as found:
                inside = sorted(one.name for one in found if one.is_dir(follow_symlinks=False))
            yield from ((path / name / one, NO_FILE) for one in inside)


def set_aside(path: Path, one: Path) -> Path:
    """Move a misplaced file or folder into the quarantine of the store at `path`; returns its new path."""
    name = f"stray-{one.name}"
    if one == path / _QUARANTINE:
        one = one.rename(path / name)
    make_folder(path, _QUARANTINE)
    to = path / _QUARANTINE / name
    return one.rename(free_name(to.parent, name) if os.path.lexists(to) else to)


def free_name(directory: Path, stem: str) -> Path:
    """An unused name in `directory`: `stem` and a number."""
    number = 1
    while os.path.lexists(directory / f"{stem}-{number}"):
        number += 1
    return directory / f"{stem}-{number}"


def _kind(path: Path) -> int | None:
    """The file type of `path`, as in `st_mode`; None if nothing exists there."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:
        return None
