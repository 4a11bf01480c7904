"""Where things are and how they are set: the only place that reads the environment.

| variable | meaning | else |
| --- | --- | --- |
| `KCACHEFS_STORE` | the store's directory | the user's cache directory, `kcachefs` in it |
| `KCACHEFS_MOUNT` | the mount that commands and the library mean when none is named | the only one there is |
| `KCACHEFS_RUNTIME_DIR` | control sockets, the list of mounts | root: `/run/kcachefs`, others: see below |
| `KCACHEFS_LOG_DIR` | the daemons' logs | root: `/var/log/kcachefs`, others: their log directory |
| `KCACHEFS_CACHE_DIR` | the directory of the library's caches | the user's cache directory, `kcachefs-library` in it |
| `KCACHEFS_CACHE_SIZE` | the bound of each library cache in a plain directory | none |
| `NOTIFY_SOCKET` | set by a service manager that wants to know when the mount answers | nothing is told |
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import platformdirs

from kcachefs.errors import UsageError

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE_MAX = 1 << 62


def default_store() -> Path:
    configured = os.environ.get("KCACHEFS_STORE")
    return Path(configured) if configured else platformdirs.user_cache_path("kcachefs")


def configured_mount() -> Path | None:
    configured = os.environ.get("KCACHEFS_MOUNT")
    return Path(configured) if configured else None


def runtime_directory() -> Path:
    configured = os.environ.get("KCACHEFS_RUNTIME_DIR")
    if configured:
        return Path(configured)
    if os.getuid() == 0:
        return Path("/run/kcachefs")
    # The user's runtime directory, else one of our own in /tmp. After `su` the variable may still be that of another.
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
    """Whether the kernel may be asked to send requests again; KCACHEFS_RESEND=0 does without, as older ones must."""
    return os.environ.get("KCACHEFS_RESEND") != "0"


def log_directory() -> Path:
    configured = os.environ.get("KCACHEFS_LOG_DIR")
    if configured:
        return Path(configured)
    if os.getuid() == 0:
        return Path("/var/log/kcachefs")
    return platformdirs.user_log_path("kcachefs")


# Namespace of the mount that the library's own caches live in.
LIBRARY_NAMESPACE = "library"


def mount_point() -> Path | None:
    """The mount named by KCACHEFS_MOUNT, where something really is mounted there.

    A mount point with nothing on it is no cache: what is written there disappears beneath the next mount.
    """
    configured = os.environ.get("KCACHEFS_MOUNT")
    if not configured or not os.path.ismount(configured):
        return None
    return Path(configured).absolute()


def library_directory(name: str) -> Path:
    """Where the library cache `name` is: in KCACHEFS_CACHE_DIR, else on the mount, else in the user's cache."""
    if configured := os.environ.get("KCACHEFS_CACHE_DIR"):
        return Path(configured).absolute() / name
    if mount := mount_point():
        return mount / LIBRARY_NAMESPACE / name
    # Not the store's own default, which is `kcachefs` in the same place and belongs to the daemon.
    return platformdirs.user_cache_path("kcachefs-library") / name


def is_on_mount(path: Path) -> bool:
    """Whether `path` lies inside the mount, which then does the bounding and the LRU itself."""
    mount = mount_point()
    return mount is not None and path.absolute().is_relative_to(mount)


def library_limit() -> int | None:
    """The size bound of a library cache in a plain directory, or None."""
    configured = os.environ.get("KCACHEFS_CACHE_SIZE")
    return parse_size(configured) or None if configured else None


def triton_directory() -> Path | None:
    """Triton's own choice of cache directory, which TorchInductor also sets and reads."""
    configured = os.environ.get("TRITON_CACHE_DIR")
    return Path(configured).absolute() if configured else None


def notify_socket() -> str:
    """Where a service manager wants to hear of us; empty where there is none."""
    return os.environ.get("NOTIFY_SOCKET", "")


def for_daemon() -> dict[str, str]:
    """The environment of a daemon in the background: what a service manager gave its starter is not for it."""
    return {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}


def parse_size(text: str, *, least: int = 0) -> int:
    """Bytes of a size as people write it.

    >>> parse_size("20GiB"), parse_size("512M"), parse_size("1000")
    (21474836480, 536870912, 1000)
    """
    match = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?)\s*([kmgt]?)(?:i?b)?", text.strip().lower(), re.ASCII)
    if match is None:
        raise UsageError(f"{text!r} is no size; write it like 20GiB, 512M or 1000000")
    size = int(float(match[1]) * _UNITS[match[2]])
    if not least <= size < _SIZE_MAX:
        raise UsageError(f"{text!r} is no size that anything can have; write it like 20GiB, 512M or 1000000")
    return size


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
