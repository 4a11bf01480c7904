"""`kcachefs mount`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kcachefs import config
from kcachefs.errors import MountError, UsageError


def mount(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to mount; made if absent.")],
    store: Annotated[
        Path | None, typer.Option(help="The store's directory.", show_default="$KCACHEFS_STORE or the user's cache")
    ] = None,
    max_size: Annotated[str, typer.Option(metavar="SIZE", help="Quota of stored bytes.")] = "20GiB",
    max_files: Annotated[int, typer.Option(min=0, metavar="N", help="Quota of files; 0: as many as fit.")] = 0,
    min_free: Annotated[str, typer.Option(metavar="SIZE", help="Free space that the disk keeps.")] = "64MiB",
    grace: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long after its last use an entry is safe.")
    ] = 30.0,
    floor: Annotated[
        list[str] | None, typer.Option(metavar="NAMESPACE=SIZE", help="Not evicted from while it holds no more.")
    ] = None,
    ceiling: Annotated[
        list[str] | None, typer.Option(metavar="NAMESPACE=SIZE", help="Evicted from when it holds more.")
    ] = None,
    engine: Annotated[str, typer.Option(help="direct, or pyfuse3: the reference, slower.")] = "direct",
    read_only: Annotated[bool, typer.Option("--read-only", help="Nothing can be written through the mount.")] = False,
    no_allow_other: Annotated[
        bool, typer.Option("--no-allow-other", help="Keep the mount to the user who makes it.")
    ] = False,
    foreground: Annotated[bool, typer.Option("-f", "--foreground", help="Stay, for a service manager.")] = False,
) -> None:
    """Mount a cache at DIR and return when it answers."""
    from kcachefs.core.eviction import Limits
    from kcachefs.daemon import registry
    from kcachefs.daemon.supervisor import launch

    if engine not in ("direct", "pyfuse3"):
        raise UsageError(f"--engine {engine}: there are two, direct and pyfuse3")
    mountpoint = prepare(directory)
    settings = registry.MountConfig(
        mountpoint=str(mountpoint),
        store=str(Path(store or config.default_store()).absolute()),
        engine=engine,
        limits=Limits(
            max_size=config.parse_size(max_size),
            max_files=max_files,
            min_free=config.parse_size(min_free),
            grace=grace,
            floors=_sizes_by_namespace(floor),
            ceilings=_sizes_by_namespace(ceiling),
        ),
        read_only=read_only,
        allow_other=not no_allow_other,
        log=str(registry.log_path(str(mountpoint))),
    )
    if foreground:
        sys.exit(run_here(settings))
    launch(settings)


def _sizes_by_namespace(texts: list[str] | None) -> dict[str, int]:
    sizes = {}
    for text in texts or ():
        name, equals, size = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{text!r}: write it like triton=2GiB")
        sizes[name] = config.parse_size(size)
    return sizes


def prepare(directory: Path) -> Path:
    """The directory to mount on: made if absent, freed of a dead mount, refused when it is taken."""
    from kcachefs.engines import mounting

    path = Path(os.path.abspath(directory))
    found = mounting.mounted_at(path)
    if found is not None and found.fstype == mounting.FSTYPE:
        try:
            os.statvfs(path)  # always asks the daemon; a stat may be answered from what the kernel remembers
        except OSError:
            mounting.unmount(path, lazy=True)
        else:
            raise MountError(f"{path}: is mounted already; see: kcachefs status")
    elif found is not None:
        raise MountError(f"{path}: a {found.fstype} filesystem is mounted there; choose another directory")
    path.mkdir(parents=True, exist_ok=True)
    path = path.resolve()
    if not path.is_dir():
        raise MountError(f"{path}: is no directory")
    if any(path.iterdir()):
        raise MountError(f"{path}: is not empty, and a mount would hide what is in it; choose an empty directory")
    return path


def run_here(settings: object) -> int:
    """Be the supervisor, in the foreground; tell a service manager when the mount answers."""
    from kcachefs.daemon.notify import notify
    from kcachefs.daemon.registry import MountConfig
    from kcachefs.daemon.supervisor import Supervisor

    assert isinstance(settings, MountConfig)

    def ready(message: str) -> None:
        if message:
            print(f"kcachefs: {message}", file=sys.stderr)
        else:
            os.statvfs(settings.mountpoint)
            notify("READY=1")

    return Supervisor(settings).run(ready)
