"""`kcachefs set`: changes the limits and the log level of a live mount, and keeps them for the next one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from kcachefs.cli import target
from kcachefs.cli.usage import a_path
from kcachefs.config import format_size
from kcachefs.errors import DaemonError, MountError, UsageError

_FIXED = ("dictionaries", "history")
"""Kinds of data that a store keeps when every entry is evicted, by the names of `Store.bytes_by_kind`."""


def set(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A kcachefs mount of yours.", parser=a_path)],
    max_size: Annotated[str | None, typer.Option(metavar="SIZE", help="Quota for the stored bytes.")] = None,
    max_files: Annotated[int | None, typer.Option(metavar="N", help="Quota for the number of files; 0: none.")] = None,
    min_free: Annotated[str | None, typer.Option(metavar="SIZE", help="Space to leave free on the disk.")] = None,
    grace: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long an entry is safe after a use.")
    ] = None,
    floor: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMESPACE=SIZE", help="Change the floor of a namespace; =none removes it. Repeatable."),
    ] = None,
    ceiling: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMESPACE=SIZE", help="Change the ceiling of a namespace; =none removes it. Repeatable."),
    ] = None,
    max_size_per_uid: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Quota for the files of each user; 0: none.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help="Forget every setting that was kept for the next mount; this mount keeps its values."
        ),
    ] = False,
    as_json: target.Json = False,
) -> None:
    """Change a mount while it is in use. The store keeps the change, and its next mount begins with it.

    An option on the command line of that mount, or in its fstab line, wins over what the store keeps.
    """
    given = {name: value for name, value in locals().items() if value not in (None, [])}
    from kcachefs.cli.config import show

    changes = {name: given[name] for name in given if name not in ("directory", "forget", "as_json")}
    if not changes and not forget:
        raise UsageError("nothing to set; for example: kcachefs set DIR --max-size 50GiB")
    after = change(directory, changes, forget=forget)
    show(after, as_json, only=list(changes))
    if max_size is not None:
        _warn_if_nothing_fits(directory, after.limits.max_size)


def _warn_if_nothing_fits(directory: Path, quota: int) -> None:
    """Warn if the data that stays when every entry is evicted takes most of the quota."""
    from kcachefs.cli.printing import complain
    from kcachefs.core.report import Statistics
    from kcachefs.daemon import control

    told = None
    with contextlib.suppress(DaemonError):  # the requested change is done
        told = control.ask_mount(os.path.realpath(directory), "stats", Statistics).activity
    fixed = sum(told.store_bytes.get(kind, 0) for kind in _FIXED) if told is not None else 0
    if 2 * fixed > quota:
        complain(
            f"kcachefs: --max-size {format_size(quota)}: leaves little or no room for entries, because history and "
            f"dictionaries of this store take {format_size(fixed)}; set {format_size(4 * fixed)} or more"
        )


def change(directory: Path, changes: dict[str, Any], *, forget: bool = False) -> Any:
    """Have the daemon of the mount change these options; returns the resulting configuration."""
    from kcachefs.cli.reload import hand_over
    from kcachefs.daemon import control, registry
    from kcachefs.daemon.options import option_named
    from kcachefs.daemon.registry import MountConfig
    from kcachefs.mounts.finding import mount_at, not_ours

    mountpoint = os.path.realpath(directory)
    for name, given in changes.items():
        option_named(name).value(given)
    state = registry.read(mountpoint)
    if state is None or not state.alive:
        if mount_at(directory) is not None:
            raise not_ours(Path(mountpoint), "set anything")
        raise MountError(f"{mountpoint}: is not one of your kcachefs mounts; see: kcachefs status")
    before = control.ask_mount(mountpoint, "settings", MountConfig)
    after = control.ask_mount(mountpoint, "set", MountConfig, {"options": changes, "forget": forget})
    if bool(before.limits.max_size_per_uid) != bool(after.limits.max_size_per_uid):
        hand_over(mountpoint)  # only a new worker starts or stops counting users
    return after
