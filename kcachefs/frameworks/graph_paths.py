"""Moves the paths inside TorchInductor's stored graphs to another cache directory.

A graph is a pickle in which every tuned kernel names its source file and the file with its best configuration by their
absolute paths. After a move these lead nowhere: Inductor tunes the kernels again, and writes the results to the old
place. Nothing is unpickled here: strings that have the form of such a path are replaced, and the frames around them get
their new lengths.
"""

from __future__ import annotations

import pickletools
import re
from bisect import bisect_left
from itertools import accumulate
from pathlib import PurePath, PurePosixPath
from typing import Final

_FOLDERS = frozenset({"fxgraph", "aotautograd"})
"""Where Inductor keeps graphs, directly below its cache directory."""
_PATH = re.compile(r"[^\0]*/([a-z2-7]{2}/(?:c[a-z2-7]{51}\.py|[0-9a-f]{64}\.best_config))")
"""A kernel's source or its best configuration; the group is the path from the cache directory."""
_NAMED = re.compile(rb"/[a-z2-7]{2}/(?:c[a-z2-7]{51}\.py|[0-9a-f]{64}\.best_config)")
GRAPH_MAX: Final = 64 << 20
"""Larger graphs stay as they are."""
_OPCODES_MAX = 2_000_000
_FRAME_HEADER = 9


def cache_directory(folder: PurePath) -> PurePosixPath | None:
    """The cache directory of Inductor to which the graphs in `folder` belong; None if it holds no graphs.

    >>> cache_directory(PurePosixPath("inductor/fxgraph/l4/fl4ezt"))
    PurePosixPath('inductor')
    >>> cache_directory(PurePosixPath("triton/ABC")) is None
    True
    """
    found = [number for number, part in enumerate(folder.parts) if part in _FOLDERS]
    return PurePosixPath(*folder.parts[: found[-1]]) if found else None


def relocated_graph(raw: bytes, directory: PurePath) -> bytes | None:
    """A graph whose paths lead into `directory`; None if it names none, or cannot be read."""
    if len(raw) > GRAPH_MAX or not _NAMED.search(raw):
        return None
    try:
        return _replaced(raw, directory)
    except (ValueError, IndexError, OverflowError, MemoryError, RecursionError):  # whoever wrote it may not be a friend
        return None


def _replaced(raw: bytes, directory: PurePath) -> bytes | None:
    frames: list[tuple[int, int]] = []
    strings: list[tuple[int, int, bytes]] = []
    ends = 0
    for number, (opcode, argument, start) in enumerate(pickletools.genops(raw)):
        if number > _OPCODES_MAX or start is None:
            return None
        if opcode.name == "FRAME":
            assert isinstance(argument, int)
            if start + _FRAME_HEADER + argument > len(raw):
                return None
            frames.append((start, argument))
        elif opcode.name in _HEADERS and isinstance(argument, str) and (named := _PATH.fullmatch(argument)):
            length = _HEADERS[opcode.name] + len(argument.encode("utf-8", "surrogatepass"))
            strings.append((start, start + length, _string(str(directory / named[1]))))
        ends = start + 1
    if not strings or ends != len(raw):  # what follows a pickle is not ours to move
        return None
    return _joined(raw, frames, strings)


_HEADERS: Final = {"SHORT_BINUNICODE": 2, "BINUNICODE": 5}
"""The opcodes that strings of this length have, with the bytes before their characters."""


def _string(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogateescape")
    if len(encoded) < 256:
        return b"\x8c" + len(encoded).to_bytes(1, "little") + encoded
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def _joined(raw: bytes, frames: list[tuple[int, int]], strings: list[tuple[int, int, bytes]]) -> bytes:
    """`raw` with the strings replaced, and the lengths of the frames that hold them adjusted."""
    edits = list(strings)
    places = [at for at, _, _ in strings]
    growth = list(accumulate((len(new) - (end - at) for at, end, new in strings), initial=0))
    for start, length in frames:
        first = start + _FRAME_HEADER
        grown = growth[bisect_left(places, first + length)] - growth[bisect_left(places, first)]
        if grown:
            edits.append((start, first, b"\x95" + (length + grown).to_bytes(8, "little")))
    pieces, done = [], 0
    for at, end, new in sorted(edits):
        pieces += [raw[done:at], new]
        done = end
    return b"".join((*pieces, raw[done:]))
