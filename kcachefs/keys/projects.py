"""`project_fingerprint`: one digest of a project's files, by relative name and content."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from blake3 import blake3

from kcachefs.errors import UsageError
from kcachefs.keys.encoding import digest, encode

# Folders that come and go without changing what the project does.
_IGNORED_FOLDERS = frozenset({"__pycache__", ".git", ".hg", ".svn", ".mypy_cache", ".ruff_cache", ".pytest_cache"})
_IGNORED_ENDINGS = (".pyc", ".pyo", ".swp", "~")

_Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
_Part = tuple[str, str, bytes]


def project_fingerprint(paths: _Paths) -> str:
    """The digest of files and folders, the same wherever they lie and whenever they were written.

    A folder counts by the names inside it and a file by its own name, so moving the whole changes nothing. A symbolic
    link to a folder counts by its target's path if the target is inside, and by the target's content if it is outside.
    """
    roots = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    content = sorted(encode(part) for root in roots for part in _parts(os.fspath(root)))
    return digest("project", encode(len(roots)), *content).hex()


def _parts(root: str) -> Iterator[_Part]:
    if os.path.isfile(root):
        yield ("file", os.path.basename(root), _content(root))
    elif os.path.isdir(root):
        real = os.path.realpath(root)
        yield from _inside(real, "", real, frozenset({real}))
    else:
        raise UsageError(f"{root} is neither a file nor a folder, so it has no fingerprint")


def _inside(folder: str, name: str, root: str, above: frozenset[str]) -> Iterator[_Part]:
    """The parts of a folder, called `name` in the project; `above` are the folders on the way to it."""
    with os.scandir(folder) as children:
        found = sorted(children, key=lambda child: child.name)
    for child in found:
        inner = os.path.join(name, child.name)
        if child.is_dir():
            if child.name in _IGNORED_FOLDERS:
                continue
            real = os.path.realpath(child.path)
            if not child.is_symlink():
                yield from _inside(child.path, inner, root, above)
            elif real == root or real.startswith(root + "/"):
                yield ("link", inner, os.fsencode(os.path.relpath(real, root)))
            elif real in above:
                yield ("link to a folder above", inner, b"")
            else:
                yield from _inside(child.path, inner, root, above | {real})
        elif not child.name.endswith(_IGNORED_ENDINGS):
            yield ("file", inner, _content(child.path))


def _content(path: str) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for a writer
            return b"no regular file"
    except FileNotFoundError:
        return b"dangling " + os.fsencode(os.readlink(path))
    hasher = blake3()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            hasher.update(chunk)
    return hasher.digest()
