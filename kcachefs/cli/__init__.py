"""The `kcachefs` command: registers one module per verb, and turns errors into one line and an exit code.

Only the module of the requested verb is imported: importing all would take a noticeable part of the start-up time.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import sys
import traceback
from typing import Annotated, Any

import typer

import kcachefs
from kcachefs import own_python
from kcachefs.cli.ending import at_the_end, unwind_when_told_to
from kcachefs.cli.printing import complain, drop
from kcachefs.cli.usage import UsageError, usage_line
from kcachefs.errors import KcachefsError, describe, exit_code_of
from kcachefs.printable import printable

_VERBS = (
    "mount",
    "umount",
    "reload",
    "set",
    "config",
    "status",
    "run",
    "env",
    "warm",
    "frameworks",
    "doctor",
    "adopt",
    "unpack",
    "stats",
    "runs",
    "ls",
    "explain",
    "kernels",
    "show",
    "diff",
    "top",
    "web",
    "report",
    "pin",
    "unpin",
    "evict",
    "prune",
    "gc",
    "fsck",
    "install-helper",
    "completion",
    "help",
)
"""In the order of the help. Each verb is a function of its name, in a module of its name."""
_GROUPS = ("pack", "fleet")
"""Verbs with verbs of their own: `pack_app` and `fleet_app` in modules of their names."""
_BESIDE = {"unpin": "pin"}
"""Verbs that are in another verb's module."""
_BUG = 70


def make_app(only: str = "") -> typer.Typer:
    """The parser of all verbs, or of one."""
    app = typer.Typer(
        name="kcachefs",
        help="A shared, deduplicated and size-limited cache directory for compiled GPU kernels.",
        epilog="Exit codes: 0 success · 1 the answer is no, or damage was repaired · 2 wrong usage, or damage remains "
        "· 3 the store or a bucket cannot be used · 4 the mount cannot be used · 5 no space · 6 no permission · "
        "70 a bug in kcachefs",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="rich",
    )
    for verb in _VERBS:
        if only in ("", verb):
            name = verb.replace("-", "_")
            app.command(verb)(getattr(importlib.import_module(f"kcachefs.cli.{_BESIDE.get(name, name)}"), name))
    for verb in _GROUPS:
        if only in ("", verb):
            app.add_typer(getattr(importlib.import_module(f"kcachefs.cli.{verb}"), f"{verb}_app"), name=verb)
    app.callback()(_root)
    return app


@functools.cache
def parser(only: str = "") -> Any:
    """The app of `make_app`, ready to parse: for `mount`, with its many options, that takes ten milliseconds."""
    command = typer.main.get_command(make_app(only))
    _unwrap(command)
    return command


def _unwrap(command: Any) -> None:
    """Take the line breaks of docstrings out of the paragraphs of the help: the terminal has a width of its own."""
    if command.help:
        command.help = "\n\n".join(" ".join(part.split()) for part in command.help.split("\n\n"))
    for below in getattr(command, "commands", {}).values():
        _unwrap(below)


_debug = False


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"kcachefs {kcachefs.__version__}")
        raise typer.Exit


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
    own_python.restart_in_utf8()
    own_python.notice_children()
    if sys.argv[1:2] == ["--complete"]:
        _complete(sys.argv[2:])
        return
    unwind_when_told_to()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:  # closed by the program that started us: no reason to fail
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the locale cannot show is no failure
    try:
        try:
            sys.exit(_run(sys.argv[1:]))
        finally:
            _flush()  # here, where a failure can still be reported
    except BrokenPipeError:  # the reader of our output, `head` perhaps, has seen enough
        drop(sys.stdout)
        sys.exit(0)
    except (KcachefsError, OSError) as error:
        if _debug:
            raise
        drop(sys.stdout)
        complain(f"kcachefs: {printable(describe(error))}")
        sys.exit(exit_code_of(error))
    except UsageError as error:
        if error.format_message():  # empty when the help was shown instead
            complain(f"kcachefs: {usage_line(error)}")
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except Exception:
        drop(sys.stdout)
        complain(traceback.format_exc().rstrip("\n"))
        sys.exit(_BUG)


def _run(arguments: list[str]) -> int:
    """Parse the arguments and run the verb. Avoids typer's own main(), which treats a broken pipe as a failure."""
    given = next((word for word in arguments if not word.startswith("-")), "")
    is_known = given in (*_VERBS, *_GROUPS) and given != "help"
    command = parser(given if is_known else "")
    try:
        with at_the_end, command.make_context("kcachefs", arguments) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except UsageError as error:
        error.ctx = error.ctx or _context_of(command, arguments)
        raise
    return 0


def _context_of(command: Any, words: list[str]) -> typer.Context:
    """The context of the verb that the words name: if an option lacks its value, the parser's error has no context."""
    context = typer.Context(command, info_name="kcachefs")
    for word in words:
        known: dict[str, Any] = getattr(context.command, "commands", {})
        if word in known:
            context = typer.Context(known[word], info_name=word, parent=context)
        elif not word.startswith("-"):
            break
    return context


def _complete(words: list[str]) -> None:
    """Print the possible completions of the last word, one per line. A shell that gets none completes file names."""
    from kcachefs.cli.completing import candidates

    with contextlib.suppress(KcachefsError, OSError):
        for candidate in candidates(words, parser().commands):
            print(candidate)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from None
