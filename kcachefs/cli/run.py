"""`kcachefs run`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs.errors import MountError, UsageError

if TYPE_CHECKING:
    from kcachefs.frameworks.account import Account

NOT_WARM = 1
NOT_EXECUTABLE, NOT_FOUND = 126, 127


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run.")],
    mount: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Mount to use, or to make for this command.")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="Store of the mount.")] = None,
    max_size: Annotated[str, typer.Option(metavar="SIZE", help="Quota, should a mount be made.")] = "20GiB",
    engine: Annotated[str, typer.Option(help="Engine, should a mount be made.")] = "direct",
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these frameworks. Repeatable.")] = None,
    assert_warm: Annotated[
        bool, typer.Option("--assert-warm", help="Exit with 1 when anything had to be compiled.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No line at the end.")] = False,
) -> None:
    """Run COMMAND with every compile cache in a mount, and say what that saved.

    Uses the mount that runs, or makes one for as long as commands use it. Signals and the exit code pass through.
    """
    from kcachefs.frameworks import environment, headers, make_folders, mounts
    from kcachefs.frameworks.command import end_like
    from kcachefs.frameworks.command import run as run_command

    if not command:
        raise UsageError("run what? kcachefs run -- python train.py")
    with mounts.lasting(mount, store, max_size, engine) as where:
        make_folders(where, only or ())
        if not only:
            headers.link(where)
        before = _account(where, assert_warm)
        try:
            status = run_command(command, {**os.environ, **environment(where, only or ())})
        except FileNotFoundError:
            _say(f"{command[0]}: no such command")
            sys.exit(NOT_FOUND)
        except PermissionError:
            _say(f"{command[0]}: may not be run")
            sys.exit(NOT_EXECUTABLE)
        after = _account(where, assert_warm)
    if before is not None and after is not None:
        done = after - before
        if not quiet:
            _say(str(done))
        if assert_warm and status == 0 and done.misses:
            _say(f"not warm: {done.misses:,} had to be compiled")
            sys.exit(NOT_WARM)
    sys.stdout.flush()
    end_like(status)


def _account(mount: Path, needed: bool) -> Account | None:
    """The mount's counters. A command is not kept from running because they cannot be read."""
    from kcachefs.frameworks import account

    try:
        return account.read(mount)
    except MountError:
        if needed:
            raise
        return None


def _say(text: str) -> None:
    print(f"kcachefs: {text}", file=sys.stderr, flush=True)
