"""`mount.kcachefs STORE DIR [-o options]`: the program that mount(8) runs for an fstab line of type kcachefs.

    /var/cache/kcachefs  /mnt/kcache  kcachefs  max_size=100GiB,nofail  0 0

The options are those of `kcachefs mount`, with `_` for `-`; `writers`, `floor` and `ceiling` may be repeated. `remount`
changes a mount that is in use, as `kcachefs set` does. The exit codes are those of mount(8): 1 for wrong usage, 32 if
the mount failed.
"""

from __future__ import annotations

import getopt
import sys
from pathlib import Path
from typing import Any

from kcachefs import own_python
from kcachefs.cli.set import change
from kcachefs.daemon.options import OPTIONS, option_named
from kcachefs.errors import KcachefsError, UsageError, describe
from kcachefs.mounts.making import serve_in_background, shortage
from kcachefs.mounts.settings import mount_settings
from kcachefs.printable import printable

USAGE = "mount.kcachefs STORE DIR [-o ro,max_size=20GiB,policy=publish,engine=direct,allow_other,no_allow_other]"

_IGNORED = {
    *("defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "owner", "group", "comment"),
    *("atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime", "nostrictatime"),
    *("lazytime", "nolazytime", "iversion", "noiversion", "mand", "nomand", "sync", "async", "dirsync"),
    *("silent", "loud", "nosuid", "nodev"),
}
"""Options for mount(8) or other filesystems that have no effect here."""
_OF_THE_KERNEL = {"user_id", "group_id", "default_permissions", "max_read", "blksize", "rootcontext", "seclabel"}
"""Options in the kernel's list of mounts, from which mount(8) takes them for a remount."""


def main() -> None:
    own_python.restart_in_utf8()
    own_python.notice_children()
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
    wanted = parse_options(options, sloppy=sloppy)
    if "remount" in options.split(","):
        if not fake:
            remount(Path(directory), wanted)
        return
    store = None if source in ("none", "kcachefs") else Path(source)
    settings = mount_settings(Path(directory), store, wanted)
    if not fake:
        for complaint in filter(None, (serve_in_background(settings), shortage(settings))):
            print(f"mount.kcachefs: {complaint}", file=sys.stderr, flush=True)


def remount(directory: Path, wanted: dict[str, Any]) -> None:
    """Change the options that can be changed while the mount is in use; any other option must keep its value."""
    holds = change(directory, {})
    changes = {}
    for name, given in wanted.items():
        option = option_named(name)
        if option.is_live:
            changes[name] = given
        elif name == "read_only" and not given:
            continue  # the kernel calls every mount rw, and mount(8) repeats it
        elif option.value(given) != option.value_in(holds):
            raise UsageError(f"option {name}: cannot be changed by a remount; unmount and mount again")
    change(directory, changes)


def parse_options(text: str, *, sloppy: bool = False) -> dict[str, Any]:
    """Parse a list of options into values, by their names in `kcachefs mount`.

    >>> parse_options("ro,max_size=5G,noauto,x-systemd.requires=network.target")
    {'read_only': True, 'max_size': '5G'}
    """
    wanted: dict[str, Any] = {}
    known = {one.name: one for one in OPTIONS}
    executable, again = True, "remount" in text.split(",")
    for option in filter(None, text.split(",")):
        name, equals, value = option.partition("=")
        match name:
            case "ro" | "rw":
                wanted["read_only"] = name == "ro"
            case "no_allow_other":
                wanted["allow_other"] = False
            case "exec" | "noexec":
                executable = name == "exec"
            case "suid" | "dev":
                raise UsageError(f"option {name}: a cache is always mounted no{name}; remove the option")
            case _ if name in known and known[name].is_flag:
                if value not in ("", "true", "false"):
                    raise UsageError(f"option {option}: is either on or off; write {name}, or {name}=false")
                wanted[name] = value != "false"
            case _ if name in known:
                _check(option, name, value if equals else None)
                wanted[name] = [*wanted.get(name, ()), value] if known[name].is_repeatable else value
            case _ if not sloppy and not (again and name in {"remount", *_OF_THE_KERNEL}):
                if name not in _IGNORED and not name.lower().startswith("x-"):
                    raise UsageError(f"option {option}: unknown; use: {USAGE}")
    if not executable and not again:  # `user` implies noexec, unless exec follows it
        raise UsageError("option noexec: compiled libraries could not be loaded; add exec after it")
    return wanted


def _check(option: str, name: str, value: str | None) -> None:
    if value is None:
        raise UsageError(f"option {option}: needs a value; use: {USAGE}")
    try:
        option_named(name).value(value)
    except UsageError as error:
        raise UsageError(f"option {option}: {error}") from None


if __name__ == "__main__":
    main()
