"""`kcachefs help`: the help of any command."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kcachefs.cli.usage import UsageError, did_you_mean


def help(
    context: typer.Context,
    verbs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND]...", help="For example mount, or fleet push.", show_default=False),
    ] = None,
) -> None:
    """Show the help of a command: `kcachefs help mount` is `kcachefs mount --help`."""
    top: Any = context.find_root()
    shown = top
    for verb in verbs or ():
        known = getattr(shown.command, "commands", {})
        if verb not in known:
            raise UsageError(f"{verb}: no such command{did_you_mean(verb, known)}", context)
        shown = type(top)(known[verb], info_name=verb, parent=shown)
    print(shown.get_help())
