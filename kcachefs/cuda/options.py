"""The files that NVRTC reads besides the source, according to its options."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kcachefs.keys.program_options import DEBUG, INCLUDE, option_values

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
    return [*([] if without_source else [os.path.dirname(name) or "."]), *option_values(options, INCLUDE)]


def pre_includes(options: Sequence[str]) -> list[str]:
    """The headers that are included before the source's first line.

    >>> pre_includes(["--pre-include=a.h", "-include", "b.h"])
    ['a.h', 'b.h']
    """
    return list(option_values(options, _PRE_INCLUDE))


def precompiled_headers(options: Sequence[str]) -> list[str]:
    """The files that a precompiled header may be read from: each name as given, and in each folder for such files.

    >>> precompiled_headers(["--use-pch=a.pch", "--pch-dir=made"])
    ['a.pch', 'made/a.pch']
    """
    folders = ["", *option_values(options, _PCH_FOLDER)]
    return [os.path.join(folder, name) for name in option_values(options, _USE_PCH) for folder in folders]


def debug_folder(options: Sequence[str], name: str) -> str | None:
    """The current directory, if debug information in the compiled program will hold it.

    >>> debug_folder(["--std=c++17"], "add.cu"), debug_folder(["-lineinfo"], "/kernels/add.cu")
    (None, None)
    """
    if os.path.isabs(name) or DEBUG.isdisjoint(word.strip() for word in options):
        return None
    return os.getcwd()
