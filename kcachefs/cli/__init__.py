"""The `kcachefs` command: registers one module per verb, and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

import kcachefs
from kcachefs.cli.adopt import adopt
from kcachefs.cli.config import config
from kcachefs.cli.doctor import doctor
from kcachefs.cli.env import env
from kcachefs.cli.evict import evict
from kcachefs.cli.frameworks import frameworks
from kcachefs.cli.fsck import fsck
from kcachefs.cli.gc import gc
from kcachefs.cli.ls import ls
from kcachefs.cli.mount import mount
from kcachefs.cli.pin import pin, unpin
from kcachefs.cli.prune import prune
from kcachefs.cli.reload import reload
from kcachefs.cli.run import run
from kcachefs.cli.set import set as set_
from kcachefs.cli.stats import stats
from kcachefs.cli.status import status
from kcachefs.cli.umount import umount
from kcachefs.errors import KcachefsError, describe, exit_code_of

app = typer.Typer(
    name="kcachefs",
    help="A shared, deduplicated and size-limited cache directory for compiled GPU kernels.",
    epilog="Exit codes: 0 success · 1 the answer is no, or damage was repaired · 2 wrong usage, or damage remains · "
    "3 the store cannot be used · 4 the mount cannot be used · 5 no space · 6 no permission · 70 a bug in kcachefs",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)

for _verb in (
    mount,
    umount,
    reload,
    set_,
    config,
    status,
    run,
    env,
    frameworks,
    doctor,
    adopt,
    stats,
    ls,
    pin,
    unpin,
    evict,
    prune,
    gc,
    fsck,
):
    app.command()(_verb)

_debug = False

_UsageError: Any = typer.BadParameter.__bases__[0]
"""What the parser raises for wrong usage; typer does not export it."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"kcachefs {kcachefs.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when a command fails.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    global _debug
    _debug = debug


def main() -> None:
    """The `kcachefs` command."""
    _keep_only_command_in(sys.argv[1:])
    try:
        sys.exit(app(prog_name="kcachefs", standalone_mode=False))
    except BrokenPipeError:  # the reader of our output, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (KcachefsError, OSError) as error:
        if _debug:
            raise
        print(f"kcachefs: {describe(error)}", file=sys.stderr)
        sys.exit(exit_code_of(error))
    except _UsageError as error:
        if error.format_message():  # empty when the help was shown instead
            print(f"kcachefs: {_usage_line(error)}", file=sys.stderr)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)


def _keep_only_command_in(arguments: list[str]) -> None:
    """Drop all other commands: preparing their parsers would take a noticeable part of the start-up time."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    if kept := [one for one in app.registered_commands if one.callback and one.callback.__name__ == name]:
        app.registered_commands = kept


def _usage_line(error: _UsageError) -> str:
    """The parser's complaint in one line that ends with where to read more."""
    command = error.ctx.command_path if error.ctx is not None else "kcachefs"
    complaint = " ".join(error.format_message().split()).rstrip(".")
    return f"{complaint}; see: {command} --help"
