"""Which mount is meant, and a mount for the length of a command when there is none.

Of many commands that start at once on one store, the first mounts and the last unmounts: each holds a shared lock on a
file for as long as it runs, and mounting and unmounting happen under a second lock that is held only for that. A
command that is killed lets go of its lock with its life; the next one to end then unmounts.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kcachefs import config
from kcachefs.daemon import registry
from kcachefs.engines import mounting
from kcachefs.errors import MountBusy, MountError


def find(directory: Path | None) -> Path:
    """The mount at `directory`, or the one that $KCACHEFS_MOUNT names, or the only one there is."""
    asked = directory or config.configured_mount()
    if asked is not None:
        found = is_mount(asked)
        if found is None:
            raise MountError(f"{asked}: no kcachefs is mounted there; mount it with: kcachefs mount {asked}")
        return found
    mounts = [Path(state.mountpoint) for state in registry.all_mounts()]
    if not mounts:
        raise MountError("nothing is mounted; mount it with: kcachefs mount DIR")
    if len(mounts) > 1:
        raise MountError(f"there are {len(mounts)} mounts ({', '.join(map(str, mounts))}); choose one with --mount DIR")
    return mounts[0]


def is_mount(directory: Path) -> Path | None:
    """The mountpoint at this directory, should a kcachefs be mounted there and answer."""
    path = Path(os.path.abspath(directory))
    for candidate in (path, Path(os.path.realpath(path))):
        found = mounting.mounted_at(candidate)
        if found is not None and found.fstype == mounting.FSTYPE:
            try:
                os.statvfs(candidate)
            except OSError as error:
                raise MountError(f"{candidate}: the mount does not answer ({error.strerror}); mount it again") from None
            return candidate
    return None


@contextmanager
def lasting(directory: Path | None, store: Path | None, max_size: str, engine: str = "direct") -> Iterator[Path]:
    """A mount for the length of the scope: one that runs, or one made for it."""
    config.parse_size(max_size, least=1)  # what makes no sense is told, even where nothing is made
    running = _running(directory, store)
    if running is not None and not _is_transient(running):
        yield running
        return
    from kcachefs.cli.mount import checked

    place = running or directory or _own_mountpoint(_location(store))
    settings = checked(place, store or _store_of(running), max_size=max_size, engine=engine, allow_other=False)
    with _in_use(settings):
        yield Path(settings.mountpoint)


def _running(directory: Path | None, store: Path | None) -> Path | None:
    """A mount that serves what was asked for: at that directory, of that store, or the only one."""
    asked = directory or (config.configured_mount() if store is None else None)
    if asked is not None:
        return is_mount(asked) if answers(asked) else None
    wanted = _location(store)
    mounts = [state for state in registry.all_mounts() if store is None or state.store == wanted]
    if len(mounts) > 1:
        mounts = [state for state in mounts if state.store == wanted]
    if len(mounts) > 1:
        raise MountError("several mounts would do; choose one with --mount DIR")
    return Path(mounts[0].mountpoint) if mounts else None


def _location(store: Path | None) -> str:
    return os.path.abspath(store or config.default_store())


def _store_of(running: Path | None) -> Path | None:
    state = registry.read(str(running)) if running is not None else None
    return Path(state.store) if state is not None else None


def _own_mountpoint(store: str) -> Path:
    """Always the same for a store: what is cached holds absolute paths, and is found again only at the same one."""
    return registry.directory() / "mounts" / registry.name_of(store)


def _marker(mountpoint: Path) -> Path:
    """There while a mount is one that a command made for itself and its like; says which supervisor has it."""
    return registry.directory() / f"{registry.name_of(str(mountpoint))}.transient"


def _is_transient(mountpoint: Path) -> bool:
    state = registry.read(str(mountpoint))
    try:
        return state is not None and int(_marker(mountpoint).read_text()) == state.supervisor_pid
    except (OSError, ValueError):
        return False


@contextmanager
def _in_use(settings: registry.MountConfig) -> Iterator[None]:
    mountpoint = Path(settings.mountpoint)
    marker = _marker(mountpoint)
    turn = os.open(marker.with_suffix(".turn"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    users = os.open(marker.with_suffix(".users"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        with _locked(turn):
            if not answers(mountpoint):
                _mount(settings)
            fcntl.flock(users, fcntl.LOCK_SH)
        process = os.getpid()
        try:
            yield
        finally:
            if os.getpid() == process:  # a fork has the same locks, and would let go of those of its parent
                with _locked(turn):
                    fcntl.flock(users, fcntl.LOCK_UN)
                    _leave(users, mountpoint)
    finally:
        os.close(users)
        os.close(turn)


def answers(mountpoint: Path) -> bool:
    """Whether a kcachefs is mounted there and lives."""
    try:
        return is_mount(mountpoint) is not None
    except MountError:
        return False


def _mount(settings: registry.MountConfig) -> None:
    from kcachefs.cli.mount import serve_in_background

    serve_in_background(settings)
    state = registry.read(settings.mountpoint)
    if state is not None:
        _marker(Path(settings.mountpoint)).write_text(str(state.supervisor_pid))


def _leave(users: int, mountpoint: Path) -> None:
    """Unmount, unless others use it still."""
    if not _is_transient(mountpoint):
        return
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    from kcachefs.cli.umount import umount

    try:
        umount(mountpoint)
        _marker(mountpoint).unlink(missing_ok=True)
    except MountBusy:
        return  # a process that outlives the command still has it; the next command to end tries again
    finally:
        fcntl.flock(users, fcntl.LOCK_UN)  # a fork has the descriptor too, and closing ours would not let go


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
