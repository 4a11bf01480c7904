"""`kcachefs mount -f` under a service manager, and what signals do to a mount."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.scene import KCACHEFS, Scene, holding, kill_and_wait
from tests.engines.refusals import refused
from tests.waiting import PATIENCE, until

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


@pytest.mark.parametrize("engine", ["direct", "pyfuse3"])
def test_a_signal_hides_a_busy_mount_and_the_daemon_finishes(scene: Scene, engine: str) -> None:
    folder = scene.mount("--engine", engine)
    (folder / "file").write_text("text")
    [state] = scene.status()
    script = f"exec 3<{folder}/file 4>{folder}/new && echo written >&4 && echo holding && read -r _"
    with holding("sh", "-c", script), open(folder / "file") as mine:
        os.kill(state["supervisor_pid"], signal.SIGTERM)
        until(scene.is_over)
        with refused(errno.ENOTCONN):
            os.fsync(mine.fileno())
        scene.mount()
        assert (folder / "file").read_text() == "text"
        assert (folder / "new").read_text() == "written\n"


def test_a_signal_during_a_hand_over_reaches_the_worker_that_takes_over(scene: Scene) -> None:
    folder = scene.mount()
    [state] = scene.status()
    known = {state["supervisor_pid"], state["worker_pid"]}
    until(lambda: set(scene.daemons()) - known)
    [standby] = set(scene.daemons()) - known
    with holding("sh", "-c", f"exec 3>{folder}/file && echo text >&3 && echo holding && read -r _"):
        os.kill(standby, signal.SIGSTOP)
        kill_and_wait(state["worker_pid"])
        until(lambda: "replacing it" in Path(state["log"]).read_text())
        os.kill(state["supervisor_pid"], signal.SIGTERM)
        until(lambda: not scene.mounted())
        os.kill(standby, signal.SIGCONT)
        until(scene.is_over)
        with scene.open_store() as store:
            assert store.recovered == 0, "something was left in the journal"
    scene.mount()
    assert (folder / "file").read_text() == "text\n"


def test_a_signal_ends_a_daemon_whose_mount_is_bound_elsewhere(scene: Scene) -> None:
    folder = scene.mount()
    (folder / "file").write_text("text")
    elsewhere = scene.bind("elsewhere")
    os.kill(scene.status()[0]["supervisor_pid"], signal.SIGTERM)
    until(lambda: not scene.daemons())
    assert scene.mounted() == [str(elsewhere)]
    with scene.open_store() as store:
        assert store.recovered == 0, "something was left in the journal"


def test_signals_that_come_again_do_not_cut_a_daemon_short(scene: Scene) -> None:
    folder = scene.mount()
    for number in range(500):
        (folder / f"file{number}").write_bytes(os.urandom(100_000))
    supervisor = os.pidfd_open(scene.status()[0]["supervisor_pid"])
    with open(folder / "file0", "rb"):
        while not select.select([supervisor], [], [], 0.01)[0]:
            signal.pidfd_send_signal(supervisor, signal.SIGTERM)
    os.close(supervisor)
    with scene.open_store() as store:
        assert store.recovered == 0, "something was left in the journal"
