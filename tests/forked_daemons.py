"""Starts supervisors, workers and fleet agents for the tests by forking a process that has imported everything.

Importing takes longer than most of them serve. `be_forked` replaces `subprocess.Popen` in a command of the server
(`command_server.py`); the supervisor that the command starts inherits it, so its workers are forked too. What runs is
the daemon's own code, as `__main__`, with everything an exec would give it: its arguments (also in /proc), environment,
folder, descriptors, session, and signals as they are at the start of Python. Other programs start as ever.

`constants` gives daemons that are forked meanwhile other constants than users have, so that a test comes to a limit
with less data or in less time. Nothing of that is in the product.

Most of tests/daemon is about what a new process is, and starts them anew.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import inspect
import json
import logging
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from kcachefs import own_python

MODULES = ("kcachefs.daemon.supervisor", "kcachefs.daemon.worker", "kcachefs.daemon.fleet_agent")
ROOM = "." * 30_000
"""The server has it as an argument and in its environment, for those of the processes that it becomes."""

CONSTANTS = "KCACHEFS_TEST_CONSTANTS"
"""The variable that brings them to a daemon: values by `module.NAME`, as JSON."""

_BEFORE = own_python.command("")[:-1]
_EXECUTE = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


class Forking(subprocess.Popen[Any]):
    """Forks for a module of the daemon, and executes everything else."""

    def _execute_child(self, *given: Any) -> None:
        wanted = _EXECUTE.bind(self, *given).arguments
        words = wanted["args"]
        if not (list(words[: len(_BEFORE)]) == _BEFORE and words[len(_BEFORE)] in MODULES):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        self.pid = os.fork()
        if self.pid == 0:
            run_and_exit(lambda: _become(wanted))
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(wanted[end] for end in ends))  # type: ignore[attr-defined]


def be_forked() -> None:
    """From here on this process and those it forks start the daemon's modules by forking."""
    subprocess.Popen = Forking  # type: ignore[misc]


@contextlib.contextmanager
def constants(values: Mapping[str, float]) -> Iterator[None]:
    """Daemons that are forked inside have these values: `{"kcachefs.core.eviction.CERTAIN_SECONDS": 1.0}`.

    A module that imports such a constant has one of its own.
    """
    before = os.environ.get(CONSTANTS)
    os.environ[CONSTANTS] = json.dumps({**json.loads(before or "{}"), **values})
    try:
        yield
    finally:
        if before is None:
            del os.environ[CONSTANTS]
        else:
            os.environ[CONSTANTS] = before


def run_and_exit(run: Callable[[], object]) -> NoReturn:
    """Call the function and end this process as Python would, without going back to what the parent was doing."""
    code: object = 1
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _become(wanted: Mapping[str, Any]) -> None:
    """Be that module until it ends."""
    if wanted["start_new_session"]:
        os.setsid()
    for standard, end in enumerate(("p2cread", "c2pwrite", "errwrite")):
        if wanted[end] >= 0:
            os.dup2(wanted[end], standard)
    _close_all_but({0, 1, 2, *wanted["pass_fds"]})
    os.chdir(wanted["cwd"])
    if wanted["env"] is not None:
        os.environ.clear()
        os.environ.update(wanted["env"])
    _forget_the_parent()
    _show(wanted["args"], [f"{name}={value}" for name, value in os.environ.items()])
    module, *arguments = wanted["args"][len(_BEFORE) :]
    sys.modules.pop(module, None)
    sys.argv = ["", *arguments]
    changed = _set_constants()
    try:
        if module in changed:  # run_module would begin with the constants of the file
            sys.modules["__main__"] = changed[module]
            changed[module].main()
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


def _set_constants() -> dict[str, ModuleType]:
    """Returns the modules that have such constants, by their names."""
    changed = {}
    for name, value in json.loads(os.environ.get(CONSTANTS, "{}")).items():
        module, _, constant = name.rpartition(".")
        changed[module] = importlib.import_module(module)
        assert hasattr(changed[module], constant), f"{name}: there is no such constant"
        setattr(changed[module], constant, value)
    return changed


def _close_all_but(kept: set[int]) -> None:
    """Objects of the parent have the numbers of what is closed. They last as long as this process and close nothing."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor in kept:
            os.set_inheritable(descriptor, True)
        else:
            with contextlib.suppress(OSError):  # one was that of the list itself
                os.close(descriptor)


def _forget_the_parent() -> None:
    """What the parent set up in this Python, and an exec would end."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    atexit._clear()
    logging.basicConfig(force=True, handlers=[logging.NullHandler()], level=logging.WARNING)
    logging.root.handlers.clear()
    logging.raiseExceptions = True


def _show(arguments: Sequence[str], environment: Sequence[str]) -> None:
    """Write both to where /proc shows them, and zeros behind them: other processes know a daemon by its arguments."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments_start, arguments_end, environment_start, environment_end = map(int, fields[45:49])
    for start, end, texts in (
        (arguments_start, arguments_end, arguments),
        (environment_start, environment_end, environment),
    ):
        shown = b"".join(os.fsencode(text) + b"\0" for text in texts)
        assert len(shown) <= end - start, "tests/forked_daemons.py: ROOM is too small"
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, shown, len(shown))
