"""Where an administrator's command goes: to a mount's daemon, or to a store that is not mounted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from kcachefs import config
from kcachefs.cli.usage import a_path
from kcachefs.errors import (
    DaemonError,
    MountError,
    UsageError,
)

if TYPE_CHECKING:
    from kcachefs.core import Filesystem
    from kcachefs.mounts.insight_reports import InsightReports

Directory = Annotated[
    Path | None,
    typer.Argument(
        metavar="[DIR]",
        help="A kcachefs mount; needed if there are several.",
        parser=a_path,
    ),
]
FirstShown = Annotated[
    Path | None,
    typer.Argument(
        metavar="[DIR]",
        help="The mount to show first. Without it: $KCACHEFS_MOUNT, else the first of yours.",
        parser=a_path,
    ),
]
Entries = Annotated[
    list[str],
    typer.Argument(
        metavar="ENTRY...",
        help="As `ls` shows them: triton/KEY, or a kernel's name; * matches anything.",
    ),
]
Mount = Annotated[
    Path | None,
    typer.Option(
        "--mount",
        metavar="DIR",
        help="The mount; needed if there are several.",
        parser=a_path,
    ),
]
Store = Annotated[Path | None, typer.Option("--store", metavar="DIR", help="The store, mounted or not.", parser=a_path)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]

_OF_ENTRIES = ("ls", "pin", "evict")
"""Verbs that name entries. Recent writes are sealed first, because they are not an entry before that. In a store at
rest everything is sealed."""
_SETTLING_SECONDS = 2.0
"""How long sealing may take before a command goes on without it."""
_T = TypeVar("_T")


def call(
    mount: Path | None, store: Path | None, verb: str, kind: type[_T], *, stays_open: bool = False, **arguments: Any
) -> _T:
    """Run a command where it belongs and return its result; `stays_open`: a store at rest will be asked again."""
    from kcachefs.daemon import control

    if (shared := _others_mount(mount, store)) is not None:
        return _read_from(shared, verb, kind, arguments)
    mounted = find_mount(mount, store)
    if mounted is not None:
        if verb in _OF_ENTRIES:
            with contextlib.suppress(DaemonError):  # a large file that is being written would take long
                control.ask_mount(mounted, "stats", msgspec.Raw, {"settle": True}, seconds=_SETTLING_SECONDS)
        return control.ask_mount(mounted, verb, kind, arguments)
    from kcachefs.cli import store_process

    at_rest = Path(store or config.default_store())
    try:
        return msgspec.json.decode(store_process.ask(at_rest, verb, arguments), type=kind)
    finally:
        if not stays_open:
            store_process.end(at_rest)  # others may want the store while the result is printed


def insight(mount: Path | None, store: Path | None) -> InsightReports:
    """The reports that explain misses, from the chosen mount or store."""
    from kcachefs.mounts.insight_reports import InsightReports, asking_daemon, asking_folder

    if (shared := _others_mount(mount, store)) is not None:
        return InsightReports(asking_folder(shared))
    mounted = find_mount(mount, store)
    if mounted is not None:
        return InsightReports(asking_daemon(Path(mounted)))
    from kcachefs.cli import store_process

    at_rest = Path(store or config.default_store())
    return InsightReports(lambda verb, arguments: store_process.ask(at_rest, verb, arguments))


def _others_mount(mount: Path | None, store: Path | None) -> Path | None:
    """The chosen mount, if it is somebody else's: the one that is named, or the only one on a host where this user has
    neither a mount nor a store."""
    from kcachefs.daemon import registry
    from kcachefs.engines import mounting
    from kcachefs.mounts.finding import answers, mount_at

    if store is not None:
        return None
    own = {state.mountpoint for state in registry.all_mounts()}
    wanted = mount or config.configured_mount()
    if wanted is not None:
        if own & {os.path.abspath(wanted), os.path.realpath(wanted)}:
            return None
        return mount_at(wanted)
    with contextlib.suppress(UsageError):  # a user without a home has no store there
        if own or config.default_store().exists():
            return None
    found = {Path(one.mountpoint) for one in mounting.mounts() if one.fstype == mounting.FSTYPE}
    usable = [place for place in found if answers(place)]
    return usable[0] if len(usable) == 1 else None


def _read_from(mount: Path, verb: str, kind: type[_T], arguments: dict[str, Any]) -> _T:
    """The data that a mount shows each user about their own things, as its daemon would return it to the owner."""
    from kcachefs import reports
    from kcachefs.mounts.finding import not_ours

    if verb == "stats":
        name = reports.SETTLED if arguments.get("settle") else reports.STATISTICS
        return reports.decoded(reports.read(mount, name), kind, verb)
    if verb == "ls":
        from kcachefs.core.administration import select

        infos: Any = reports.decoded(reports.read(mount, reports.ENTRIES), kind, verb)
        chosen: Any = select(infos, sort=arguments.get("sort", "used"), patterns=arguments.get("patterns"))
        result: _T = chosen[: arguments.get("limit")]
        return result
    raise not_ours(mount, verb)


def find_mount(mount: Path | None, store: Path | None) -> str | None:
    """The chosen mount of this user; None if there is none, so that the store is opened directly."""
    from kcachefs.daemon import registry
    from kcachefs.mounts.finding import is_mounted, mount_at, nothing_at

    mounts = registry.all_mounts()
    configured = config.configured_mount() if mount is None and store is None else None
    wanted = mount or configured
    if wanted is not None:
        paths = {os.path.abspath(wanted), os.path.realpath(wanted)}
        found = [state for state in mounts if state.mountpoint in paths]
        if not found:
            if configured and not is_mounted(configured):
                raise nothing_at(configured, configured=True)
            mount_at(wanted)  # raises if the mount does not answer
            named = " (named by KCACHEFS_MOUNT)" if configured else ""
            raise MountError(f"{wanted}{named}: is not one of your kcachefs mounts; see: kcachefs status")
        if store is not None and os.path.realpath(found[0].store) != os.path.realpath(store):
            raise UsageError(f"--mount {wanted} has the store {found[0].store}, not {store}; give only one of the two")
        return found[0].mountpoint
    if store is not None:
        found = [state for state in mounts if os.path.realpath(state.store) == os.path.realpath(store)]
        return found[0].mountpoint if found else None
    if len(mounts) > 1:
        raise UsageError(
            f"there are {len(mounts)} mounts ({', '.join(m.mountpoint for m in mounts)}); choose one with --mount DIR"
        )
    return mounts[0].mountpoint if mounts else None


@contextmanager
def store_at_rest(store: Path | None, *, create: bool = False) -> Iterator[Filesystem]:
    """The filesystem of a store that is not mounted, in this process."""
    from kcachefs.cli import store_process

    place = Path(store or config.default_store())
    store_process.end(place)
    with store_process.opened(place, create=create) as fs:
        yield fs
