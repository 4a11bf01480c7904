"""Where a command goes: to the daemon of a mount, or to a store that nobody has mounted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from kcachefs import config
from kcachefs.errors import MountError, UsageError

Mount = Annotated[Path | None, typer.Option("--mount", metavar="DIR", help="A mount; needed when there are several.")]
Store = Annotated[Path | None, typer.Option("--store", metavar="DIR", help="A store, mounted or at rest.")]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]

_T = TypeVar("_T")


def call(mount: Path | None, store: Path | None, verb: str, kind: type[_T], **arguments: Any) -> _T:
    """Run an administrator's command where it belongs, and return its result."""
    from kcachefs.daemon import control, registry

    mounted = _find_mount(mount, store)
    if mounted is not None:
        raw = control.ask(registry.socket_path(mounted), verb, arguments)
        return msgspec.json.decode(raw, type=kind)
    result: _T = _at_rest(Path(store or config.default_store()), verb, arguments)
    return result


def _find_mount(mount: Path | None, store: Path | None) -> str | None:
    from kcachefs.daemon import registry

    mounts = registry.all_mounts()
    configured = config.configured_mount() if mount is None and store is None else None
    asked = mount or configured
    if asked is not None:
        wanted = {os.path.abspath(asked), os.path.realpath(asked)}
        found = [state for state in mounts if state.mountpoint in wanted]
        if not found:
            named = ", though KCACHEFS_MOUNT names it" if configured else ""
            raise MountError(f"{asked}: is no kcachefs mount of yours{named}; see: kcachefs status")
        return found[0].mountpoint
    if store is not None:
        found = [state for state in mounts if os.path.realpath(state.store) == os.path.realpath(store)]
        return found[0].mountpoint if found else None
    if len(mounts) > 1:
        raise UsageError(
            f"there are {len(mounts)} mounts; say which with --mount: {', '.join(m.mountpoint for m in mounts)}"
        )
    return mounts[0].mountpoint if mounts else None


def _at_rest(store: Path, verb: str, arguments: dict[str, Any]) -> Any:
    from kcachefs.core import Filesystem
    from kcachefs.core.administration import Administration
    from kcachefs.daemon import control
    from kcachefs.store import Options
    from kcachefs.store import Store as OpenStore

    with OpenStore(store, Options(create=False)) as opened:
        fs = Filesystem(opened)
        fs.settle()
        return control.command(Administration(fs), verb)(**arguments)
