"""`kcachefs mount`."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs import config
from kcachefs.errors import DaemonError, MountDenied, MountError, StoreBusy, UsageError

if TYPE_CHECKING:
    from kcachefs.core.sharing import Sharing
    from kcachefs.daemon.registry import MountConfig
    from kcachefs.daemon.worker_protocol import Refusal

MAX_SIZE = "20GiB"
MIN_FREE = "64MiB"
_DEAD = (errno.ENOTCONN, errno.ECONNABORTED)


def mount(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to mount; made if absent.")],
    store: Annotated[
        Path | None, typer.Option(help="The store's directory.", show_default="$KCACHEFS_STORE or the user's cache")
    ] = None,
    max_size: Annotated[str, typer.Option(metavar="SIZE", help="Quota of stored bytes.")] = MAX_SIZE,
    max_files: Annotated[int, typer.Option(min=0, metavar="N", help="Quota of files; 0: as many as fit.")] = 0,
    min_free: Annotated[str, typer.Option(metavar="SIZE", help="Free space that the disk keeps.")] = MIN_FREE,
    grace: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long after its last use an entry is safe.")
    ] = 30.0,
    floor: Annotated[
        list[str] | None, typer.Option(metavar="NAMESPACE=SIZE", help="Not evicted from while it holds no more.")
    ] = None,
    ceiling: Annotated[
        list[str] | None, typer.Option(metavar="NAMESPACE=SIZE", help="Evicted from when it holds more.")
    ] = None,
    max_size_per_uid: Annotated[
        str, typer.Option(metavar="SIZE", help="Quota of each user; 0: none but that of all.")
    ] = "0",
    policy: Annotated[str, typer.Option(help="shared, publish, private or read-only; see the README.")] = "",
    writers: Annotated[
        list[str] | None, typer.Option(metavar="uid:N,gid:N,…", help="Who writes where others only read.")
    ] = None,
    base: Annotated[bool, typer.Option("--base", help="Lay private trees over the shared one.")] = False,
    uid: Annotated[int | None, typer.Option(min=0, metavar="N", help="Everything appears as this user's.")] = None,
    gid: Annotated[int | None, typer.Option(min=0, metavar="N", help="Everything appears as this group's.")] = None,
    umask: Annotated[str | None, typer.Option(metavar="OCTAL", help="What all modes appear without.")] = None,
    idmap: Annotated[bool, typer.Option("--idmap", help="Allow idmapped mounts of it (Linux 6.12).")] = False,
    engine: Annotated[str, typer.Option(help="direct, or pyfuse3: the reference, slower.")] = "direct",
    read_only: Annotated[bool, typer.Option("--read-only", help="Short for --policy read-only.")] = False,
    no_allow_other: Annotated[
        bool, typer.Option("--no-allow-other", help="Keep the mount to the user who makes it.")
    ] = False,
    hang_timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Replace a worker that gives no sign of life for so long.")
    ] = 30.0,
    foreground: Annotated[bool, typer.Option("-f", "--foreground", help="Stay, for a service manager.")] = False,
    log_format: Annotated[str, typer.Option(help="text, or json: an object per line.")] = "text",
) -> None:
    """Mount a cache at DIR and return when it answers."""
    settings = checked(
        directory,
        store,
        max_size=max_size,
        max_files=max_files,
        min_free=min_free,
        grace=grace,
        floors=floor or [],
        ceilings=ceiling or [],
        engine=engine,
        max_size_per_uid=max_size_per_uid,
        sharing=shared_how(
            policy, read_only=read_only, writers=writers or [], base=base, uid=uid, gid=gid, umask=umask, idmap=idmap
        ),
        allow_other=not no_allow_other,
        log_format=log_format,
        hang_seconds=hang_timeout,
    )
    if foreground:
        serve_here(settings)
    else:
        serve_in_background(settings)


def checked(
    directory: Path,
    store: Path | None = None,
    *,
    max_size: str = MAX_SIZE,
    max_files: int = 0,
    min_free: str = MIN_FREE,
    grace: float = 30.0,
    floors: Sequence[str] = (),
    ceilings: Sequence[str] = (),
    max_size_per_uid: str = "0",
    engine: str = "direct",
    sharing: Sharing | None = None,
    allow_other: bool = True,
    log_format: str = "text",
    hang_seconds: float = 30.0,
) -> MountConfig:
    """What was asked for, if it makes sense. Touches nothing."""
    from kcachefs.core.limits import Limits
    from kcachefs.core.sharing import Sharing
    from kcachefs.daemon.logs import FORMATS
    from kcachefs.daemon.registry import MountConfig
    from kcachefs.engines import ENGINES

    if engine not in ENGINES:
        raise UsageError(f"engine {engine}: is not known; there are two, direct and pyfuse3")
    if log_format not in FORMATS:
        raise UsageError(f"log format {log_format}: is not known; there are two, text and json")
    # A dead mount cannot be resolved any further, which is as far as it need be.
    mountpoint = os.path.realpath(directory)
    place = os.path.abspath(store or config.default_store())
    for path in (mountpoint, place):
        try:
            path.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{path!r}: is not UTF-8; choose another name") from None
    if _is_inside(os.path.realpath(place), mountpoint) or _is_inside(mountpoint, os.path.realpath(place)):
        raise UsageError(f"{mountpoint}: a mount and its store cannot be inside each other; choose another --store")
    return MountConfig(
        mountpoint=mountpoint,
        store=place,
        engine=engine,
        limits=Limits(
            max_size=config.parse_size(max_size, least=1),
            max_files=max_files,
            max_size_per_uid=config.parse_size(max_size_per_uid),
            min_free=config.parse_size(min_free),
            grace=grace,
            floors=_sizes_by_namespace(floors),
            ceilings=_sizes_by_namespace(ceilings),
        ),
        sharing=_suits(sharing or Sharing(), engine),
        allow_other=allow_other,
        log_format=log_format,
        hang_seconds=hang_seconds,
        resend=config.use_resend(),
    )


def shared_how(
    policy: str = "",
    *,
    read_only: bool = False,
    writers: Sequence[str] = (),
    base: bool = False,
    uid: int | None = None,
    gid: int | None = None,
    umask: str | None = None,
    idmap: bool = False,
) -> Sharing:
    """How the mount is to be shared, if that makes sense."""
    from kcachefs.core.sharing import Sharing, check, parse_writers

    if read_only and policy not in ("", "read-only"):
        raise UsageError(f"--read-only: is --policy read-only, and cannot be --policy {policy} too")
    if umask is not None and not re.fullmatch("[0-7]{1,4}", umask):
        raise UsageError(f"--umask {umask}: is no mask of modes; write it like 022")
    uids, gids = parse_writers(writers)
    if base and not writers and os.geteuid() == 0:
        # In most containers everybody is root, and would be a writer without having been named.
        raise UsageError("--base: say who writes it when root mounts; add --writers uid:0, or whom you mean")
    return check(
        Sharing(
            policy="read-only" if read_only else policy or "shared",
            writer_uids=uids,
            writer_gids=gids,
            base=base,
            uid=uid,
            gid=gid,
            umask=int(umask, 8) & 0o777 if umask is not None else None,
            idmap=idmap,
        )
    )


def _suits(sharing: Sharing, engine: str) -> Sharing:
    if sharing.idmap and engine != "direct":
        raise UsageError(f"--idmap: cannot be had with --engine {engine}; leave one of the two out")
    return sharing


def _sizes_by_namespace(texts: Sequence[str]) -> dict[str, int]:
    sizes = {}
    for text in texts:
        name, equals, size = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{text!r}: write it like triton=2GiB")
        sizes[name] = config.parse_size(size)
    return sizes


def serve_in_background(settings: MountConfig) -> None:
    """Start the daemon; returns when the mount answers."""
    import msgspec

    from kcachefs.daemon import registry
    from kcachefs.daemon.supervisor import launch

    with taken(settings):
        launch(msgspec.structs.replace(settings, log=str(registry.log_path(settings.mountpoint))))


def serve_here(settings: MountConfig) -> None:
    """Be the supervisor; tells a service manager when the mount answers, and returns when it is gone."""
    from kcachefs.daemon.service_manager import notify
    from kcachefs.daemon.supervisor import Supervisor

    refused: list[Refusal] = []
    with contextlib.ExitStack() as claim:
        claim.enter_context(taken(settings))

        def ready(refusal: Refusal | None) -> None:
            if refusal is not None:
                refused.append(refusal)
                return
            claim.pop_all().close()
            os.statvfs(settings.mountpoint)
            notify("READY=1")

        os.chdir("/")
        code = Supervisor(settings).run(ready, foreground=True)
        if refused:
            raise DaemonError(refused[0].message, refused[0].exit_code)
    sys.exit(code)


@contextlib.contextmanager
def taken(settings: MountConfig) -> Iterator[None]:
    """The directory is ours to mount on: made if absent, freed of a dead mount, left as it was found on failure."""
    from kcachefs.daemon import registry

    mountpoint = Path(settings.mountpoint)
    with registry.claimed(settings.mountpoint):
        free(mountpoint)
        refuse_taken_store(settings.store)
        with made(mountpoint):
            refuse_what_is_there(mountpoint)
            yield


def free(mountpoint: Path) -> None:
    """Take a dead mount away; refuse a living one."""
    from kcachefs.engines import mounting

    while (found := mounting.mounted_at(mountpoint)) is not None:
        if found.fstype != mounting.FSTYPE:
            raise MountError(f"{mountpoint}: a {found.fstype} filesystem is mounted there; choose another directory")
        try:
            os.statvfs(mountpoint)  # always asks the daemon; a stat may be answered from what the kernel remembers
        except OSError as error:
            if error.errno in _DEAD:
                mounting.unmount(mountpoint, lazy=True)
                continue
        raise MountError(f"{mountpoint}: is mounted already; see: kcachefs status")


def refuse_taken_store(store: str) -> None:
    """Say at which mount it is in use. What else may have it open is found when the daemon opens it."""
    from kcachefs.daemon import registry
    from kcachefs.engines import mounting

    for other in registry.all_mounts():
        if os.path.realpath(other.store) != os.path.realpath(store):
            continue
        if mounting.mounted_at(Path(other.mountpoint)) is None:
            raise StoreBusy(
                f"{store}: what was mounted at {other.mountpoint} is still in use; "
                f"end what uses it (process {other.worker_pid} serves it), or choose another --store"
            )
        raise StoreBusy(
            f"{store}: is mounted at {other.mountpoint}; "
            f"unmount that first (kcachefs umount {other.mountpoint}), or choose another --store"
        )


@contextlib.contextmanager
def made(directory: Path) -> Iterator[None]:
    """The directory, and what leads to it, made where absent; taken away again when something goes wrong."""
    absent = [folder for folder in (directory, *directory.parents) if not os.path.lexists(folder)]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except PermissionError as error:
        raise MountDenied(f"{directory}: cannot be made: {error.strerror}; choose another directory") from None
    except (FileExistsError, NotADirectoryError):
        raise MountError(f"{directory}: is a file, or leads through one; choose a directory") from None
    except OSError as error:
        raise MountError(f"{directory}: cannot be made: {error.strerror}; choose another directory") from None
    try:
        yield
    except BaseException:
        for folder in absent:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def refuse_what_is_there(directory: Path) -> None:
    """A mount hides what a directory holds, so it must hold nothing."""
    try:
        empty = not any(directory.iterdir())
    except PermissionError:
        raise MountDenied(f"{directory}: is not yours to read; choose another directory") from None
    if not empty:
        raise MountError(f"{directory}: is not empty, and a mount would hide what is in it; choose an empty directory")


def _is_inside(path: str, folder: str) -> bool:
    return os.path.commonpath((path, folder)) == folder
