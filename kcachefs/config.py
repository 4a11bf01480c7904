"""Locations, sizes and environment variables: the only module that reads kcachefs's own variables.

| variable | meaning | default |
| --- | --- | --- |
| `KCACHEFS_STORE` | the store's directory | `kcachefs` in the user's cache directory |
| `KCACHEFS_MOUNT` | the mount that commands and the library use, or make | the only one there is |
| `KCACHEFS_RUNTIME_DIR` | control sockets, list of mounts | root: `/run/kcachefs`, others: see `runtime_directory` |
| `KCACHEFS_LOG_DIR` | the daemons' logs | root: `/var/log/kcachefs`, others: the user's log directory |
| `KCACHEFS_CACHE_DIR` | the directory of the library's caches | `kcachefs-library` in the user's cache directory |
| `KCACHEFS_CACHE_SIZE` | size limit of each library cache in a plain directory | none |
| `KCACHEFS_SYSTEM_CONFIG` | the system's configuration file | `/etc/kcachefs/config.toml` |
| `XDG_CONFIG_HOME` | where the user's `kcachefs/config.toml` is | `~/.config` |
| `KCACHEFS_RESEND` | `0`: never ask the kernel to send requests again, as if it were older than Linux 6.9 | ask |
| `NO_COLOR`, `TERM` | `NO_COLOR` set, or `TERM=dumb`: plain text only | colours in a terminal |
| `LC_ALL`, `LC_CTYPE`, `LANG` | `C`, `POSIX` or not UTF-8: tables in ASCII | what the locale can show |
| `NOTIFY_SOCKET` | set by a service manager that waits until the mount answers | no notification |
"""

from __future__ import annotations

import locale
import os
import re
import sys
import time
from pathlib import Path

from kcachefs.errors import UsageError

DEFAULT_MAX_SIZE = "20GiB"
DEFAULT_MIN_FREE = "64MiB"
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE_MAX = 1 << 62


def default_store() -> Path:
    return configured_store() or users_store()


def configured_store() -> Path | None:
    configured = os.environ.get("KCACHEFS_STORE")
    return Path(configured) if configured else None


def users_store() -> Path:
    """The user's default store."""
    return _user_folder("cache", "kcachefs")


SYSTEM_MOUNT = Path("/mnt/kcache")


def default_mount() -> Path:
    """Where the user's store is mounted: one place for the whole host for root, else one in the user's cache."""
    return SYSTEM_MOUNT if os.getuid() == 0 else _user_folder("cache", "kcache")


def configured_mount() -> Path | None:
    configured = os.environ.get("KCACHEFS_MOUNT")
    return Path(configured) if configured else None


def config_files() -> tuple[Path, ...]:
    """The configuration files, in order of precedence: the user's, then the system's."""
    system = Path(os.environ.get("KCACHEFS_SYSTEM_CONFIG") or "/etc/kcachefs/config.toml")
    home = os.environ.get("XDG_CONFIG_HOME") or ""
    if not os.path.isabs(home):
        home = os.path.expanduser("~/.config")
        if home.startswith("~"):  # a user without a home directory
            return (system,)
    return Path(home) / "kcachefs" / "config.toml", system


def runtime_directory() -> Path:
    configured = os.environ.get("KCACHEFS_RUNTIME_DIR")
    if configured:
        return Path(configured)
    if os.getuid() == 0:
        return Path("/run/kcachefs")
    # The user's runtime directory, else one of our own in /tmp. After `su`, XDG_RUNTIME_DIR may be another user's.
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.getuid()}"):
        if parent and _is_mine(Path(parent)):
            return Path(parent) / "kcachefs"
    return Path(f"/tmp/kcachefs-{os.getuid()}")


def _is_mine(directory: Path) -> bool:
    try:
        return directory.stat().st_uid == os.getuid()
    except OSError:
        return False


def use_resend() -> bool:
    """Whether to ask the kernel to send requests again after a failover; KCACHEFS_RESEND=0 switches that off."""
    return os.environ.get("KCACHEFS_RESEND") != "0"


def log_directory() -> Path:
    configured = os.environ.get("KCACHEFS_LOG_DIR")
    if configured:
        return Path(configured)
    if os.getuid() == 0:
        return Path("/var/log/kcachefs")
    return _user_folder("log", "kcachefs")


def config_folders() -> tuple[Path, ...]:
    """The folders for settings that are files: the user's own, and the host's."""
    system = Path("/etc/kcachefs")
    try:
        return _user_folder("config", "kcachefs"), system
    except UsageError:  # a user without a home
        return (system,)


LIBRARY_NAMESPACE = "library"
"""The namespace of the library's own caches in a mount."""


def mount_point() -> Path | None:
    """The mount that KCACHEFS_MOUNT names, if it exists.

    A bare mountpoint is not a cache: the next mount would hide everything written to it. Nor is another filesystem,
    where nothing bounds what is written. Only our mounts have a folder of reports.
    """
    configured = os.environ.get("KCACHEFS_MOUNT")
    if not configured or not os.path.ismount(configured) or not os.path.isdir(os.path.join(configured, ".kcachefs")):
        return None
    return Path(configured).absolute()


def library_directory(name: str) -> Path:
    """Where the library cache `name` is: in KCACHEFS_CACHE_DIR, else in the mount, else in the user's cache."""
    if configured := os.environ.get("KCACHEFS_CACHE_DIR"):
        return Path(configured).absolute() / name
    if mount := mount_point():
        return mount / LIBRARY_NAMESPACE / name
    # Not `kcachefs` in the same place: that is the default store and belongs to the daemon.
    return _user_folder("cache", "kcachefs-library") / name


def insight_directory() -> Path:
    """Where `kcachefs explain` keeps what it has read. It may be deleted at any time."""
    return _user_folder("cache", "kcachefs-insight")


def _user_folder(kind: str, name: str) -> Path:
    """A folder of the user: where an XDG variable says, else in the home directory."""
    import platformdirs  # slow to import, and needed only where no variable of ours names the folder

    try:
        found: Path = getattr(platformdirs, f"user_{kind}_path")(name)
    except RuntimeError:  # no HOME, and no line in the list of users
        found = Path(name)
    if not found.is_absolute():
        raise UsageError(f"you have no home directory for {name}; set HOME, or KCACHEFS_STORE and KCACHEFS_CACHE_DIR")
    return found


def is_on_mount(path: Path) -> bool:
    """Whether `path` is inside the mount, which then limits the size and evicts by itself."""
    mount = mount_point()
    return mount is not None and path.absolute().is_relative_to(mount)


LIBRARY_LIMIT = "KCACHEFS_CACHE_SIZE"


def library_limit() -> int | None:
    """The size limit of a library cache in a plain directory, or None."""
    configured = os.environ.get(LIBRARY_LIMIT)
    try:
        return parse_size(configured) or None if configured else None
    except UsageError as error:
        raise UsageError(f"{LIBRARY_LIMIT}: {error}") from None


def triton_directory() -> Path | None:
    """The cache directory that TRITON_CACHE_DIR names; TorchInductor sets and reads it too."""
    configured = os.environ.get("TRITON_CACHE_DIR")
    return Path(configured).absolute() if configured else None


def notify_socket() -> str:
    """The service manager's notification socket; empty if there is none."""
    return os.environ.get("NOTIFY_SOCKET", "")


def wants_colour() -> bool:
    """Whether a terminal may be sent more than plain text; see no-color.org."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_screen() -> bool:
    """Whether we can draw anywhere on the terminal, not only append to it."""
    return os.environ.get("TERM", "dumb") != "dumb"


def wants_ascii() -> bool:
    """Whether the locale is the plain one. Python writes UTF-8 even then, which such a terminal cannot show."""
    chosen = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or ""
    began_anew = "utf8" in sys._xoptions  # own_python.restart_in_utf8: so only Python's own encoding is UTF-8
    return chosen in ("C", "POSIX") or (began_anew and not locale.getencoding().lower().startswith("utf"))


def for_daemon() -> dict[str, str]:
    """The environment of a background daemon, without what a service manager set for the command that starts it."""
    return {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}


def parse_size(text: str, *, least: int = 0) -> int:
    """The bytes in a size as people write it.

    >>> parse_size("20GiB"), parse_size("512M"), parse_size("1000")
    (21474836480, 536870912, 1000)
    """
    match = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?)\s*([kmgt]?)(?:i?b)?", text.strip().lower(), re.ASCII)
    if match is None:
        raise UsageError(f"{text!r} is not a size; write it like 20GiB, 512M or 1000000")
    size = int(float(match[1]) * _UNITS[match[2]])
    if not least <= size < _SIZE_MAX:
        raise UsageError(f"{text!r} is not a possible size; write it like 20GiB, 512M or 1000000")
    return size


def exact_size(count: int) -> str:
    """A size without rounding, in the largest unit that divides it; `parse_size` reads it back.

    >>> exact_size(20 << 30), exact_size(1000), exact_size(0)
    ('20GiB', '1000', '0')
    """
    for unit in ("t", "g", "m", "k"):
        if count and count % _UNITS[unit] == 0:
            return f"{count // _UNITS[unit]}{unit.upper()}iB"
    return str(count)


def format_size(count: float) -> str:
    """A size as people read it.

    >>> format_size(1536), format_size(20 << 30), format_size(12)
    ('1.5 KiB', '20.0 GiB', '12 B')
    """
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def format_age(seconds: float) -> str:
    """How long ago, as people say it.

    >>> import time
    >>> format_age(time.time() - 90), format_age(0)
    ('1 min', 'never')
    """
    if not seconds:
        return "never"
    past = max(0, int(time.time() - seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if past >= length:
            return f"{past // length} {unit}"
    return f"{past} s"
