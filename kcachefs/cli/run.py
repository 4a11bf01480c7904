"""`kcachefs run`: runs a command with its compile caches in a mount."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from kcachefs.cli.printing import complain, counted, format_seconds
from kcachefs.cli.usage import a_path
from kcachefs.errors import MountError, UsageError, describe, exit_code_of
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.insight.telling import Group
    from kcachefs.session.account import Account

NOT_WARM = 1
_PATIENCE_SECONDS = 2.0
NOT_EXECUTABLE, NOT_FOUND = 126, 127
_T = TypeVar("_T")


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command to run.")],
    mount: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The mount to use, or where to make one.", parser=a_path)
    ] = None,
    store: Annotated[Path | None, typer.Option(metavar="DIR", help="The store of the mount.", parser=a_path)] = None,
    max_size: Annotated[str | None, typer.Option(metavar="SIZE", help="Quota, if a mount is made.")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine, if a mount is made.")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these frameworks. Repeatable.")] = None,
    bytecode: Annotated[
        str | None,
        typer.Option(help="Python's bytecode in the mount: auto (where it helps), on or off.", show_default="auto"),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Remember under this name which files to read ahead at the next start.",
            show_default="the script of the command",
        ),
    ] = None,
    assert_warm: Annotated[
        bool,
        typer.Option(
            "--assert-warm", help="Exit with 1 if anything had to be compiled, or if the command used no entry at all."
        ),
    ] = False,
    pack: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.kcp",
            help="Pack the entries that were used while the command ran, to unpack them elsewhere.",
            parser=a_path,
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write what the command hit, missed and compiled as one HTML page.", parser=a_path
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print no summary.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as one line of JSON, the last on standard error.")
    ] = False,
) -> None:
    """Run COMMAND with every compile cache in a mount, and print what that saved.

    Uses a running mount, or makes one that lasts while commands use it. Signals and the exit code pass through.
    """
    from kcachefs.cli.target import find_mount
    from kcachefs.core.processes import name_of
    from kcachefs.daemon import registry
    from kcachefs.daemon.options import option_named
    from kcachefs.frameworks import bytecode as pycs
    from kcachefs.frameworks import environment, headers, make_folders
    from kcachefs.frameworks.environment import select
    from kcachefs.session.bytecode import wish
    from kcachefs.session.command import end_like
    from kcachefs.session.command import run as run_command
    from kcachefs.session.temporary_mount import session_mount

    if not command or not command[0]:
        raise UsageError("no command given; for example: kcachefs run -- python train.py")
    select(only or ())  # report a wrong name before anything is mounted
    if bytecode is not None:
        option_named("bytecode").value(bytecode)
    if pack is not None:
        from kcachefs.cli.pack import check_place

        check_place(pack)
    with contextlib.ExitStack() as session:
        where = session.enter_context(session_mount(mount, store, max_size, engine))
        make_folders(where, only or ())
        if not only:
            headers.link(where)
        judged = pycs.judge_command(command, os.environ, wish(where, bytecode, only or ()))
        values = {**environment(where, only or ()), **pycs.variables(where, judged)}
        is_watched = assert_warm or pack is not None
        if pack is not None:
            find_mount(where, None)  # somebody else's daemon would not say afterwards what was used
        is_ours = registry.read(str(where)) is not None
        before = _account(where, is_watched)
        if is_watched:
            from kcachefs.core.uses import HEARTBEAT_SECONDS

            # The kernel asks again for a name after this long; a command that starts sooner would not be counted.
            time.sleep(HEARTBEAT_SECONDS)
        began = time.time()
        _announce(where, printable(name or name_of(command)))
        try:
            status = run_command(command, {**os.environ, **values})
        except OSError as error:
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            why = "no such command" if code == NOT_FOUND else f"cannot be executed: {error.strerror}"
            _say(f"{printable(command[0])}: {why}")
            if as_json:
                _print_exit_code(where, code)
            sys.exit(code)
        after = _afterwards("its hits and misses are not known", lambda: _account(where, is_watched), None)
        missed = before is not None and after is not None and after.misses > before.misses
        causes: list[Group] = []
        if missed and not quiet:
            causes = _afterwards("why it compiled is not known", lambda: _causes(where, began), [])
        pack_failure = _pack(pack, where, began) if pack is not None and status == 0 else 0
        if report is not None:
            page = report
            _afterwards("no report was written", lambda: _write_report(page, where, began, command), None)
        _afterwards("the session could not leave its mount", session.close, None)
    exit_code = pack_failure or os.waitstatus_to_exitcode(status)
    complaint = ""
    if before is not None and after is not None:
        done = after - before
        if assert_warm and status == 0:
            complaint = _why_not_warm(done, is_ours)
        if as_json:
            _print_summary(done, where, NOT_WARM if complaint else exit_code, causes)
        elif not quiet:
            _say(f"{done}{_not_repeated(done)}")
    else:
        if assert_warm and status == 0:
            complaint = "cannot tell whether it was warm: its hits and misses could not be read"
        if as_json:
            _print_exit_code(where, NOT_WARM if complaint else exit_code)
    if complaint and not as_json:
        _say(complaint)
    if not as_json and (complaint or not quiet):
        _say_causes(causes)
    if complaint or pack_failure:
        sys.exit(NOT_WARM if complaint else pack_failure)
    sys.stdout.flush()
    end_like(status)


def _afterwards(failure: str, do: Callable[[], _T], otherwise: _T) -> _T:
    """The result of `do`, or `otherwise` after a line about the failure, which does not change the command's exit code.

    Anything can fail: a module that is imported only now may have been removed or replaced while the command ran.
    """
    try:
        return do()
    except Exception as error:
        _say(f"{failure}: {printable(describe(error))}")
        return otherwise


def _pack(out: Path, mount: Path, began: float) -> int:
    """Pack the entries the command used. Returns 0, or after a line about it the exit code for an incomplete pack."""
    failure = "not packed: "
    try:
        from kcachefs.cli.pack import pack_used, refuse_unread

        packed, left_out = pack_used(mount, out, began)
        _say(packed)
        failure = ""
        refuse_unread(left_out)
    except Exception as error:
        _say(f"{failure}{printable(describe(error))}")
        return exit_code_of(error)
    return 0


def _write_report(report: Path, mount: Path, began: float, command: list[str]) -> None:
    import shlex

    from kcachefs.cli.report import write_for_run
    from kcachefs.config import format_size

    size = write_for_run(report, mount, began, shlex.join(command))
    _say(f"{report}: {format_size(size)}")


def _announce(mount: Path, name: str) -> None:
    """Announce the program to our own daemon, so that it reads ahead; another user's daemon notices by itself."""
    from kcachefs.daemon import control, registry
    from kcachefs.errors import KcachefsError

    with contextlib.suppress(KcachefsError, OSError):
        if name and registry.read(str(mount)) is not None:
            started = {"name": name, "pid": os.getpid()}
            control.ask(registry.socket_path(str(mount)), "start", started, seconds=_PATIENCE_SECONDS)


def _why_not_warm(done: Account, is_ours: bool = True) -> str:
    if done.misses:
        return f"not warm: {counted(done.misses, 'entry', 'entries')} had to be compiled"
    if not done.hits:
        ours, others = (
            "the command used no entry",
            "another user's mount shows you only uses of what you made, so use your own mount",
        )
        return f"cannot tell whether it was warm: nothing was counted; {ours if is_ours else others}"
    return ""


def _not_repeated(done: Account) -> str:
    """How much compiling the hits saved; empty if unknown."""
    if not done.seconds_saved:
        return ""
    least = "at least " if done.unknown_saved else ""
    return f", {least}{format_seconds(done.seconds_saved)} of compiling not repeated"


def _causes(mount: Path, began: float) -> list[Group]:
    """Why something was compiled, the cause of the most entries first."""
    from kcachefs.insight.summary import explain_since
    from kcachefs.insight.telling import grouped

    return grouped(explain_since(mount, began))


def _say_causes(causes: list[Group]) -> None:
    if not causes:
        return
    from kcachefs.insight.summary import SHOWN
    from kcachefs.insight.telling import lines

    for line in lines(causes, SHOWN):
        _say(f"  {line}")


def _print_summary(done: Account, mount: Path, exit_code: int, causes: list[Group]) -> None:
    """One line, so that `tail -1` finds it after the command's own output. A signal's code is negative."""
    import dataclasses

    facts = {**dataclasses.asdict(done), "warm": not _why_not_warm(done)}
    told = [{"kind": one.cause.kind, "words": one.cause.words, "entries": len(one.members)} for one in causes]
    line = json.dumps({"mountpoint": str(mount), **facts, "causes": told, "exit_code": exit_code})
    complain(line)


def _print_exit_code(mount: Path, exit_code: int) -> None:
    """The summary for the case that nothing was counted."""
    complain(json.dumps({"mountpoint": str(mount), "warm": None, "exit_code": exit_code}))


def _account(mount: Path, needed: bool) -> Account | None:
    """The mount's counters, or None: unreadable counters are no reason not to run a command."""
    from kcachefs.session import account

    try:
        return account.read(mount)
    except MountError:
        if needed:
            raise
        return None


def _say(text: str) -> None:
    complain(f"kcachefs: {text}")
