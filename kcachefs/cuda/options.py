"""Which files NVRTC reads besides the source, as its options say."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

_INCLUDE = ("--include-path", "-I")
_PRE_INCLUDE = ("--pre-include", "-include")
_NO_SOURCE = ("--no-source-include", "-no-source-include")
_USE_PCH = ("--use-pch", "-use-pch")
_PCH_FOLDER = ("--pch-dir", "-pch-dir")


def include_folders(options: Sequence[str], name: str = "") -> list[str]:
    """The folders on the search path, in order.

    NVRTC also looks beside the source, which for a name without a folder is the current directory: a header there is
    found without any option.

    >>> include_folders(["-I", "a", "-Ib", "--include-path=c", "-no-source-include"])
    ['a', 'b', 'c']
    >>> include_folders([], "kernels/add.cu")
    ['kernels']
    """
    without_source = any(word.strip() in _NO_SOURCE for word in options)
    return [*([] if without_source else [os.path.dirname(name) or "."]), *_values(options, _INCLUDE)]


def pre_includes(options: Sequence[str]) -> list[str]:
    """The headers that are included before the source's first line.

    >>> pre_includes(["--pre-include=a.h", "-include", "b.h"])
    ['a.h', 'b.h']
    """
    return list(_values(options, _PRE_INCLUDE))


def precompiled_headers(options: Sequence[str]) -> list[str]:
    """The files that a precompiled header may be read from: each name as it is, and in each folder for such files.

    >>> precompiled_headers(["--use-pch=a.pch", "--pch-dir=made"])
    ['a.pch', 'made/a.pch']
    """
    folders = ["", *_values(options, _PCH_FOLDER)]
    return [os.path.join(folder, name) for name in _values(options, _USE_PCH) for folder in folders]


def _values(options: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """What an option of these names is given: `--name=value`, `--name value` in two words, or `-Ivalue`."""
    words = [word.strip() for word in options]  # NVRTC drops the blanks around a word
    for at, word in enumerate(words):
        for name in names:
            if word == name:
                yield from words[at + 1 : at + 2]
            elif word.startswith(name + "="):
                yield word[len(name) + 1 :]
            elif name == "-I" and word.startswith(name):
                yield word[len(name) :].lstrip()
