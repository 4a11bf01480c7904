"""The system's and the user's configuration files, in TOML: defaults for the options of every mount."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kcachefs import config
from kcachefs.daemon.options import OPTIONS, option_named
from kcachefs.errors import MountDenied, UsageError

_ELSEWHERE = {
    "store": "is chosen with --store or $KCACHEFS_STORE",
    "foreground": "is for a service manager's command line",
    "mount": "is chosen with $KCACHEFS_MOUNT",
}
"""Names that people may write into a configuration file by mistake, and where each belongs."""


def read_all() -> list[tuple[str, dict[str, Any]]]:
    """The user's file, then the system's, as far as they exist: the path and the option values of each."""
    return [(str(path), values) for path in config.config_files() if (values := read(path))]


def read(path: Path) -> dict[str, Any]:
    """The checked values of one file; raises UsageError with the file's name for anything that makes no sense."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise UsageError(f"{path}: is not an ordinary file; remove it")
            _refuse_others(path, found)
            raw = tomllib.loads(file.read().decode("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except IsADirectoryError:
        raise UsageError(f"{path}: is a folder; remove it") from None
    except PermissionError:
        raise MountDenied(f"{path}: cannot be read: permission denied") from None
    except RecursionError:
        raise UsageError(f"{path}: is not valid TOML: its brackets are nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{path}: is not valid TOML: {error}") from None
    try:
        return checked(raw)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _refuse_others(path: Path, file: os.stat_result) -> None:
    """Raise if a user other than root and us could have written or replaced the file: they would choose for us.

    After `sudo` or `su` we may come across the file of another user.
    """
    folders = {path.parent, path.resolve().parent}
    for place, found in ((path, file), *((folder, folder.stat()) for folder in sorted(folders))):
        what = "it" if place == path else f"its folder {place}"
        if found.st_uid not in (0, os.geteuid()):
            raise MountDenied(
                f"{path}: {what} belongs to another user ({found.st_uid}), so it is not used; chown or remove it"
            )
        writers = found.st_mode & (0o002 if _is_own_group(found.st_gid) else 0o022)
        if stat.S_ISDIR(found.st_mode) and (found.st_mode & stat.S_ISVTX or os.statvfs(place).f_flag & os.ST_RDONLY):
            writers = 0  # nobody can replace the files of others there; Kubernetes shows its files in such a folder
        if writers:
            who, bits = ("anybody", "go-w") if writers & 0o002 else (f"group {found.st_gid}", "g-w")
            raise MountDenied(f"{path}: {who} can write {what}, so it is not used; run: chmod {bits} {place}")


def _is_own_group(gid: int) -> bool:
    """Whether a group is root's, or ours alone: many systems give each user a group, and a umask that lets it write."""
    if gid == 0:
        return True
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _open_at_once(path: str, flags: int) -> int:
    """Open without blocking: opening a pipe would wait until somebody writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def checked(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The checked values of a file's options, by the names of the options."""
    values: dict[str, Any] = {}
    for name, given in raw.items():
        if name in _ELSEWHERE:
            raise UsageError(f"{name}: {_ELSEWHERE[name]}, not here")
        if name.replace("-", "_") == "no_allow_other":
            values["allow_other"] = not option_named("allow_other").value(given)
            continue
        option = option_named(name)
        if option.name in values:
            raise UsageError(f"{name}: is given twice")
        values[option.name] = option.value(given)
    return values


def kept(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The checked values that a store keeps. A name that is unknown here comes from a newer version, and is skipped."""
    live = {one.name: one for one in OPTIONS if one.is_live}
    return {name: live[name].value(given) for name, given in raw.items() if name in live}
