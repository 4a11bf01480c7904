"""Absolute paths inside artefacts: a pack holds a placeholder, and unpacking puts the path of the target there.

Triton's group files list the absolute paths of their members. Elsewhere those paths lead nowhere, or to another cache.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

from kcachefs.errors import PackError
from kcachefs.fleet.rules import is_safe_name
from kcachefs.frameworks.copying import GROUP_FILE_MAX

PLACE = "@kcachefs@"
"""Stands for the path of the mount."""


def holds_paths(name: str) -> bool:
    """Whether a file of this name is one of Triton's group files."""
    return name.rpartition("/")[2].startswith("__grp__")


def to_placeholder(content: bytes, folder: PurePosixPath) -> bytes | None:
    """A group file with a placeholder for the mount; `folder` is its folder from the mount. None: it is none."""
    return _with_paths(content, f"{PLACE}/{folder}")


def to_target(content: bytes, mount: Path, folder: PurePosixPath) -> bytes:
    """The same group file for the mount it is unpacked into."""
    moved = _with_paths(content, str(mount / folder))
    if moved is None:
        raise PackError(f"{folder}: holds a group file that is none")
    return moved


def _with_paths(content: bytes, folder: str) -> bytes | None:
    try:
        group = json.loads(content) if len(content) <= GROUP_FILE_MAX else None
    except (ValueError, RecursionError):
        return None
    children = group.get("child_paths") if isinstance(group, dict) else None
    if not isinstance(group, dict) or not isinstance(children, dict) or not all(map(is_safe_name, children)):
        return None
    return json.dumps({**group, "child_paths": {name: f"{folder}/{name}" for name in children}}).encode()
