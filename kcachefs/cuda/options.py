"""Where NVRTC looks for includes, read from its options."""

from __future__ import annotations

import os
from collections.abc import Sequence

_INCLUDE = ("--include-path", "-I")
_NO_SOURCE = ("--no-source-include", "-no-source-include")


def include_folders(options: Sequence[str], name: str = "") -> list[str]:
    """The folders on the search path, in order.

    NVRTC also looks beside the source, which for a name without a folder is the current directory: a header there is
    found without any option.

    >>> include_folders(["-I", "a", "-Ib", "--include-path=c", "-no-source-include"])
    ['a', 'b', 'c']
    >>> include_folders([], "kernels/add.cu")
    ['kernels']
    """
    words = list(options)
    folders = [] if any(word in _NO_SOURCE for word in words) else [os.path.dirname(name) or "."]
    for at, word in enumerate(words):
        for option in _INCLUDE:
            if word == option:
                folders += words[at + 1 : at + 2]
            elif word.startswith(option + "="):
                folders.append(word[len(option) + 1 :])
            elif option == "-I" and word.startswith(option) and word != option:
                folders.append(word[2:])
    return folders
