"""Absolute paths inside artefacts: a pack holds a placeholder, and unpacking puts the path of the target there.

Triton's group files list the absolute paths of their members, and Inductor's graphs those of their kernels. Elsewhere
these paths lead nowhere, or to another cache.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from kcachefs.errors import PackError
from kcachefs.fleet.rules import is_safe_name
from kcachefs.frameworks.copying import is_group_file, relocated
from kcachefs.frameworks.graph_paths import cache_directory, relocated_graph

PLACE = PurePosixPath("@kcachefs@")
"""Stands for the path of the mount."""


def to_placeholder(content: bytes, path: PurePosixPath) -> bytes | None:
    """A file with a placeholder for the mount; None if it names no other files. `path` is its path in the mount."""
    if is_group_file(path.name):
        moved = relocated(content, PLACE / path.parent, is_safe_name)
        if moved is None:
            raise PackError(f"{path.name} is not a group file of Triton")
        return moved
    directory = cache_directory(path.parent)
    return None if directory is None else relocated_graph(content, PLACE / directory)


def to_target(content: bytes, mount: Path, path: PurePosixPath) -> bytes:
    """The same file for the mount it is unpacked into."""
    directory = None if is_group_file(path.name) else cache_directory(path.parent)
    if directory is None:
        moved = relocated(content, mount / path.parent, is_safe_name)
    else:
        moved = relocated_graph(content, mount / directory)
    if moved is None:
        raise PackError(f"{path}: is marked as holding file paths to rewrite, but none can be found in it")
    return moved
