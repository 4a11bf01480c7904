"""Workers that end in a way that the supervisor can do little about."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcachefs import own_python
from kcachefs.daemon.registry import MountConfig
from kcachefs.daemon.worker_process import WorkerEvent, WorkerProcess
from kcachefs.daemon.worker_protocol import CONTROL
from tests.cli import scene as scenes
from tests.cli.scene import Scene
from tests.waiting import PATIENCE, until, until_gone

CANNOT_CLOSE = """
import sys
if "kcachefs.daemon.worker" in sys.orig_argv:
    from kcachefs.store import Store
    Store.close = lambda self: 1 // 0
"""


@pytest.fixture(name="scene")
def a_scene() -> Iterator[Scene]:
    with scenes.scene() as place:
        yield place


@pytest.mark.mount
@pytest.mark.parametrize("how", ["command", "kernel", "signal"])
def test_the_mount_ends_though_no_worker_can_close_the_store(scene: Scene, how: str) -> None:
    scene.in_every_python(CANNOT_CLOSE)
    scene.mount()
    (scene.mountpoint / "triton" / "file").write_text("text")
    [state] = scene.status()
    log = Path(state["log"])
    if how == "command":
        words = ("is unmounted, but", f"{scene.store}: several workers died while they closed it")
        scene.run("umount", scene.mountpoint).refused_with(3, *words)
    elif how == "kernel":
        subprocess.run(["umount", scene.mountpoint], check=True)
    else:
        os.kill(state["supervisor_pid"], signal.SIGTERM)
    until_gone(state["supervisor_pid"])
    until(scene.is_over)
    assert log.read_text().count("ZeroDivisionError") == 3


WRITES_NO_MORE = """
import os, signal, socket, sys
connection = socket.socket(fileno=int(sys.argv[1]))
connection.sendall(b"warm\\n")
connection.recv(1, socket.MSG_PEEK)
connection.close()
signal.pause()
"""


def test_a_worker_that_closes_its_socket_without_reading_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(module: str, *arguments: str) -> list[str]:
        return [sys.executable, "-c", WRITES_NO_MORE, arguments[3]]

    monkeypatch.setattr(own_python, "command", command)
    with open(os.devnull, "rb") as device:
        number = device.fileno()
        config = MountConfig(mountpoint=str(tmp_path / "mount"), store=str(tmp_path / "store"))
        worker = WorkerProcess(config, number, number, number)
        wakeup, other = os.pipe()
        try:
            assert worker.wait_until_warm()
            worker._socket.sendall(CONTROL + b"\n")
            event = worker.watch(wakeup, PATIENCE)
            assert (event, worker.has_ended) == (WorkerEvent.EXITED, False)
        finally:
            worker.end()
            os.close(wakeup)
            os.close(other)
