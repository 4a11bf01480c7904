"""`kcachefs mount -f` under a service manager, and what signals do to a mount."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.scene import KCACHEFS, PATIENCE, Scene, holding, until
from tests.engines.refusals import refused

pytestmark = pytest.mark.mount


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address.replace("@", "\0"))
        manager.settimeout(PATIENCE)
        yield manager


@contextmanager
def service(scene: Scene, *options: str, notify: str = "") -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*KCACHEFS, "mount", "-f", scene.mountpoint, *options],
        env={**scene.environment, "NOTIFY_SOCKET": notify},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_manager_is_told_of_beginning_and_end(scene: Scene, abstract: bool, number: int) -> None:
    address = f"@{scene.folder}" if abstract else str(scene.folder / "manager")
    with listening(address) as manager, service(scene, notify=address) as process:
        assert manager.recv(100) == b"READY=1"
        (scene.mountpoint / "triton" / "file").write_text("text")
        [state] = scene.status()
        assert (state["supervisor_pid"], state["log"]) == (process.pid, "")
        process.send_signal(number)
        assert manager.recv(100) == b"STOPPING=1"
        assert process.wait(PATIENCE) == 0
    assert scene.is_over()
    scene.open_store().close()


def test_a_service_whose_manager_does_not_listen_serves_all_the_same(scene: Scene) -> None:
    with service(scene, notify=str(scene.folder / "nobody")) as process:
        until(lambda: os.path.exists(scene.mountpoint / "triton"))
        scene.umount()
        assert process.wait(PATIENCE) == 0


def test_what_a_service_cannot_mount_is_one_line_and_an_exit_code(scene: Scene) -> None:
    scene.store.write_text("no store")
    address = str(scene.folder / "manager")
    with listening(address) as manager, service(scene, notify=address) as process:
        assert process.wait(PATIENCE) == 3
        assert process.stderr is not None
        said = process.stderr.read()
        assert said == f"kcachefs: {scene.store}: is a file, not a store's directory\n"
        manager.settimeout(0)
        assert manager.recv(100) == b"STOPPING=1"
    assert not scene.mountpoint.exists()
    assert scene.is_over()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts_a_daemon_in_the_background(scene: Scene, number: int) -> None:
    folder = scene.mount()
    (folder / "file").write_text("text")
    [state] = scene.status()
    os.kill(state["supervisor_pid"], number)
    until(scene.is_over)
    scene.open_store().close()


def test_a_signal_hides_a_busy_mount_and_the_daemon_finishes(scene: Scene) -> None:
    folder = scene.mount()
    (folder / "file").write_text("text")
    [state] = scene.status()
    with holding("sh", "-c", f"exec 3<{folder}/file && echo holding && read -r _"), open(folder / "file") as mine:
        os.kill(state["supervisor_pid"], signal.SIGTERM)
        until(scene.is_over)
        with refused(errno.ENOTCONN):
            os.fstat(mine.fileno()) and os.pread(mine.fileno(), 10, 1 << 20)
            os.fsync(mine.fileno())
        scene.mount()
        assert (folder / "file").read_text() == "text"
