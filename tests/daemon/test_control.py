"""The control socket: who is slow, silent or gone keeps nobody else from an answer, and no command is cut off."""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kcachefs.daemon import control, serving
from kcachefs.daemon.control import AT_ONCE, CONNECTIONS_MAX, ControlSocket
from kcachefs.errors import DaemonError
from tests.waiting import PATIENCE, until


class Commands:
    """An administration whose commands take as long as a test wants."""

    def __init__(self) -> None:
        self.at_work = 0
        self.most_at_work = 0
        self.go_on = threading.Event()
        self._lock = threading.Lock()

    def stats(self) -> str:
        return "at once"

    def gc(self) -> str:
        with self._lock:
            self.at_work += 1
            self.most_at_work = max(self.most_at_work, self.at_work)
        self.go_on.wait(PATIENCE)
        with self._lock:
            self.at_work -= 1
        return "done"

    def reset(self) -> str:
        return "x" * (4 << 20)


@pytest.fixture
def commands() -> Commands:
    return Commands()


@pytest.fixture(name="open_socket")
def an_open_socket(tmp_path: Path, commands: Any) -> Iterator[tuple[Path, ControlSocket]]:
    path = tmp_path / "control.sock"
    served = ControlSocket(commands)
    served.listen(serving.bind(path))
    try:
        yield path, served
    finally:
        commands.go_on.set()
        if path.exists():
            served.close()


def threads_of(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def connected(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.connect(str(path))  # with a timeout it would fail while too many wait to be accepted
    except OSError:
        made.close()
        raise
    made.settimeout(PATIENCE)
    return made


def test_clients_that_say_nothing_keep_nobody_waiting(open_socket: tuple[Path, ControlSocket]) -> None:
    path, _ = open_socket
    with ExitStack() as silent:
        for _ in range(CONNECTIONS_MAX - 2):
            silent.enter_context(connected(path))
        half = silent.enter_context(connected(path))
        half.sendall(b'{"verb": ')
        assert json.loads(control.ask(path, "stats", {}, seconds=PATIENCE)) == "at once"
        half.sendall(b'"stats"}\n')
        assert json.loads(half.recv(1 << 16))["result"] == "at once"


def test_more_clients_than_there_is_room_for_wait_until_one_leaves(open_socket: tuple[Path, ControlSocket]) -> None:
    path, _ = open_socket
    with ExitStack() as silent:
        clients = [silent.enter_context(connected(path)) for _ in range(CONNECTIONS_MAX)]
        until(lambda: threads_of("kcachefs-command") == CONNECTIONS_MAX)
        late = silent.enter_context(connected(path))
        late.sendall(b'{"verb": "stats"}\n')
        clients[0].close()
        assert json.loads(late.recv(1 << 16))["result"] == "at once"
        assert threads_of("kcachefs-command") <= CONNECTIONS_MAX
    until(lambda: threads_of("kcachefs-command") == 0)


def test_a_client_that_stays_silent_is_left_alone(
    open_socket: tuple[Path, ControlSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "SILENT_SECONDS", 0.05)
    path, _ = open_socket
    with connected(path) as silent, connected(path) as deaf:
        deaf.sendall(b'{"verb": "reset"}\n')
        assert silent.recv(1) == b""
        until(lambda: threads_of("kcachefs-command") == 0)


class Stream(socket.socket):
    """`sendall` would give up when its time is over, though the client goes on reading."""

    def sendall(self, *data: Any) -> None:
        raise AssertionError("the time limit is for all of the reply")


def test_a_client_that_reads_slowly_gets_all_of_its_reply(
    open_socket: tuple[Path, ControlSocket], commands: Commands
) -> None:
    _, served = open_socket
    ours, client = socket.socketpair()
    with client:
        client.settimeout(PATIENCE)
        client.sendall(b'{"verb": "reset"}\n')
        answering = threading.Thread(target=served._answer, args=(Stream(fileno=ours.detach()),))
        answering.start()
        reply = b""
        while chunk := client.recv(16 << 10):
            reply += chunk
        answering.join(PATIENCE)
    assert json.loads(reply)["result"] == commands.reset()


def test_no_descriptor_to_be_had_is_told_and_passes(
    open_socket: tuple[Path, ControlSocket], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "RETRY_SECONDS", 0.01)
    path, _ = open_socket
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(PATIENCE)
        next_number = os.dup(client.fileno())
        os.close(next_number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_number, before[1]))
        try:
            client.connect(str(path))
            until(lambda: "Too many open files" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        client.sendall(b'{"verb": "stats"}\n')
        assert json.loads(client.recv(1 << 16))["result"] == "at once"


def test_a_client_that_reads_no_reply_keeps_nobody_waiting(open_socket: tuple[Path, ControlSocket]) -> None:
    path, served = open_socket
    with ExitStack() as deaf:
        for _ in range(AT_ONCE + 1):
            deaf.enter_context(connected(path)).sendall(b'{"verb": "reset"}\n')
        assert json.loads(control.ask(path, "stats", {}, seconds=PATIENCE)) == "at once"
        served.close()  # nor a worker that ends
        path.unlink()


def test_a_client_that_left_is_no_failure(
    open_socket: tuple[Path, ControlSocket], caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = open_socket
    for line in (b"", b'{"verb": ', b'{"verb": "reset"}\n'):
        with connected(path) as client:
            client.sendall(line)
    assert json.loads(control.ask(path, "stats", {}, seconds=PATIENCE)) == "at once"
    until(lambda: threads_of("kcachefs-command") == 0)
    assert caplog.records == []


def test_so_many_commands_are_carried_out_at_a_time(
    open_socket: tuple[Path, ControlSocket], commands: Commands
) -> None:
    path, _ = open_socket
    with ExitStack() as asked:
        clients = [asked.enter_context(connected(path)) for _ in range(AT_ONCE + 5)]
        for client in clients:
            client.sendall(b'{"verb": "gc"}\n')
        until(lambda: commands.at_work == AT_ONCE)
        commands.go_on.set()
        assert {json.loads(client.recv(1 << 16))["result"] for client in clients} == {"done"}
    assert commands.most_at_work == AT_ONCE


def test_to_close_is_to_wait_for_the_command_at_hand_and_take_no_other(
    open_socket: tuple[Path, ControlSocket], commands: Commands
) -> None:
    path, served = open_socket
    with connected(path) as client, connected(path) as late:
        client.sendall(b'{"verb": "gc"}\n')
        until(lambda: commands.at_work == 1 and threads_of("kcachefs-command") == 2)
        closing = threading.Thread(target=served.close)
        closing.start()

        def is_refused() -> bool:
            try:
                connected(path).close()
            except ConnectionError:
                return True
            return False

        until(is_refused)
        late.sendall(b'{"verb": "gc"}\n')
        assert closing.is_alive()
        assert commands.at_work == 1
        commands.go_on.set()
        closing.join(PATIENCE)
        assert not closing.is_alive()
        assert json.loads(client.recv(1 << 16))["result"] == "done"
        assert late.recv(1) == b""
        assert commands.most_at_work == 1
    path.unlink()
    with pytest.raises(DaemonError, match="does not answer"):
        control.ask(path, "stats", {}, seconds=PATIENCE)
