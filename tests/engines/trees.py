"""A whole tree as one comparable value."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Node:
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
    nodes: dict[str, Node] = {}
    twins: dict[int, str] = {}
    for path in _walk(root):
        name = os.path.relpath(path, root)
        nodes[name] = _node(path, twins, name, contents)
    return nodes


def _walk(folder: Path) -> list[Path]:
    found = []
    for name in sorted(os.listdir(folder)):
        path = folder / name
        found.append(path)
        if stat.S_ISDIR(path.lstat().st_mode):
            found += _walk(path)
    return found


def _node(path: Path, twins: dict[int, str], name: str, contents: bool) -> Node:
    status = path.lstat()
    content = b""
    if stat.S_ISLNK(status.st_mode):
        content = os.fsencode(os.readlink(path))
    elif stat.S_ISREG(status.st_mode) and contents:
        content = path.read_bytes()
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
