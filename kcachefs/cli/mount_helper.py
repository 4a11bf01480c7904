"""`mount.kcachefs STORE DIR [-o options]`: what mount(8) runs for an fstab line of type kcachefs.

    /var/cache/kcachefs  /mnt/kcache  kcachefs  max_size=100GiB,nofail  0 0

The options are those of `kcachefs mount`, with `_` for `-`; `writers=uid:1000` may be given several times.
The exit codes are those of mount(8): 1 for wrong usage, 32 if the mount failed.
"""

from __future__ import annotations

import getopt
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from kcachefs.errors import KcachefsError, UsageError, describe
from kcachefs.mounts.making import serve_in_background
from kcachefs.mounts.settings import mount_settings, sharing_settings
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.daemon.registry import MountConfig

USAGE = "mount.kcachefs STORE DIR [-o ro,max_size=20GiB,policy=publish,engine=direct,allow_other,no_allow_other]"
_SHARING_OPTIONS = ("read_only", "policy", "writers", "base", "uid", "gid", "umask", "idmap")

_IGNORED = {
    *("defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "owner", "group", "comment"),
    *("atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime", "nostrictatime"),
    *("lazytime", "nolazytime", "iversion", "noiversion", "mand", "nomand", "sync", "async", "dirsync"),
    *("silent", "loud", "nosuid", "nodev"),
}
"""Options for mount(8) or other filesystems that change nothing here."""


class MountOptions(TypedDict, total=False):
    """The options by their names in `kcachefs mount`."""

    max_size: str
    max_size_per_uid: str
    tenant_ranges: list[str]
    engine: str
    allow_other: bool
    log_format: str
    read_only: bool
    policy: str
    writers: list[str]
    base: bool
    uid: int
    gid: int
    umask: str
    idmap: bool


def main() -> None:
    try:
        _run(sys.argv[1:])
    except (KcachefsError, OSError) as error:
        print(f"mount.kcachefs: {printable(describe(error))}", file=sys.stderr)
        sys.exit(1 if isinstance(error, UsageError) else 32)


def _run(arguments: list[str]) -> None:
    try:
        flags, operands = getopt.gnu_getopt(arguments, "sfnvo:t:N:")
    except getopt.GetoptError as error:
        raise UsageError(f"{error}; use: {USAGE}") from None
    if len(operands) != 2:
        raise UsageError(f"needs a store and a directory; use: {USAGE}")
    source, directory = operands
    options = ",".join(value for flag, value in flags if flag == "-o")
    sloppy, fake = any(flag == "-s" for flag, _ in flags), any(flag == "-f" for flag, _ in flags)
    store = None if source in ("none", "kcachefs") else Path(source)
    settings = settings_of(Path(directory), store, parse_options(options, sloppy=sloppy))
    if not fake and (complaint := serve_in_background(settings)):
        print(f"mount.kcachefs: {complaint}", file=sys.stderr)


def settings_of(directory: Path, store: Path | None, wanted: MountOptions) -> MountConfig:
    """The settings that these options ask for."""
    plain = {name: value for name, value in wanted.items() if name not in _SHARING_OPTIONS}
    sharing = {name: value for name, value in wanted.items() if name in _SHARING_OPTIONS}
    return mount_settings(directory, store, **plain, sharing=sharing_settings(**sharing))  # type: ignore[arg-type]


def parse_options(text: str, *, sloppy: bool = False) -> MountOptions:
    """Parse a list of options.

    >>> parse_options("ro,max_size=5G,noauto,x-systemd.requires=network.target")
    {'read_only': True, 'max_size': '5G'}
    """
    wanted: MountOptions = {}
    executable = True
    for option in filter(None, text.split(",")):
        name, _, value = option.partition("=")
        match name:
            case "ro" | "rw":
                wanted["read_only"] = name == "ro"
            case "allow_other" | "no_allow_other":
                wanted["allow_other"] = name == "allow_other"
            case "max_size" | "max_size_per_uid" | "engine" | "log_format" | "policy" | "umask":
                wanted[name] = value
            case "uid" | "gid":
                if not value.isascii() or not value.isdigit():
                    raise UsageError(f"option {option}: is not a number; use: {USAGE}")
                wanted[name] = int(value)
            case "tenant_range":
                wanted["tenant_ranges"] = [*wanted.get("tenant_ranges", ()), value]
            case "writers":
                wanted["writers"] = [*wanted.get("writers", ()), value]
            case "base" | "idmap":
                wanted[name] = True
            case "exec" | "noexec":
                executable = name == "exec"
            case "suid" | "dev":
                raise UsageError(f"option {name}: a cache is always mounted no{name}; remove the option")
            case "remount":
                raise UsageError("option remount: is not supported; unmount and mount again")
            case _ if not sloppy and name not in _IGNORED and not name.lower().startswith("x-"):
                raise UsageError(f"option {option}: unknown; use: {USAGE}")
    if not executable:  # `user` implies noexec, unless exec follows it
        raise UsageError("option noexec: compiled libraries could not be loaded; add exec after it")
    return wanted


if __name__ == "__main__":
    main()
