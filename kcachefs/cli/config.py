"""`kcachefs config`: shows every option of a mount, its value, and where the value comes from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kcachefs import config as locations
from kcachefs.cli import target
from kcachefs.cli.usage import a_path

if TYPE_CHECKING:
    from kcachefs.daemon.registry import MountConfig

_SIZES = ("max_size", "min_free", "max_size_per_uid")


def config(
    mount: target.Mount = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="DIR", help="Show what a mount of this store would begin with.", parser=a_path),
    ] = None,
    as_json: target.Json = False,
) -> None:
    """Show every option and where its value comes from, for the running mount or, if there is none, the next one.

    An option comes from the command line, else from what `kcachefs set` left in the store, else from the user's
    configuration file, else from the system's, else it has its default.
    """
    from kcachefs.daemon.registry import MountConfig
    from kcachefs.mounts.finding import is_mounted
    from kcachefs.mounts.settings import mount_settings

    meant = locations.configured_mount() if mount is None and store is None else None
    if meant is not None and not is_mounted(meant):
        show(mount_settings(meant), as_json)
        return
    mounted = None if store is not None and mount is None else target.find_mount(mount, store)
    if mounted is not None:
        shown = target.call(Path(mounted), None, "settings", MountConfig)
    else:
        place = Path(store or locations.default_store()).absolute()
        shown = mount_settings(place.with_name(f"{place.name}.mount"), place)
    show(shown, as_json)


def show(shown: MountConfig, as_json: bool, only: list[str] | None = None) -> None:
    """Print options and their values: one per line, or as JSON. `only`: just the options of these names."""
    from kcachefs.daemon.options import OPTIONS
    from kcachefs.printable import printable

    chosen = [one for one in OPTIONS if only is None or one.name in only]
    if as_json:
        import json

        values = {
            one.name: {"value": one.value_in(shown), "origin": shown.origins.get(one.name, "default")} for one in chosen
        }
        print(json.dumps({"store": shown.store, "options": values}, indent=2))
        return
    rows = [(one.name, _text(one.name, one.value_in(shown)), shown.origins.get(one.name, "default")) for one in chosen]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)] if rows else [0, 0]
    for name, value, origin in rows:
        print(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {printable(origin)}")


def _text(name: str, value: Any) -> str:
    """A value as it is written on the command line."""
    if value is None or value == {} or value == []:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return ",".join(f"{key}={locations.exact_size(size)}" for key, size in value.items())
    if isinstance(value, list):
        return ",".join(value)
    if name in _SIZES:
        return locations.exact_size(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
