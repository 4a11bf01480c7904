"""Which headers a CUDA source can pull in, and what is in them: the part of a program that its text does not show.

This over-reads on purpose: every directive counts, whether or not the preprocessor would reach it, so that a header
that matters is never left out. Files are named by their place on the search path, not by where that lies on the disk;
and for each directive it counts which file it leads to, so that a header appearing earlier on the path gives another
key. A directive that names a macro cannot be followed; then everything in the folders counts.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from blake3 import blake3

from kcachefs.keys.projects import project_fingerprint

_CONTINUED = re.compile(rb"\\\r?\n")
_DIRECTIVE = re.compile(rb"^[ \t]*(?:#|%:|\?\?=)[ \t]*(?:include|include_next|import|embed)\b(.*)$", re.MULTILINE)
_PROBE = re.compile(rb"\b__has_(?:include|include_next|embed)\s*\(\s*(\"[^\"]*\"|<[^>]*>)?")
_QUOTED = re.compile(rb"(?:/\*.*?\*/|\s)*(?:\"([^\"]*)\"|<([^>]*)>)", re.DOTALL)

# A file's place: the index of a folder on the search path and the path in it; -1 for what was given as text, and the
# path's length for what is found from the current directory.
_Place = tuple[int, str]


def include_closure(
    source: str | bytes,
    folders: Sequence[str | os.PathLike[str]] = (),
    headers: Mapping[str, str | bytes] | None = None,
    pre_includes: Sequence[str] = (),
) -> list[Any]:
    """Plain data that tells everything `source` may include from `folders`, or from `headers` by name.

    `pre_includes` are included before its first line; they are looked for in the current directory too.
    """
    source = as_bytes(source)
    if not headers and not pre_includes and not _may_include(source):
        return []
    search = [os.fspath(folder) for folder in folders]
    given = {name: as_bytes(content) for name, content in (headers or {}).items()}
    pending = [((-1, f"given {name}"), *_named(content)) for name, content in given.items()]
    pending.append(((-1, "source"), *_named(source)))
    pending.append(((len(search), ""), set(pre_includes), False))
    files: dict[_Place, bytes] = {}
    leads: dict[tuple[_Place, str], _Place | None] = {}
    blind = False
    while pending:
        includer, names, has_macro = pending.pop()
        blind = blind or has_macro
        for name in names:
            place, content = _find(name, includer, search)
            leads[includer, name] = place
            if place is not None and place not in files:
                files[place] = blake3(content).digest()
                pending.append((place, *_named(content)))
    trees = [project_fingerprint(folder) for folder in search if os.path.isdir(folder)] if blind else None
    return [given, files, leads, trees]


def as_bytes(text: str | bytes | bytearray | memoryview) -> bytes:
    """Text as the compiler reads it."""
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)


def _may_include(text: bytes) -> bool:
    # Every directive begins with one of these; most kernels have none, and looking for one character is fastest.
    return b"#" in text or (b"%" in text and b"%:" in text) or (b"?" in text and b"??=" in text)


def _named(text: bytes) -> tuple[set[str], bool]:
    """The names that a text includes or probes for, and whether one of them is a macro."""
    joined = _CONTINUED.sub(b"", text) if b"\\" in text else text
    names: set[str] = set()
    has_macro = False
    for match in _DIRECTIVE.finditer(joined):
        quoted = _QUOTED.match(match[1])
        if quoted is None:
            has_macro = True
        else:
            names.add((quoted[1] or quoted[2] or b"").decode("utf-8", "surrogateescape"))
    for match in _PROBE.finditer(joined):
        if match[1] is None:
            has_macro = True
        else:
            names.add(match[1][1:-1].decode("utf-8", "surrogateescape"))
    return names, has_macro


def _find(name: str, includer: _Place, search: list[str]) -> tuple[_Place | None, bytes]:
    """The first file that `name` can mean: beside the file that includes it, then along the search path."""
    index, inside = includer
    places = [(index, posixpath.join(posixpath.dirname(inside), name))] if index >= 0 else []
    places += [(at, name) for at in range(len(search))]
    for at, path in places:
        try:
            with open(os.path.join(*search[at : at + 1], path), "rb") as file:
                return (at, posixpath.normpath(path)), file.read()
        except (OSError, ValueError):
            continue
    return None, b""
