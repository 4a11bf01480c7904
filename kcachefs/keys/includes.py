"""Which headers a CUDA source can pull in, and what is in them: the part of a program that its text does not show.

This over-reads on purpose: every directive counts, whether or not the preprocessor would reach it, and every file that
it can mean, whichever the compiler would take, so that a header that matters is never left out. Files are named by
their place on the search path, not by where that lies on the disk; and for each directive it counts which files it
leads to, so that a header appearing earlier on the path gives another key. A directive that names a macro cannot be
followed; then everything in the folders counts.
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
# A comment is as good as a blank, and may run over lines. It ends at its first end, whatever would match after another.
_BLANKS = rb"(?>[ \t\r\f\v]|/\*.*?\*/)*+"
_QUOTED = re.compile(_BLANKS + rb"(?:\"([^\"\n]*)\"|<([^>\n]*)>)", re.DOTALL)
_WORDS = (b"include", b"import", b"embed")
# The word is looked at and not consumed: what is taken for a comment may be none, and hide the next directive.
_DIRECTIVE = re.compile(rb"(?:#|%:|\?\?=)(?=" + _BLANKS + rb"(?:include|include_next|import|embed)\b())", re.DOTALL)
_PROBE = re.compile(rb"__has_(?:include|include_next|embed)" + _BLANKS + rb"\(", re.DOTALL)

# A file's place: the index of a folder on the search path and the path in it. The index after the last stands for the
# current directory, and -1 for the source.
_Place = tuple[int, str]
_SOURCE = (-1, "")


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
    walk = _Walk(search)
    walk.pending = [((len(search), name), *_named(content)) for name, content in given.items()]
    walk.pending.append((_SOURCE, *_named(source)))
    walk.pending.append(((len(search), ""), set(pre_includes), False))
    leads: dict[tuple[_Place, str], list[_Place]] = {}
    blind = False
    while walk.pending:
        includer, names, has_macro = walk.pending.pop()
        blind = blind or has_macro
        for name in names:
            found = map(walk.find, _candidates(name, includer, len(search)))
            leads[includer, name] = [place for place in found if place is not None]
    trees = [project_fingerprint(folder) for folder in search if os.path.isdir(folder)] if blind else None
    return [given, walk.files, leads, trees]


class _Walk:
    """The files reached so far, by digest, and what those say that are still to be followed. Each is read once."""

    def __init__(self, search: list[str]) -> None:
        self.files: dict[_Place, bytes] = {}
        self.pending: list[tuple[_Place, set[str], bool]] = []
        self._search = search
        self._tried: dict[_Place, _Place | None] = {}

    def find(self, place: _Place) -> _Place | None:
        """The place without detours, or None where no file is."""
        if place not in self._tried:
            self._tried[place] = self._read(*place)
        return self._tried[place]

    def _read(self, index: int, path: str) -> _Place | None:
        try:
            with open(os.path.join(*self._search[index : index + 1], path), "rb") as file:
                content = file.read()
        except (OSError, ValueError):
            return None
        place = (index, posixpath.normpath(path))
        if place not in self.files:
            self.files[place] = blake3(content).digest()
            self.pending.append((place, *_named(content)))
        return place


def as_bytes(text: str | bytes | bytearray | memoryview) -> bytes:
    """Text as the compiler reads it."""
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)


def _may_include(text: bytes) -> bool:
    # Every directive begins with one of these; most kernels have none, and looking for one character is fastest.
    return b"#" in text or (b"%" in text and b"%:" in text) or (b"?" in text and b"??=" in text)


def _named(text: bytes) -> tuple[set[str], bool]:
    """The names that a text includes or probes for, and whether one of them is a macro."""
    text = text.replace(b"??/", b"\\")
    joined = _CONTINUED.sub(b"", text) if b"\\" in text else text
    names: set[str] = set()
    has_macro = False
    if not any(word in joined for word in _WORDS):
        return names, has_macro
    ends = [match.end(1) for match in _DIRECTIVE.finditer(joined) if _begins_line(joined, match.start())]
    ends += [match.end() for match in _PROBE.finditer(joined)]
    for end in ends:
        quoted = _QUOTED.match(joined, end)
        if quoted is None:
            has_macro = True
        else:
            names.add((quoted[1] or quoted[2] or b"").decode("utf-8", "surrogateescape"))
    return names, has_macro


def _begins_line(text: bytes, at: int) -> bool:
    """Whether nothing but blanks and perhaps the end of a comment comes before on the line."""
    before = text[text.rfind(b"\n", 0, at) + 1 : at].rstrip()
    return not before or before.endswith(b"*/")


def _candidates(name: str, includer: _Place, count: int) -> list[_Place]:
    """Where the file that `name` means may be: beside the one that includes it, and in each of `count` folders."""
    index, inside = includer
    if os.path.isabs(name):
        return [(count, name)]
    beside = [] if includer == _SOURCE else [(index, posixpath.join(posixpath.dirname(inside), name))]
    return beside + [(at, name) for at in range(count)]
