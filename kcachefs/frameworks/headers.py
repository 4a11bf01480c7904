"""Keeps TorchInductor's precompiled header in the mount, through one symbolic link.

torch compiles a large C++ header once and needs it even when every kernel is a hit. It keeps the result in
`<temporary directory>/torchinductor_<user>/precompiled_headers`, a constant that is computed when its module is
imported and that no variable of its own changes (torch 2.13, `torch/_inductor/codecache.py`). The ways to move it:

- TMPDIR would move every temporary file of every program, and a mount is no place for those.
- TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS=0 disables it, and then each kernel parses the header again.
- Patching the constant needs code in every process, including the compile workers that torch starts.
- A symbolic link at that place changes only where the bytes are. That is what this module makes.

The link is only made where nothing is yet, or where an older link of ours is; a real folder with headers in it is left
alone. It is removed with its mount, because torch fails on a link whose target is gone; daemon/header_guard.py does
that when the daemon is killed. For the same reason torch fails in a container that shares the temporary directory but
not the mount: a link cannot lead to one place here and to another there, so deploy/README.md says what to bind.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import tempfile
from pathlib import Path

NAMESPACE = "precompiled_headers"


def header_folder() -> Path:
    """Where torch keeps its precompiled header in this environment."""
    return temporary_folder() / f"torchinductor_{user_name()}" / "precompiled_headers"


def temporary_folder() -> Path:
    """Where programs keep temporary files; /tmp on a host where nothing can be written at all."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        return Path("/tmp")


def user_name() -> str:
    """The user's name as torch spells it in the folder."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return f"uid_{os.getuid()}"
    return re.sub(r'[\\/:*?"<>|]', "_", name)


def link(mount: Path) -> bool:
    """Link torch's folder to the mount; False if something else is there, its parent is another user's, or nothing can
    be made there.
    """
    try:
        return _link(header_folder(), mount / NAMESPACE)
    except OSError:
        return False


def _link(place: Path, target: Path) -> bool:
    with contextlib.suppress(FileExistsError):
        place.parent.mkdir(mode=0o700)
    found = os.lstat(place.parent)
    if found.st_uid != os.getuid() or not place.parent.is_dir() or place.parent.is_symlink():
        return False
    if link_target(place) == target:
        return True
    if not _make_room(place):
        return False
    # Created next to it and renamed, so that processes that start together never find the place empty.
    new = place.with_name(f"{place.name}.{os.getpid()}")
    new.symlink_to(target)
    try:
        os.replace(new, place)
    except OSError:
        new.unlink()
        return False
    return True


def unlink(mount: Path) -> None:
    """Remove the link if it points to this mount."""
    place = header_folder()
    if link_target(place) == mount / NAMESPACE:
        with contextlib.suppress(OSError):
            place.unlink()


def link_target(place: Path) -> Path | None:
    """The target of a link of ours at that place; None for anything else."""
    try:
        target = Path(os.readlink(place))
    except OSError:
        return None
    return target if target.name == NAMESPACE else None


def _make_room(place: Path) -> bool:
    """Remove an empty folder; returns whether a link may be made there, perhaps over an older link of ours."""
    if place.is_symlink():
        return link_target(place) is not None
    try:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(place / "locks")
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(place)
    except OSError:
        return False
    return True
