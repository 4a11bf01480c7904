"""A whole tree as one comparable value."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Node(NamedTuple):
    """What one name shows. `twin` is the first name of the same inode; long contents are represented by a digest."""

    kind: str
    mode: int
    owner: tuple[int, int]
    links: int
    size: int
    mtime_ns: int
    content: bytes
    twin: str


def same_trees(one: dict[str, Node], two: dict[str, Node]) -> None:
    """Fail with the names that differ, and how they differ."""
    if different := differences(one, two):
        raise AssertionError(different)


def differences(one: dict[str, Node], two: dict[str, Node]) -> str:
    """Each name that differs with what it is on both sides; empty if the trees are the same."""
    different = [name for name in sorted(one.keys() | two.keys()) if one.get(name) != two.get(name)]
    return "\n".join(f"{name}:\n  {one.get(name)}\n  {two.get(name)}" for name in different)


def snapshot(root: Path, *, contents: bool = True) -> dict[str, Node]:
    """Every name below `root`, by its relative path."""
    twins: dict[int, str] = {}
    return {name: _node(path, status, twins, name, contents) for path, name, status in _walk(str(root), "")}


def _walk(folder: str, above: str) -> Iterator[tuple[str, str, os.stat_result]]:
    """Every name with its path, the one to be shown, and its attributes; on strings, for the sake of thousands."""
    for name in sorted(os.listdir(folder)):
        path = f"{folder}/{name}"
        status = os.lstat(path)
        yield path, above + name, status
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(path, f"{above}{name}/")


def _node(path: str, status: os.stat_result, twins: dict[int, str], name: str, contents: bool) -> Node:
    content = b""
    if stat.S_ISLNK(status.st_mode):
        content = os.fsencode(os.readlink(path))
    elif stat.S_ISREG(status.st_mode) and contents:
        content = Path(path).read_bytes()
        if len(content) > 64:
            content = hashlib.sha256(content).hexdigest().encode()
    return Node(
        kind=stat.filemode(status.st_mode)[0],
        mode=stat.S_IMODE(status.st_mode),
        owner=(status.st_uid, status.st_gid),
        links=status.st_nlink,
        # Each filesystem has its own idea of the size of a directory.
        size=0 if stat.S_ISDIR(status.st_mode) else status.st_size,
        mtime_ns=status.st_mtime_ns,
        content=content,
        twin=twins.setdefault(status.st_ino, name),
    )
