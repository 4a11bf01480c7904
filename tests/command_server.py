"""Runs kcachefs commands for the tests, each in a process of its own, without starting Python for each of them.

Importing the command line takes several times as long as most commands do. The server imports it once and forks for
every command: what runs is the code of `kcachefs`, with its own arguments, environment, folder and output. Only the
start of Python is left out; tests of that, and of commands of other users, start it themselves. The daemons' processes
are forked too (`forked_daemons.py`), unless `forks_daemons` is False.

`run` and `Process` below are the clients; `python -m tests.command_server` is the server. It ends with the process that
started it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import kcachefs
from kcachefs import cli
from kcachefs.daemon import registry
from tests import forked_daemons, forked_programs
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
_MESSAGE_BYTES = 1 << 17
_DESCRIPTORS = 4
"""That come with a request: the three standard ones, and one more that the command holds while it runs."""

GUARD_SECONDS = 550.0
"""After which a command is taken for one that hangs, before pytest gives up the test: no limit on what it may take."""

_TEMPORARY = tempfile.gettempdir()
"""As it was when the tests began: some move it, and the server outlives them."""

forks_daemons = True
_server: subprocess.Popen[bytes] | None = None
_folder = ""


def run(
    *arguments: str | bytes | Path,
    env: dict[str, str] | None = None,
    cwd: str | Path | None = None,
    hold: int = -1,
    timeout: float = GUARD_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Run `kcachefs ARGUMENTS` to its end. The command holds the descriptor `hold` open for as long as it runs."""
    command = [os.fsdecode(argument) for argument in arguments]
    environment = dict(os.environ if env is None else env)
    is_for_server = _is_for_server(environment)
    is_forked = is_for_server and forks_daemons
    assert is_forked or forked_daemons.CONSTANTS not in environment, "only daemons that are forked have these constants"
    if not is_for_server:
        return _run_afresh(command, environment, cwd, hold, timeout)
    with (
        open(os.devnull, "rb") as nothing,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
    ):
        connection.connect(_address())
        descriptors = [nothing.fileno(), out.fileno(), err.fileno(), hold if hold >= 0 else err.fileno()]
        request = {
            "arguments": command,
            "environment": environment,
            "folder": str(cwd or os.getcwd()),
            "forks_daemons": forks_daemons,
        }
        socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
        pid = int(connection.recv(_MESSAGE_BYTES))
        if not select.select([connection], [], [], timeout)[0]:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(["kcachefs", *command], timeout)
        code = os.waitstatus_to_exitcode(int(connection.recv(_MESSAGE_BYTES)))
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["kcachefs", *command], code, out.read().decode(), err.read().decode())


class Process(forked_programs.Program):
    """`kcachefs ARGUMENTS`, or `python -c CODE`, which has imported kcachefs. It leads a session of its own."""

    def __init__(
        self,
        *arguments: str | Path,
        code: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = None,
        imports: Sequence[str] = (),
    ) -> None:
        """`imports`: what the server imports before, if it has not yet."""
        self._code, self._imports = code, list(imports)
        subprocess.Popen.__init__(
            self,
            ["kcachefs", *map(os.fsdecode, arguments)],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            env=dict(os.environ if env is None else env),
            start_new_session=True,
        )

    def _request(self, words: list[str], environment: dict[str, str]) -> tuple[socket.socket, dict[str, Any]]:
        assert _is_for_server(environment)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(_address())
        return connection, {
            "arguments": words[1:],
            "environment": environment,
            "folder": os.getcwd(),
            "forks_daemons": forks_daemons,
            "is_session": True,
            "code": self._code,
            "imports": self._imports,
        }


def _run_afresh(
    command: list[str], environment: dict[str, str], cwd: str | Path | None, hold: int, timeout: float
) -> subprocess.CompletedProcess[str]:
    """A new Python, for a test that changed what a command inherits."""
    return subprocess.run(
        [sys.executable, "-m", "kcachefs", *command],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=environment,
        cwd=cwd,
        timeout=timeout,
        pass_fds=[hold] if hold >= 0 else [],
    )


def _is_for_server(environment: dict[str, str]) -> bool:
    """Whether a child of this process would be the same as one of the server's, and import the same kcachefs."""
    searched = [Path(folder, "kcachefs") for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]
    found = [folder for folder in searched if folder.is_dir()]
    return _who_and_where() == _OURS and (not found or found[0].samefile(kcachefs.__path__[0]))


def _who_and_where() -> tuple[object, ...]:
    """Whose process this is, and its namespaces: a test may have become another user, or have mounts of its own."""
    namespaces = (os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("mnt", "pid", "user"))
    return os.getresuid(), os.getresgid(), *namespaces


_OURS = _who_and_where()


def _address() -> str:
    """Where the server listens; it is started if there is none. A forked process uses the one of its parent."""
    global _server, _folder
    if _server is None:
        _folder = tempfile.mkdtemp(prefix="kcachefs-test-server-", dir=_TEMPORARY)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"{_folder}/socket")
            listener.listen(64)
            _server = subprocess.Popen(
                [sys.executable, "-m", "tests.command_server", _folder, str(listener.fileno()), forked_daemons.ROOM],
                env={**os.environ, "ROOM": forked_daemons.ROOM},
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                cwd=ROOT,
                start_new_session=True,
            )
    return f"{_folder}/socket"


def stop() -> None:
    """End the server, if there is one."""
    global _server
    if _server is not None:
        assert _server.stdin is not None
        _server.stdin.close()
        _server.wait(PATIENCE)
        _server = None


# --- the server -------------------------------------------------------------------------------------------------------


def serve(listener: socket.socket) -> None:
    """Accept requests until standard input ends, which the tests hold open."""
    _import_commands()
    gc.freeze()  # a collection in a child would copy every page
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ, None)
    selector.register(0, selectors.EVENT_READ, None)
    while True:
        for key, _ in selector.select():
            if key.fd == 0:
                return
            if key.fd == listener.fileno():
                started = _start(listener)
                if started is not None:
                    pid, connection = started
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))
            else:
                selector.unregister(key.fd)
                os.close(key.fd)
                _finish(*key.data)


def _start(listener: socket.socket) -> tuple[int, socket.socket] | None:
    connection, _ = listener.accept()
    message, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, _DESCRIPTORS)
    if not message:
        connection.close()
        return None
    request = json.loads(message)
    for name in request.get("imports", ()):
        importlib.import_module(name)
    pid = os.fork()
    if pid == 0:
        listener.close()
        connection.close()
        forked_daemons.run_and_exit(lambda: _become(request, *descriptors))
    for descriptor in descriptors:
        os.close(descriptor)
    connection.send(str(pid).encode())
    return pid, connection


def _finish(pid: int, connection: socket.socket) -> None:
    _, status = os.waitpid(pid, 0)
    with connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.send(str(status).encode())


def _become(request: dict[str, Any], *descriptors: int) -> None:
    """Be the command until it ends."""
    for standard, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    if request.get("is_session"):
        os.setsid()
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        _open_standard()
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # the server remembers its own; the command has to look at its TMPDIR
    os.chdir(request["folder"])
    sys.argv = ["kcachefs", *request["arguments"]]
    if request["forks_daemons"]:
        forked_daemons.be_forked()
    if (code := request.get("code")) is None:
        cli.main()
    else:
        forked_programs.run_as_main(code, "<string>")


def _open_standard() -> None:
    """The server's own found out whether they can seek and are a terminal, which others may be otherwise."""
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # type: ignore[misc]  # noqa: SIM115
        2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )


def _import_commands() -> None:
    """Everything that a command may import while it runs, all of ours and what parses arguments; and the parsers."""
    for package in ("cli", "core", "daemon", "doctor", "engines", "fleet", "frameworks", "mounts", "session", "store"):
        folder = importlib.import_module(f"kcachefs.{package}")
        for module in pkgutil.walk_packages(folder.__path__, f"kcachefs.{package}."):
            with contextlib.suppress(ImportError):  # pyfuse3 need not be installed
                importlib.import_module(module.name)
    for name in (*_imported_by("umount", "/no/such/mount"), "obstore", "obstore.store"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for verb in cli.parser().commands:
        cli.parser(verb)
    # What these look up once for each process.
    sysconfig.get_paths()
    for known in (registry.MountConfig, registry.MountState):
        with contextlib.suppress(msgspec.ValidationError):
            msgspec.json.decode(b"{}", type=known)


def _imported_by(*arguments: str) -> list[str]:
    """The modules that a command has loaded at its end, found out by running it in a process that nobody hears."""
    program = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); import kcachefs.cli as c; c.main()"
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.split()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[2])) as socket_of_server:
        serve(socket_of_server)
    shutil.rmtree(sys.argv[1], ignore_errors=True)
