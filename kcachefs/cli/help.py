"""`kcachefs help`: the help of any command."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kcachefs.cli.usage import UsageError, did_you_mean


def help(
    context: typer.Context,
    verb: Annotated[str, typer.Argument(metavar="[COMMAND]", help="For example mount.", show_default=False)] = "",
) -> None:
    """Show the help of a command: `kcachefs help mount` is `kcachefs mount --help`."""
    top: Any = context.find_root()
    if not verb:
        print(top.get_help())
        return
    command = top.command.get_command(top, verb)
    if command is None:
        hint = did_you_mean(verb, top.command.commands)
        raise UsageError(f"{verb}: no such command{hint}", context)
    with type(top)(command, info_name=verb, parent=top) as inner:
        print(command.get_help(inner))
