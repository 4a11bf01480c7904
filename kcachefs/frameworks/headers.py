"""TorchInductor's precompiled header, served from the mount through one link.

torch compiles a C++ header of 150 MB once and needs it even when every kernel is found. It keeps it in
`<temporary directory>/torchinductor_<user>/precompiled_headers`, a constant that is worked out when its module is
imported and that no variable of its own changes (torch 2.13, `torch/_inductor/codecache.py`). Of the ways to move it:

- TMPDIR moves every temporary file of every program: a mount is no place for those.
- TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS=0 does without it: then each kernel parses the header again.
- Changing the constant in the process needs code in every process, and in the compile workers they start.
- A symbolic link in that place changes nothing but where the bytes are. That is what is done here.

The link is only put where nothing is, or where one of ours is; a real folder with headers in it is left alone. It is
taken away with its mount: torch fails on a link that leads nowhere, so one must not outlive what it points to.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import tempfile
from pathlib import Path

NAMESPACE = "precompiled_headers"


def place_of_headers() -> Path:
    """Where torch keeps the header in this environment."""
    return Path(tempfile.gettempdir()) / f"torchinductor_{user_name()}" / "precompiled_headers"


def user_name() -> str:
    """The user as torch spells it in the folder's name."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return f"uid_{os.getuid()}"
    return re.sub(r'[\\/:*?"<>|]', "_", name)


def link(mount: Path) -> bool:
    """Lead torch's folder to the mount. False when something else is there, or the place is another user's."""
    place, target = place_of_headers(), mount / NAMESPACE
    with contextlib.suppress(FileExistsError):
        place.parent.mkdir(mode=0o700)
    found = os.lstat(place.parent)
    if found.st_uid != os.getuid() or not place.parent.is_dir() or place.parent.is_symlink():
        return False
    if leads_to(place) == target:
        return True
    if not _make_room(place):
        return False
    # Made beside and renamed over: of many that start at once, each finds a link that is whole.
    new = place.with_name(f"{place.name}.{os.getpid()}")
    new.symlink_to(target)
    try:
        os.replace(new, place)
    except OSError:
        new.unlink()
        return False
    return True


def unlink(mount: Path) -> None:
    """Take the link to this mount away; any other is left."""
    place = place_of_headers()
    if leads_to(place) == mount / NAMESPACE:
        with contextlib.suppress(OSError):
            place.unlink()


def leads_to(place: Path) -> Path | None:
    """Where a link of ours at that place leads; None for anything else."""
    try:
        target = Path(os.readlink(place))
    except OSError:
        return None
    return target if target.name == NAMESPACE else None


def _make_room(place: Path) -> bool:
    """Whether a link may be put there: nothing is, or an empty folder was, or a link of ours to another mount."""
    if place.is_symlink():
        return leads_to(place) is not None
    try:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(place / "locks")
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(place)
    except OSError:
        return False
    return True
