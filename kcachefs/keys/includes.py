"""The headers that a CUDA source can pull in, and their contents: the part of a program that its text does not show.

This over-reads on purpose, so that no header that matters is left out: every directive counts, whether or not the
preprocessor would reach it, and so does every file that it can mean, whichever the compiler would take. A directive
that names a macro is followed through every definition of that macro; one whose definition cannot be read is refused.
Files are numbered in the order they are found, so their location does not count. The files that each directive leads to
do count, so a header that appears earlier on the search path gives another key.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from blake3 import blake3

from kcachefs.errors import Unkeyable

_CONTINUED = re.compile(rb"\\\r?\n")
# A comment counts as a blank, and may span lines. It ends at the first `*/`, even if only a later one matches.
_BLANKS = rb"(?>[ \t\r\f\v]|/\*.*?\*/)*+"
_QUOTED = re.compile(_BLANKS + rb"(?:\"([^\"\n]*)\"|<([^>\n]*)>)", re.DOTALL)
_NAME = re.compile(_BLANKS + rb"([A-Za-z_]\w*)" + _BLANKS + rb"(?=//|\n|\)|$)", re.DOTALL)
_WORD = re.compile(rb"[A-Za-z_]\w*")
_WORDS = (b"include", b"import", b"embed")
# The word itself is not consumed: something that looks like a comment may not be one, and may hide the next directive.
_DIRECTIVE = re.compile(rb"(?:#|%:|\?\?=)(?=" + _BLANKS + rb"(?:include|include_next|import|embed)\b())", re.DOTALL)
_PROBE = re.compile(rb"__has_(?:include|include_next|embed)" + _BLANKS + rb"\(", re.DOTALL)
_DEFINITION = re.compile(
    rb"(?:#|%:|\?\?=)" + _BLANKS + rb"define" + _BLANKS + rb"([A-Za-z_]\w*)(?![\w(])([^\n]*)", re.DOTALL
)
_DEFINES = re.compile(_BLANKS + rb"(?:#|%:|\?\?=)" + _BLANKS + rb"define" + _BLANKS, re.DOTALL)
# A `#define` or a condition: here another macro may be given the job of `__has_include`.
_HANDED_ON = re.compile(rb"(?:#|%:|\?\?=)" + _BLANKS + rb"(define|if|elif)\b([^\n]*)", re.DOTALL)
_ASKED_FOR = re.compile(rb"\bdefined\s*\(?\s*__has_\w+")
_PROBES = (b"__has_include", b"__has_include_next", b"__has_embed")
_BEGINNINGS = sorted({probe[:end] for probe in _PROBES for end in range(len(b"__has_"), len(probe))})
_BARE_PROBE = re.compile(
    rb"\b__has_(?:include|include_next|embed)\b(?!\s*\()"
    rb"|\b(?:" + b"|".join(_BEGINNINGS) + rb")\s*##"  # from pieces
    rb"|##\s*(?:\w*has_)?(?:include|include_next|embed)\b"
)
_DEFINED = re.compile(rb"\s*[A-Za-z_]\w*(?:\([^)\n]*\))?")
# Characters that no preprocessor condition can hold, not even through a macro: a macro with one of them is for code.
_OF_CODE = re.compile(rb"[;{}]")
_NO_CODE = re.compile(rb"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'|//[^\n]*|/\*.*?\*/", re.DOTALL)
# Names that give the path of the calling file; and everything that can put the paths of files into a compiled program.
_OF_CALLER = re.compile(rb"source_location|__builtin_FILE|__builtin_source")
_OWN_PATH = re.compile(rb"__FILE|__BASE_FILE__|__INCLUDE|\bassert\b|source_location|__builtin_FILE|__builtin_source")


def include_closure(
    source: str | bytes,
    folders: Sequence[str | os.PathLike[str]] = (),
    headers: Mapping[str, str | bytes] | None = None,
    pre_includes: Sequence[str] = (),
    macros: Mapping[str, str] | None = None,
) -> list[Any]:
    """Plain data that identifies everything `source` may include from `folders`, or from `headers` by name.

    `pre_includes` are included before its first line; they are looked for in the current directory too. `macros` are
    defined by the compiler's options. Raises `Unkeyable` for a directive that cannot be followed.
    """
    return read_includes(source, folders, headers, pre_includes, lambda: macros or {}).told


class Includes(NamedTuple):
    """What a source includes, as plain data, and whether any of its files mentions its own path."""

    told: list[Any]
    tells_paths: bool


def read_includes(
    source: str | bytes,
    folders: Sequence[str | os.PathLike[str]] = (),
    headers: Mapping[str, str | bytes] | None = None,
    pre_includes: Sequence[str] = (),
    macros: Callable[[], Mapping[str, str]] = dict,
) -> Includes:
    """`include_closure` with everything found on the way; `macros` is called only if there may be an include."""
    text = as_bytes(source)
    if not headers and not pre_includes and not _may_include(text):
        return Includes([], False)
    given = {name: as_bytes(content) for name, content in sorted((headers or {}).items())}
    walk = _Walk([os.fspath(folder) for folder in folders])
    defined = macros()
    for name, value in defined.items():
        walk.definitions.setdefault(name.encode(), set()).add(value.encode())
    by_options = _text_of("".join(f"#define {name} {value}\n" for name, value in sorted(defined.items())).encode())
    if by_options.macros or by_options.names or by_options.bare_probe:
        walk.add("", None, by_options)
    texts = [by_options, _text_of(text)]
    walk.add("", None, texts[-1])
    for name, content in given.items():
        # A file beside such a header is looked for in the current directory.
        texts.append(_text_of(content))
        walk.add(name, os.path.dirname(name), texts[-1])
    walk.add("", "", _NO_TEXT._replace(names=frozenset(os.fsencode(name) for name in pre_includes)))
    walk.run()
    # A path that one of these texts mentions belongs to the file that uses the text's macros and functions.
    tells_paths = walk.tells_paths or (bool(walk.files) and any(text.lends_paths for text in texts))
    return Includes([given, walk.files, walk.leads], tells_paths)


def as_bytes(text: str | bytes | bytearray | memoryview) -> bytes:
    """Text as the compiler reads it."""
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)


class _Text(NamedTuple):
    """The parts of a text that matter here."""

    names: frozenset[bytes]
    # Macros, or anything else, in the place of a file's name.
    macros: frozenset[bytes]
    definitions: tuple[tuple[bytes, bytes], ...]
    # Whether the compiled program may hold this text's path; and the paths of other texts that use what it defines.
    tells_paths: bool
    lends_paths: bool
    # A line in which a macro takes the place of `__has_include`: which files it asks for cannot be known.
    bare_probe: bytes


_NO_TEXT = _Text(frozenset(), frozenset(), (), False, False, b"")


@dataclass
class _Includer:
    """A text that includes others: its name, the folder it lies in, and its content."""

    number: int
    name: str
    # None for the source itself, whose folder is the first of the search path if it has one.
    folder: str | None
    text: _Text


@dataclass
class _Walk:
    """The files that were reached, each read once, and where each name in each of them leads."""

    search: list[str]
    files: list[bytes] = field(default_factory=list)
    leads: list[tuple[int, bytes, list[int | None]]] = field(default_factory=list)
    definitions: dict[bytes, set[bytes]] = field(default_factory=dict)
    tells_paths: bool = False
    _pending: deque[_Includer] = field(default_factory=deque)
    _numbers: dict[tuple[str, str], int | None] = field(default_factory=dict)
    _real_folders: dict[str, str] = field(default_factory=dict)
    _by_macro: list[tuple[_Includer, bytes]] = field(default_factory=list)
    _followed: set[tuple[int, bytes]] = field(default_factory=set)
    _texts: int = 0

    def add(self, name: str, folder: str | None, text: _Text) -> None:
        """Another text to follow."""
        if text.bare_probe:
            raise _handed_on(name, text.bare_probe)
        for macro, value in text.definitions:
            self.definitions.setdefault(macro, set()).add(value)
        self._pending.append(_Includer(self._texts, name, folder, text))
        self._texts += 1

    def run(self) -> None:
        """Follow every directive, and then those with macros, until nothing new is found."""
        while self._pending:
            while self._pending:
                includer = self._pending.popleft()
                for name in sorted(includer.text.names):
                    self._follow(includer, name)
                self._by_macro += [(includer, macro) for macro in sorted(includer.text.macros)]
            for includer, macro in self._by_macro:
                for name in sorted(self._values(includer, macro)):
                    self._follow(includer, name)

    def _follow(self, includer: _Includer, name: bytes) -> None:
        if (includer.number, name) in self._followed:
            return
        self._followed.add((includer.number, name))
        path = os.fsdecode(name)
        if os.path.isabs(path):
            candidates = [path]
        else:
            beside = [] if includer.folder is None else [os.path.join(includer.folder, path)]
            candidates = beside + [os.path.join(folder, path) for folder in self.search]
        self.leads.append((includer.number, name, [self._read(candidate) for candidate in candidates]))

    def _values(self, includer: _Includer, macro: bytes) -> set[bytes]:
        """The names of files that a macro may stand for, through other macros too."""
        names: set[bytes] = set()
        pending, seen = [macro], {macro}
        while pending:
            values = self.definitions.get(pending.pop())
            for value in values or [b""]:
                quoted, inner = _QUOTED.match(value), _NAME.fullmatch(value)
                if quoted is not None and self._is_literal(quoted):
                    names.add(quoted[1] or quoted[2] or b"")
                elif inner is None:
                    raise _unreadable(includer.name, macro)
                elif inner[1] not in seen:
                    seen.add(inner[1])
                    pending.append(inner[1])
        return names

    def _is_literal(self, quoted: re.Match[bytes]) -> bool:
        """Whether a macro's value is a file name as written: between angle brackets, macros are expanded."""
        return quoted[1] is not None or self.definitions.keys().isdisjoint(_WORD.findall(quoted[2]))

    def _read(self, path: str) -> int | None:
        """The number of a file; None where there is none."""
        folder, name = os.path.split(path)
        # Resolved as the operating system would: `..` after a link to a folder leads out of the link's target.
        if folder not in self._real_folders:
            self._real_folders[folder] = os.path.realpath(folder)
        place = (self._real_folders[folder], name)
        if place not in self._numbers:
            content = _content(path)
            self._numbers[place] = None if content is None else len(self.files)
            if content is not None:
                text = _text_of(content)
                self.files.append(blake3(content).digest())
                self.tells_paths = self.tells_paths or text.tells_paths
                self.add(path, folder, text)
        return self._numbers[place]


def _unreadable(where: str, macro: bytes) -> Unkeyable:
    return Unkeyable(
        f"{where or 'the source'} includes {macro.decode('utf-8', 'replace')}, whose value cannot be read; include the "
        "file by its name, define the macro as nothing but a name in quotes, or pass the header's text in `headers`"
    )


def _handed_on(where: str, line: bytes) -> Unkeyable:
    return Unkeyable(
        f"{where or 'the source'} hands __has_include on to a macro in {line.decode('utf-8', 'replace')!r}, so "
        "nobody can know which files it asks for; write __has_include with a name in quotes wherever it asks"
    )


def _content(path: str) -> bytes | None:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for a writer
            return None
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError):
        return None


def _may_include(text: bytes) -> bool:
    # Every directive begins with one of these; most kernels have none, and looking for one character is fastest.
    return b"#" in text or (b"%" in text and b"%:" in text) or (b"?" in text and b"??=" in text)


@functools.lru_cache(maxsize=1024)
def _text_of(text: bytes) -> _Text:
    tells_paths = _OWN_PATH.search(text) is not None
    text = text.replace(b"??/", b"\\")
    joined = _CONTINUED.sub(b"", text) if b"\\" in text else text
    names: set[bytes] = set()
    macros: set[bytes] = set()
    if any(word in joined for word in _WORDS):
        ends = [match.end(1) for match in _DIRECTIVE.finditer(joined) if _begins_line(joined, match.start())]
        # A compiler without the probe is given one by `#define __has_include(x) 0`, which asks for nothing.
        ends += [match.end() for match in _PROBE.finditer(joined) if not _is_defined(joined, match.start())]
        for end in ends:
            quoted = _QUOTED.match(joined, end)
            if quoted is not None:
                names.add(quoted[1] or quoted[2] or b"")
            else:
                name = _NAME.match(joined, end)
                macros.add(name[1] if name is not None else joined[end : end + 80].partition(b"\n")[0].strip())
    definitions = [(match[1], _uncommented(match[2])) for match in _DEFINITION.finditer(joined)]
    lines = [(match[1], _uncommented(match[2])) for match in _HANDED_ON.finditer(joined)] if _is_told(joined) else []
    lends_paths = _OF_CALLER.search(joined) is not None or any(
        kind == b"define" and _OWN_PATH.search(line) for kind, line in lines
    )
    bare = _bare_probe(joined) if b"__has_" in joined else b""
    return _Text(frozenset(names), frozenset(macros), tuple(definitions), tells_paths, lends_paths, bare)


def _bare_probe(text: bytes) -> bytes:
    """A line that gives another macro the job of `__has_include`; nothing if there is none."""
    # In a raw string anything may look like a string or a comment, so nothing is left out there.
    code = _NO_CODE.sub(lambda match: b" " if match[0][:1] == b"/" else b'""', text) if b'R"' not in text else text
    for match in _HANDED_ON.finditer(code):
        line = _uncommented(match[2])
        said = _DEFINED.sub(b"", line, 1) if match[1] == b"define" else line
        if _BARE_PROBE.search(_ASKED_FOR.sub(b"", said)) and not _OF_CODE.search(said):
            return line
    return b""


def _is_told(text: bytes) -> bool:
    """Whether a text holds a probe or its own path, which a macro may hand on to other texts."""
    return b"__has_" in text or _OWN_PATH.search(text) is not None


def _uncommented(value: bytes) -> bytes:
    return re.sub(rb"/\*.*?\*/", b" ", value.partition(b"//")[0] if b'"' not in value else value).strip()


def _is_defined(text: bytes, at: int) -> bool:
    """Whether a name stands where `#define` gives it a meaning."""
    begin = text.rfind(b"\n", 0, at) + 1
    return _DEFINES.fullmatch(text, begin, at) is not None


def _begins_line(text: bytes, at: int) -> bool:
    """Whether only blanks, and perhaps the end of a comment, come before it on the line."""
    before = text[text.rfind(b"\n", 0, at) + 1 : at].rstrip()
    return not before or before.endswith(b"*/")
