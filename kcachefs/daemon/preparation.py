"""Prepares a worker before its first thread: it takes the limits it needs, and gives up rights it does not need."""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
from pathlib import Path
from typing import NamedTuple

from kcachefs.daemon import privileges, registry
from kcachefs.daemon.confinement import confine
from kcachefs.daemon.interpreter import refuse_free_threading
from kcachefs.daemon.registry import MountConfig
from kcachefs.errors import KcachefsError
from kcachefs.store.header import make_directory, read_header, refuse_another
from kcachefs.store.objects import DEFAULT_VOLUME_SIZE

NICENESS = -5
"""The niceness that we set, if we may. The lowest is -20, and programs have 0."""


def raise_priority() -> None:
    """Get processor time before programs do, if we may: one busy program must not hold up everybody on the mount."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)


def raise_descriptor_limit() -> None:
    """Raise the usual soft limit of 1,024: thousands of spool files and volumes may be open at once."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))


class Preparation(NamedTuple):
    """The results of what a worker did while it still had the rights of its user."""

    control_socket: Path | None
    """Where the worker may make its control socket; None if there is no usable directory for it."""
    gaps: list[str]
    """The rights that it could not give up, in words."""


def prepare(config: MountConfig, mounted: float | None) -> Preparation:
    """Do everything that needs the rights of our user, then give them up. Call this before the first thread starts.

    `mounted`: when the mount began, if there was a worker before this one.
    """
    with contextlib.suppress(ImportError):  # reported when the engine is made
        importlib.import_module(f"kcachefs.engines.{config.engine}")
    if config.fleet is not None:
        importlib.import_module("kcachefs.fleet.offers")  # mounts without a fleet do without its code
    refuse_free_threading()
    store = Path(config.store)
    control_socket: Path | None = None
    try:
        control_socket = registry.socket_path(config.mountpoint, create=True)
    except (KcachefsError, OSError):
        if mounted is None:
            raise
    privileges.drop()
    if mounted is not None:
        refuse_another(store, mounted)  # also refuses a format that this code does not know
    make_directory(store)
    if mounted is None:
        with contextlib.suppress(FileNotFoundError):  # a new store
            read_header(store)
    return Preparation(control_socket, confine(store, control_socket and control_socket.parent))


def volume_size(config: MountConfig) -> int:
    """How large a volume may be: small enough that compacting one hardly matters to the quota and the disk."""
    existing = next(path for path in (Path(config.store), *Path(config.store).parents) if path.exists())
    disk = os.statvfs(existing)
    room = min(config.limits.max_size, disk.f_blocks * disk.f_frsize)
    return max(256 << 10, min(DEFAULT_VOLUME_SIZE, room // 64))
