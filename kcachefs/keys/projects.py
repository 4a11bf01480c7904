"""`project_fingerprint`: one digest of a project's files, by relative name and content."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from blake3 import blake3

from kcachefs.errors import UsageError
from kcachefs.keys.encoding import digest, encode

# What comes and goes without changing what the project does.
_IGNORED_FOLDERS = frozenset({"__pycache__", ".git", ".hg", ".svn", ".mypy_cache", ".ruff_cache", ".pytest_cache"})
_IGNORED_ENDINGS = (".pyc", ".pyo", ".swp", "~")

_Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def project_fingerprint(paths: _Paths) -> str:
    """The digest of files and folders, the same wherever they lie and whenever they were written.

    A folder counts by the names inside it and a file by its own name, so moving the whole changes nothing. Symbolic
    links to folders count by where they point.
    """
    roots = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    content = sorted(encode(entry) for root in roots for entry in _entries(Path(root)))
    return digest("project", encode(len(roots)), *content).hex()


def _entries(root: Path) -> Iterator[tuple[str, str, bytes]]:
    if root.is_file():
        yield ("file", root.name, _content(root))
        return
    if not root.is_dir():
        raise UsageError(f"{root} is neither a file nor a folder, so it has no fingerprint")
    for folder, folders, files in os.walk(root, onerror=_raise):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = sorted(set(folders) - _IGNORED_FOLDERS - set(links))
        for name in links:
            path = Path(folder, name)
            yield ("link", str(path.relative_to(root)), os.fsencode(os.readlink(path)))
        for name in files:
            if not name.endswith(_IGNORED_ENDINGS):
                path = Path(folder, name)
                yield ("file", str(path.relative_to(root)), _content(path))


def _content(path: Path) -> bytes:
    if path.is_symlink() and not path.exists():
        return b"dangling " + os.fsencode(os.readlink(path))
    hasher = blake3()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            hasher.update(chunk)
    return hasher.digest()


def _raise(error: OSError) -> None:
    raise error
