"""Where an administrator's command goes: to the daemon of a mount, or to a store that is not mounted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from kcachefs import config
from kcachefs.errors import MountError, UsageError

Mount = Annotated[Path | None, typer.Option("--mount", metavar="DIR", help="The mount; needed if there are several.")]
Store = Annotated[Path | None, typer.Option("--store", metavar="DIR", help="The store, mounted or not.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]

_T = TypeVar("_T")


def call(mount: Path | None, store: Path | None, verb: str, kind: type[_T], **arguments: Any) -> _T:
    """Run a command where it belongs and return its result."""
    from kcachefs.daemon import control, registry

    mounted = find_mount(mount, store)
    if mounted is not None:
        raw = control.ask(registry.socket_path(mounted), verb, arguments)
        return msgspec.json.decode(raw, type=kind)
    result: _T = _run_on_store(Path(store or config.default_store()), verb, arguments)
    return result


def find_mount(mount: Path | None, store: Path | None) -> str | None:
    """The mount of this user that is meant; None if none is, so that the store is used as it lies."""
    from kcachefs.daemon import registry

    mounts = registry.all_mounts()
    configured = config.configured_mount() if mount is None and store is None else None
    wanted = mount or configured
    if wanted is not None:
        paths = {os.path.abspath(wanted), os.path.realpath(wanted)}
        found = [state for state in mounts if state.mountpoint in paths]
        if not found:
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


def _run_on_store(store: Path, verb: str, arguments: dict[str, Any]) -> Any:
    from kcachefs.core import Filesystem
    from kcachefs.core.administration import Administration
    from kcachefs.daemon import control
    from kcachefs.store import Options
    from kcachefs.store import Store as OpenStore

    with OpenStore(store, Options(create=False)) as opened:
        fs = Filesystem(opened)
        fs.settle()
        return control.find_command(Administration(fs), verb)(**arguments)
