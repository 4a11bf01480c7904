"""The mount of a session: a mount that is already running, or one that is made for the session and goes with it.

When many sessions start at once on one store, the first one mounts and the last one unmounts. Each holds a shared lock
on a file while it runs; mounting and unmounting happen under a second lock that is held only for that long. A session
that is killed drops its lock, and the last session to end after it unmounts. `leaving.py` ends a session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import msgspec

from kcachefs import config
from kcachefs.daemon import registry
from kcachefs.daemon.options import option_named
from kcachefs.errors import MountError
from kcachefs.mounts.finding import answers, mount_at, usable_here
from kcachefs.mounts.making import serve_in_background
from kcachefs.mounts.places import place_for
from kcachefs.mounts.settings import mount_settings
from kcachefs.session import leaving


@contextmanager
def session_mount(
    directory: Path | None, store: Path | None, max_size: str | None = None, engine: str | None = None
) -> Iterator[Path]:
    """A mount for the length of the scope: the mount that is running, or one made for the scope.

    For an argument that is None, the store's kept settings and the configuration files decide.
    """
    wanted = {"max_size": max_size, "engine": engine, "allow_other": False}
    given = {name: value for name, value in wanted.items() if value is not None}
    for name, value in given.items():  # a senseless value is an error even if no mount is made
        option_named(name).value(value)
    running = _running(directory, store)
    if running is not None and not leaving.is_temporary(running):
        yield running
        return
    place = running or directory or place_for(store)
    settings = mount_settings(place, store or _store_of(running), given)
    with _in_use(settings):
        yield Path(settings.mountpoint)


def _running(directory: Path | None, store: Path | None) -> Path | None:
    """The running mount that suits the session: that at the directory, that of the store, or the only one."""
    wanted = directory or (config.configured_mount() if store is None else None)
    if wanted is not None:
        return mount_at(wanted) if answers(wanted) else None
    location = _location(store)
    mounts = [state for state in usable_here() if store is None or state.store == location]
    if len(mounts) > 1:
        mounts = [state for state in mounts if state.store == location]
    if len(mounts) > 1:
        raise MountError("several mounts are possible; choose one with --mount DIR, or init(DIR)")
    return Path(mounts[0].mountpoint) if mounts else None


def _location(store: Path | None) -> str:
    return os.path.abspath(store or config.default_store())


def _store_of(running: Path | None) -> Path | None:
    state = registry.read(str(running)) if running is not None else None
    return Path(state.store) if state is not None else None


@contextmanager
def _in_use(settings: registry.MountConfig) -> Iterator[None]:
    mountpoint = Path(settings.mountpoint)
    turn, users = leaving.SessionLock(mountpoint, ".turn"), leaving.SessionLock(mountpoint, ".users")
    process, has_begun = os.getpid(), False
    try:
        try:
            with turn.held():
                if not answers(mountpoint):
                    _make(settings)
                users.share()
            has_begun = True
            yield
        finally:
            # Leave even if the session never began: Ctrl-C may have come right after the mount was made.
            if os.getpid() == process:  # a fork shares the locks, and would drop them for its parent, too
                with nullcontext() if has_begun else suppress(MountError), turn.held():
                    leaving.leave(users, mountpoint)
    finally:
        users.close()
        turn.close()


def _make(settings: registry.MountConfig) -> None:
    if complaint := serve_in_background(msgspec.structs.replace(settings, temporary=True)):
        with suppress(OSError):  # if nobody can read the message, that is no reason to fail
            print(f"kcachefs: {complaint}", file=sys.stderr, flush=True)
