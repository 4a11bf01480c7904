"""`mount --metrics-listen` answers Prometheus while the worker comes and goes, and nobody who connects can delay it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcachefs.daemon import registry
from kcachefs.daemon.metrics_server import CONNECTIONS_MAX, REQUEST_MAX
from kcachefs.daemon.options import option_named
from kcachefs.errors import UsageError
from tests.core.policies.mounts import mounted, replace_worker
from tests.core.test_metrics import values
from tests.engines.mounting import Mount, temporary_folder
from tests.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def mount() -> Iterator[Mount]:
    with mounted("direct", "--metrics-listen", ":0") as made:
        yield made


def address(mount: Mount) -> tuple[str, int]:
    state = registry.read(str(mount.mountpoint))
    assert state is not None
    host, _, port = state.metrics.rpartition(":")
    return host, int(port)


def connected(mount: Mount) -> socket.socket:
    return socket.create_connection(address(mount), timeout=PATIENCE)


def said(mount: Mount, request: bytes) -> tuple[bytes, bytes]:
    """The status and the body of the reply."""
    with connected(mount) as connection:
        connection.sendall(request)
        raw = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert b"Content-Length: %d" % len(body) in lines
    return lines[0].removeprefix(b"HTTP/1.1 "), body


def scraped(mount: Mount) -> dict[str, str]:
    status, body = said(mount, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status == b"200 OK"
    return values(body)


@pytest.mark.mount
def test_it_serves_the_metrics_of_the_whole_mount_and_promtool_accepts_them(mount: Mount) -> None:
    inside = values((mount.mountpoint / ".kcachefs" / "metrics").read_bytes())
    # Asked for later: a request of a new kind begins a new row.
    _, body = said(mount, b"GET /metrics?debug HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n")
    found = values(body)
    assert found["kcachefs_worker_up"] == "1"
    assert set(inside) <= set(found)
    promtool = shutil.which("promtool", path=f"{os.environ['PATH']}:{Path(sys.executable).parent}")
    if promtool is not None:
        done = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.mount
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /metrics/../etc HTTP/1.0\r\n\r\n", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405 Method Not Allowed"),
        (b"\x16\x03\x01\x02\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/2\r\n\r\n", b"400 Bad Request"),
        (b"\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * REQUEST_MAX + b"\r\n\r\n", b"431 Request Header Fields Too Large"),
    ],
)
def test_whatever_else_is_asked_is_refused(mount: Mount, request_: bytes, status: bytes) -> None:
    assert said(mount, request_)[0] == status


@pytest.mark.mount
def test_clients_that_say_nothing_stop_neither_others_nor_a_failover(mount: Mount) -> None:
    silent = [connected(mount) for _ in range(CONNECTIONS_MAX * 3)]
    try:
        for number, one in enumerate(silent):
            if number % 2:
                one.sendall(b"GET /metrics HTT")
        before = int(scraped(mount)["kcachefs_restarts_total"])
        replace_worker(mount)
        until(lambda: scraped(mount)["kcachefs_restarts_total"] == str(before + 1), "the restart is counted")
        assert silent[0].recv(1) == b"", "the oldest had to go"
    finally:
        for one in silent:
            one.close()


@pytest.mark.mount
def test_while_the_worker_does_not_answer_the_supervisor_says_what_it_knows(mount: Mount) -> None:
    _, worker = mount.daemon()
    known = scraped(mount)
    os.kill(worker, signal.SIGSTOP)
    try:
        until(lambda: scraped(mount)["kcachefs_worker_up"] == "0", "the worker does not answer")
        alone = scraped(mount)
        assert alone["kcachefs_restarts_total"] == known["kcachefs_restarts_total"]
        assert {name.partition("{")[0] for name in alone} == {
            *("kcachefs_worker_up", "kcachefs_build_info", "kcachefs_uptime_seconds"),
            *("kcachefs_restarts_total", "kcachefs_reloads_total"),
        }
    finally:
        os.kill(worker, signal.SIGCONT)
    until(lambda: scraped(mount)["kcachefs_worker_up"] == "1", "the worker answers again")


@pytest.mark.usefixtures("forked")
@pytest.mark.mount
def test_a_taken_address_refuses_the_mount_that_names_it_and_nobody_else(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = address(mount)
    with temporary_folder() as base:
        second = Mount(base / "mount", base / "store", "direct", "--metrics-listen", f"{host}:{port}")
        with pytest.raises(RuntimeError, match=r"metrics-listen.*in use"):
            second.__enter__()
        assert not second.mountpoint.is_mount()
        (base / "config.toml").write_text(f'metrics_listen = "{host}:{port}"\n')
        monkeypatch.setenv("KCACHEFS_SYSTEM_CONFIG", str(base / "config.toml"))
        with Mount(base / "mount", base / "store", "direct") as third:
            state = registry.read(str(third.mountpoint))
            assert state is not None
            assert (third.answers(), state.metrics) == (True, "")
            assert "metrics are not served" in Path(state.log).read_text()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (":9753", "127.0.0.1:9753"),
        ("9753", "127.0.0.1:9753"),
        ("localhost:1", "127.0.0.1:1"),
        ("0.0.0.0:0", "0.0.0.0:0"),
        ("[::1]:65535", "[::1]:65535"),
        (9753, "127.0.0.1:9753"),
    ],
)
def test_an_address_is_loopback_unless_it_says_otherwise(given: object, meant: str) -> None:
    assert option_named("metrics_listen").value(given) == meant


@pytest.mark.parametrize("given", ["", ":", "host:9753", "127.0.0.1", "127.0.0.1:65536", "127.0.0.1:-1", True, "::1:x"])
def test_what_is_no_address_is_refused(given: object) -> None:
    with pytest.raises(UsageError, match="write it like"):
        option_named("metrics_listen").value(given)
