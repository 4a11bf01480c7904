"""Where a store is mounted if no directory is given, and the path at which it was last mounted or was unpacked for.

Frameworks write absolute paths into the files that they cache, so a store is only warm at the path where it was filled.
Every command and `init()` therefore ask here, and a store keeps the path in a file of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from kcachefs import config
from kcachefs.daemon import registry
from kcachefs.engines import mounting
from kcachefs.errors import UsageError
from kcachefs.mounts.finding import answers

REMEMBERED = "mountpoint"
"""The file in a store with the path where the store was last mounted, or for which a pack was unpacked into it."""


def place_for(store: Path | None = None) -> Path:
    """$KCACHEFS_MOUNT, else where the store was last mounted, else the user's default place (for root the system's).

    A store other than the default one gets a directory beside itself, so that two stores never want the same place.
    """
    configured = config.configured_mount() if store is None else None
    # If somebody else's mount answers there, the user means that one, not a second one elsewhere.
    if configured is not None and (answers(configured) or _can_be_used(configured.absolute())):
        return configured
    location = Path(os.path.abspath(store or config.default_store()))
    remembered = remembered_place(location)
    if remembered is not None and _can_be_used(remembered):
        return remembered
    with contextlib.suppress(UsageError):  # a user without a home has no default store
        if os.path.realpath(location) == os.path.realpath(config.users_store()):
            return config.default_mount()
    return location.with_name(f"{location.name}.mount")


def remembered_place(store: Path) -> Path | None:
    """Where the store was last mounted; None if it never was, or if we may not read that."""
    try:
        text = (store / REMEMBERED).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return Path(text) if text.startswith("/") and "\0" not in text else None


def remember(store: Path, place: Path) -> str:
    """Keep the path of a mount that was just made, or for which a store was filled; returns the message of `moved`.

    A store on a read-only disk simply keeps the old path.
    """
    complaint = moved(store, place)
    if remembered_place(store) != place:
        new = store / f"{REMEMBERED}.new"
        with contextlib.suppress(OSError):
            new.write_text(str(place), encoding="utf-8")
            os.replace(new, store / REMEMBERED)
    return complaint


def moved(store: Path, place: Path) -> str:
    """A message if this path differs from the last one; empty if it is the same or the first."""
    before = remembered_place(store)
    if before in (None, place):
        return ""
    return (
        f"this store was last mounted at, or unpacked for, {before}: frameworks keep absolute paths, "
        f"so at {place} what is in it may be compiled again; to keep it, mount it at {before}"
    )


def check_places(mountpoint: str, store: str) -> None:
    """Raise UsageError if a store cannot be mounted there."""
    for path in (mountpoint, store):
        if not path.isascii() and sys.getfilesystemencoding() != "utf-8":
            raise UsageError(f"{path!r}: Python's filesystem encoding is not UTF-8; set PYTHONUTF8=1")
        try:
            path.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{path!r}: is not UTF-8; choose another name") from None
    if _is_inside(os.path.realpath(store), mountpoint) or _is_inside(mountpoint, os.path.realpath(store)):
        raise UsageError(f"{mountpoint}: a mount and its store cannot be inside each other; choose another --store")
    inside = mounting.filesystem_of(Path(store))
    if inside is not None and inside.fstype == mounting.FSTYPE:
        raise UsageError(f"{store}: is inside the mount {inside.mountpoint}; choose another --store")


def _can_be_used(place: Path) -> bool:
    """Whether the place is a directory that we may mount on, or can be made one."""
    if mounting.mounted_at(place) is not None:
        return registry.read(str(place)) is not None  # our own mount: in use, or dead and about to be replaced
    existing = next(one for one in (place, *place.parents) if os.path.lexists(one))
    return os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK)


def _is_inside(path: str, folder: str) -> bool:
    return os.path.commonpath((path, folder)) == folder
