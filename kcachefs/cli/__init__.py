"""The `kcachefs` command: registers one module per verb, and turns errors into one line and an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from typing import Annotated, Any

import typer

import kcachefs
from kcachefs.cli.adopt import adopt
from kcachefs.cli.completion import completion
from kcachefs.cli.config import config
from kcachefs.cli.diff import diff
from kcachefs.cli.doctor import doctor
from kcachefs.cli.env import env
from kcachefs.cli.evict import evict
from kcachefs.cli.explain import explain
from kcachefs.cli.fleet import fleet_app
from kcachefs.cli.frameworks import frameworks
from kcachefs.cli.fsck import fsck
from kcachefs.cli.gc import gc
from kcachefs.cli.help import help
from kcachefs.cli.install_helper import install_helper
from kcachefs.cli.kernels import kernels
from kcachefs.cli.ls import ls
from kcachefs.cli.mount import mount
from kcachefs.cli.pack import pack_app
from kcachefs.cli.pin import pin, unpin
from kcachefs.cli.prune import prune
from kcachefs.cli.reload import reload
from kcachefs.cli.report import report
from kcachefs.cli.run import run
from kcachefs.cli.runs import runs
from kcachefs.cli.set import set as set_
from kcachefs.cli.show import show
from kcachefs.cli.stats import stats
from kcachefs.cli.status import status
from kcachefs.cli.top import top
from kcachefs.cli.umount import umount
from kcachefs.cli.unpack import unpack
from kcachefs.cli.usage import UsageError, usage_line
from kcachefs.cli.warm import warm
from kcachefs.cli.web import web
from kcachefs.errors import KcachefsError, describe, exit_code_of
from kcachefs.printable import printable

app = typer.Typer(
    name="kcachefs",
    help="A shared, deduplicated and size-limited cache directory for compiled GPU kernels.",
    epilog="Exit codes: 0 success · 1 the answer is no, or damage was repaired · 2 wrong usage, or damage remains · "
    "3 the store or a bucket cannot be used · 4 the mount cannot be used · 5 no space · 6 no permission · "
    "70 a bug in kcachefs",
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
    warm,
    frameworks,
    doctor,
    adopt,
    unpack,
    stats,
    runs,
    ls,
    explain,
    kernels,
    show,
    diff,
    top,
    web,
    report,
    pin,
    unpin,
    evict,
    prune,
    gc,
    fsck,
    install_helper,
    completion,
    help,
):
    app.command(_verb.__name__.replace("_", "-"))(_verb)
app.add_typer(pack_app, name="pack")
app.add_typer(fleet_app, name="fleet")

_debug = False


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
    if sys.argv[1:2] == ["--complete"]:
        _complete(sys.argv[2:])
        return
    _keep_only_command_in(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, _end)
    if sys.stdout is None:  # closed by who started us, which is no reason to fail
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the locale cannot show is no failure
    try:
        try:
            sys.exit(_run(sys.argv[1:]))
        finally:
            _flush()  # here, where a failure can still be told
    except BrokenPipeError:  # the reader of our output, `head` perhaps, has seen enough
        _drop_output()
        sys.exit(0)
    except (KcachefsError, OSError) as error:
        if _debug:
            raise
        _drop_output()
        print(f"kcachefs: {printable(describe(error))}", file=sys.stderr)
        sys.exit(exit_code_of(error))
    except UsageError as error:
        if error.format_message():  # empty when the help was shown instead
            print(f"kcachefs: {usage_line(error)}", file=sys.stderr)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)


def _end(number: int, frame: object) -> None:
    """End as Ctrl-C would: a terminal is left as it was found, and what is temporary is removed. The next one kills."""
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)


def _run(arguments: list[str]) -> int:
    """Parse and do it. Not by typer's own main(), which takes a broken pipe for a failure."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("kcachefs", arguments) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


def _complete(words: list[str]) -> None:
    """Print what the last word may become, a line each. A shell that gets nothing completes file names."""
    from kcachefs.cli.completing import candidates

    commands: Any = typer.main.get_command(app)
    with contextlib.suppress(KcachefsError, OSError):
        print("\n".join(candidates(words, commands.commands)))


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from None


def _drop_output() -> None:
    """Forget what was not printed: the interpreter would try again at its end, and complain in its own words."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _keep_only_command_in(arguments: list[str]) -> None:
    """Drop all other commands: preparing their parsers would take a noticeable part of the start-up time."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    if name == "help":
        return
    if kept := [one for one in app.registered_commands if one.name == name]:
        app.registered_commands, app.registered_groups = kept, []
    elif groups := [one for one in app.registered_groups if one.name == name]:
        app.registered_commands, app.registered_groups = [], groups
