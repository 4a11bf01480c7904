"""Absolute paths inside artefacts: a pack holds a placeholder, and unpacking puts the path of the target there.

Triton's group files list the absolute paths of their members. Elsewhere those paths lead nowhere, or to another cache.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from kcachefs.errors import PackError
from kcachefs.fleet.rules import is_safe_name
from kcachefs.frameworks.copying import is_group_file, relocated

PLACE = PurePosixPath("@kcachefs@")
"""Stands for the path of the mount."""


def holds_paths(name: str) -> bool:
    """Whether a file of this name is one of Triton's group files."""
    return is_group_file(name.rpartition("/")[2])


def to_placeholder(content: bytes, folder: PurePosixPath) -> bytes | None:
    """A group file with a placeholder for the mount; `folder` is its folder from the mount. None: it is none."""
    return relocated(content, PLACE / folder, is_safe_name)


def to_target(content: bytes, mount: Path, folder: PurePosixPath) -> bytes:
    """The same group file for the mount it is unpacked into."""
    moved = relocated(content, mount / folder, is_safe_name)
    if moved is None:
        raise PackError(f"{folder}: holds a group file that is none")
    return moved
