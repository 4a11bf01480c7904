"""Runs kcachefs commands for the tests as another user, in the mount namespace of whoever asks.

As `tests/command_server.py`: one process imports the command line and forks for every command, which takes a fifth of
the time that a new Python does. `Visits.run` is the client; `python -m tests.cli.visiting` is the server. Daemons that
such a command starts are new processes.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests import command_server, forked_daemons
from tests.cli.scene import Outcome
from tests.engines.callers import Identity
from tests.waiting import PATIENCE

_CLONE_NEWNS = 0x20000
_MESSAGE_BYTES = 1 << 17
_DESCRIPTORS = 3
"""That come with a request: standard output, standard error, and the mount namespace."""


class Visits:
    """The client of a running server."""

    def __init__(self, address: str) -> None:
        self._address = address

    def run(
        self, who: Identity, python: str, arguments: Sequence[str | Path], folder: Path, environment: dict[str, str]
    ) -> Outcome:
        """Run `kcachefs ARGUMENTS` to its end; daemons that it starts run in `python`."""
        words = [str(argument) for argument in arguments]
        request = {
            "uid": who.uid,
            "gid": who.gid,
            "python": python,
            "arguments": words,
            "folder": str(folder),
            "environment": environment,
        }
        with (
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            open("/proc/self/ns/mnt", "rb") as namespace,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
        ):
            connection.connect(self._address)
            descriptors = [out.fileno(), err.fileno(), namespace.fileno()]
            socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
            pid = int(connection.recv(_MESSAGE_BYTES))
            if not select.select([connection], [], [], PATIENCE)[0]:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(["kcachefs", *words], PATIENCE)
            code = int(connection.recv(_MESSAGE_BYTES))
            out.seek(0)
            err.seek(0)
            return Outcome(code, out.read().decode(), err.read().decode())


@contextmanager
def visits() -> Iterator[Visits]:
    """A server for as long as the scope lasts."""
    with (
        tempfile.TemporaryDirectory(prefix="kcachefs-test-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        listener.bind(f"{folder}/socket")
        listener.listen()
        command = [sys.executable, "-m", "tests.cli.visiting", str(listener.fileno())]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            cwd=command_server.ROOT,
            start_new_session=True,
        ):
            yield Visits(f"{folder}/socket")  # then its standard input is closed, and it ends


# --- the server -------------------------------------------------------------------------------------------------------


def serve(listener: socket.socket) -> None:
    """Accept requests until standard input ends, which the tests hold open."""
    command_server._import_commands()
    gc.freeze()  # a collection in a child would copy every page
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that nobody need wait for those who answer
    while listener.fileno() in select.select([listener.fileno(), 0], [], [])[0]:
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                listener.close()
                forked_daemons.run_and_exit(partial(_answer, connection))


def _answer(connection: socket.socket) -> None:
    """Start the command, wait for it, and tell its pid and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, _DESCRIPTORS)
    pid = os.fork()
    if pid == 0:
        connection.close()
        out, err, namespace = descriptors
        forked_daemons.run_and_exit(partial(_become, out, err, namespace, **json.loads(message)))
    connection.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(
    out: int,
    err: int,
    namespace: int,
    uid: int,
    gid: int,
    python: str,
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
) -> None:
    """Be the command until it ends."""
    assert ctypes.CDLL(None).setns(namespace, _CLONE_NEWNS) == 0
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, 1 << 10)
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # the server remembers its own
    os.chdir(folder)
    sys.executable, sys.argv = python, ["kcachefs", *arguments]
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    from kcachefs.cli import main

    main()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as socket_of_server:
        serve(socket_of_server)
