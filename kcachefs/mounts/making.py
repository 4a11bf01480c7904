"""Makes a mount: claims its directory, clears away a dead mount, and starts the daemon here or in the background."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kcachefs.config import format_size
from kcachefs.core.layouts import NAMESPACES
from kcachefs.daemon import registry
from kcachefs.daemon.interpreter import refuse_free_threading
from kcachefs.daemon.registry import MountConfig
from kcachefs.daemon.service_manager import notify
from kcachefs.daemon.worker_protocol import Refusal
from kcachefs.engines import mounting
from kcachefs.errors import DaemonError, MountDenied, MountError, StoreAccessError, StoreBusy
from kcachefs.mounts.finding import DEAD
from kcachefs.mounts.places import remember
from kcachefs.store.places import closed_folder

log = logging.getLogger(__name__)


def serve_in_background(settings: MountConfig) -> str:
    """Start the daemon and wait until the mount answers; returns the message of `remember` if the mount moved."""
    from kcachefs.daemon.launching import launch  # not at the top: most commands here find a running mount

    with _claimed_mountpoint(settings):
        launch(msgspec.structs.replace(settings, log=str(registry.log_path(settings.mountpoint))))
    return remember(Path(settings.store), Path(settings.mountpoint))


def serve_in_foreground(settings: MountConfig) -> None:
    """Be the supervisor: tell a service manager when the mount answers, and return when it is gone."""
    from kcachefs.daemon.supervisor import Supervisor

    refusals: list[Refusal] = []
    with contextlib.ExitStack() as claim:
        claim.enter_context(_claimed_mountpoint(settings))

        def ready(refusal: Refusal | None) -> None:
            if refusal is not None:
                refusals.append(refusal)
                return
            claim.pop_all().close()
            with contextlib.suppress(OSError):  # we were asked to stop already, and the mount is gone
                os.statvfs(settings.mountpoint)
            if complaint := remember(Path(settings.store), Path(settings.mountpoint)):
                log.warning("%s", complaint)  # not by print: a closed terminal is no reason to fail
            notify("READY=1")

        os.chdir("/")
        code = Supervisor(settings).run(ready, foreground=True)
        if refusals:
            raise DaemonError(refusals[0].message, refusals[0].exit_code)
    sys.exit(code)


def shortage(settings: MountConfig) -> str:
    """A message if the disk has less free space than the mount has to leave free; empty if there is enough."""
    store = Path(settings.store)
    existing = next(folder for folder in (store, *store.parents) if os.path.exists(folder))
    disk = os.statvfs(existing)
    free, wanted = disk.f_bavail * disk.f_frsize, settings.limits.min_free
    if free >= wanted:
        return ""
    return (
        f"{settings.store}: its disk has {format_size(free)} free, less than --min-free {format_size(wanted)}, "
        "so new entries replace old ones, or writes fail; free some space or lower --min-free"
    )


@contextlib.contextmanager
def _claimed_mountpoint(settings: MountConfig) -> Iterator[None]:
    """Claim the directory for our mount; on failure leave everything as we found it."""
    refuse_free_threading()
    mountpoint = Path(settings.mountpoint)
    with registry.claimed(settings.mountpoint):
        remove_dead_mount(mountpoint)
        refuse_store_in_use(settings.store)
        if (closed := closed_folder(Path(settings.store))) is not None:
            raise StoreAccessError(
                f"{settings.store}: cannot be made: no permission to write to {closed}; choose another with --store DIR"
            )
        with created_directory(mountpoint, shared=settings.allow_other):
            refuse_non_empty(mountpoint)
            yield


def remove_dead_mount(mountpoint: Path) -> None:
    """Unmount a kcachefs mount whose daemon has died; refuse any other mount."""
    while (found := mounting.mounted_at(mountpoint)) is not None:
        if found.fstype != mounting.FSTYPE:
            raise MountError(f"{mountpoint}: a {found.fstype} filesystem is mounted there; choose another directory")
        try:
            os.statvfs(mountpoint)  # always reaches the daemon; the kernel may answer a stat from its cache
        except OSError as error:
            if error.errno in DEAD:
                mounting.unmount(mountpoint, lazy=True)
                continue
        raise MountError(f"{mountpoint}: is mounted already; see: kcachefs status")


def refuse_store_in_use(store: str) -> None:
    """Raise, naming the mount, if a mount of this user uses the store.

    If any other process has the store open, the daemon notices when it opens the store.
    """
    for other in registry.all_mounts():
        if os.path.realpath(other.store) != os.path.realpath(store):
            continue
        if mounting.mounted_at(Path(other.mountpoint)) is None:
            pid = other.processes()[1]
            server = f"process {pid}" if pid else "a process of another PID namespace, such as a container's,"
            raise StoreBusy(
                f"{store}: what was mounted at {other.mountpoint} is still in use; "
                f"end what uses it ({server} serves it), or choose another --store"
            )
        raise StoreBusy(
            f"{store}: is mounted at {other.mountpoint}; "
            f"unmount that first (kcachefs umount {other.mountpoint}), or choose another --store"
        )


@contextlib.contextmanager
def created_directory(directory: Path, *, shared: bool = False) -> Iterator[None]:
    """Create the directory and its parents if they are missing; remove them again if that or the scope fails.

    Whatever the umask, others can list and enter a `shared` directory that we create; its new parents they can enter
    but not list.
    """
    made: list[Path] = []
    try:
        try:
            _create(directory, shared, made)
        except PermissionError as error:
            raise MountDenied(f"{directory}: cannot be created: {error.strerror}; choose another directory") from None
        except NotADirectoryError:
            raise MountError(f"{directory}: is a file, or leads through one; choose a directory") from None
        except OSError as error:
            raise MountError(f"{directory}: cannot be created: {error.strerror}; choose another directory") from None
        yield
    except BaseException:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _create(directory: Path, shared: bool, made: list[Path]) -> None:
    """Create the missing folders of the path, and note in `made` those that we created.

    We go from descriptor to descriptor: a user who may write to a folder on the way could put a link in place of a
    folder that we make there, and have root change the mode of the link's target.
    """
    missing = [folder for folder in (directory, *directory.parents) if not os.path.lexists(folder)]
    there = missing[-1].parent if missing else directory
    if os.path.islink(there) and not os.path.exists(there):
        raise NotADirectoryError
    here = os.open(there, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in reversed(missing):
            try:
                os.mkdir(folder.name, dir_fd=here)
                made.append(folder)
            except FileExistsError:
                pass  # somebody else has just made it: their folder is as good as ours, but we leave its mode alone
            flags = os.O_RDONLY if folder in made else os.O_PATH
            opened = os.open(folder.name, flags | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = opened
            if shared and folder in made:
                more = 0o055 if folder == directory else 0o011
                os.fchmod(here, stat.S_IMODE(os.fstat(here).st_mode) | more)
    finally:
        os.close(here)


def refuse_non_empty(directory: Path) -> None:
    """Raise unless the directory is empty, because a mount would hide its contents; caches in it can be adopted."""
    try:
        found = {one.name for one in directory.iterdir()}
    except PermissionError:
        raise MountDenied(f"{directory}: you may not read it; choose another directory") from None
    if found & set(NAMESPACES):
        here, aside = shlex.quote(str(directory)), shlex.quote(f"{directory}.before")
        raise MountError(
            f"{directory}: is not empty: a job ran while nothing was mounted there; keep what it compiled with: "
            f"mv {here} {aside} && kcachefs mount {here} && kcachefs adopt {aside}"
        )
    if found:
        raise MountError(f"{directory}: is not empty, and a mount would hide its contents; choose an empty directory")
