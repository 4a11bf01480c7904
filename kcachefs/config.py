"""Where things are and how they are set: the only place that reads the environment.

| variable | meaning | else |
| --- | --- | --- |
| `KCACHEFS_STORE` | the store's directory | the user's cache directory, `kcachefs` in it |
| `KCACHEFS_MOUNT` | the mount that commands mean when none is named | the only one there is |
| `KCACHEFS_RUNTIME_DIR` | control sockets, the list of mounts | root: `/run/kcachefs`, others: a runtime directory |
| `KCACHEFS_LOG_DIR` | the daemons' logs | root: `/var/log/kcachefs`, others: their log directory |
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import platformdirs

from kcachefs.errors import UsageError

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


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
    return platformdirs.user_runtime_path("kcachefs")


def log_directory() -> Path:
    configured = os.environ.get("KCACHEFS_LOG_DIR")
    if configured:
        return Path(configured)
    if os.getuid() == 0:
        return Path("/var/log/kcachefs")
    return platformdirs.user_log_path("kcachefs")


def parse_size(text: str) -> int:
    """Bytes of a size as people write it.

    >>> parse_size("20GiB"), parse_size("512M"), parse_size("1000")
    (21474836480, 536870912, 1000)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise UsageError(f"{text!r} is no size; write it like 20GiB, 512M or 1000000")
    return int(float(match[1]) * _UNITS[match[2]])


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
