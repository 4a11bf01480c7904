"""A program that ignores SIGCHLD hands that on to everything that it starts, kcachefs included."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.scene import KCACHEFS, Scene
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.mount

IGNORE = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
IGNORING = (sys.executable, "-c", IGNORE)


def ignores_children(pid: int) -> bool:
    [ignored] = [
        line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn:")
    ]
    return bool(int(ignored, 16) >> (signal.SIGCHLD - 1) & 1)


@pytest.mark.parametrize("code", [0, 7])
def test_a_command_is_waited_for_and_its_exit_code_passes_through(scene: Scene, code: int) -> None:
    assert scene.run("run", "-q", "--", "sh", "-c", f"exit {code}", command=(*IGNORING, *KCACHEFS)).code == code
    until(scene.is_over)


@pytest.mark.parametrize("engine", ["direct", "pyfuse3"])
def test_a_supervisor_knows_how_its_worker_ended(scene: Scene, engine: str) -> None:
    assert scene.run("mount", scene.mountpoint, "--engine", engine, command=(*IGNORING, *KCACHEFS)).code == 0
    [state] = scene.status()
    assert not ignores_children(state["supervisor_pid"])
    if engine == "direct":
        scene.must("reload", scene.mountpoint)
        os.kill(scene.status()[0]["worker_pid"], signal.SIGKILL)
        os.statvfs(scene.mountpoint)
        assert until(lambda: scene.status()[0]["restarts"]) == 1
    scene.umount()
    assert scene.is_over()


def test_so_it_does_in_the_foreground(scene: Scene) -> None:
    with subprocess.Popen([*IGNORING, *KCACHEFS, "mount", "-f", scene.mountpoint], env=scene.environment) as process:
        try:
            until(lambda: any(state["worker_pid"] for state in scene.status()))
            scene.must("reload", scene.mountpoint)
            scene.umount()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def test_so_it_does_if_a_program_made_the_mount(scene: Scene) -> None:
    script = (
        "import kcachefs, os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        f"where = kcachefs.init({str(scene.mountpoint)!r}, mount=True); "
        "assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN; print('holding', flush=True); input()"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, env=scene.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        scene.must("reload", scene.mountpoint)
        process.communicate("\n", timeout=PATIENCE)
        assert process.returncode == 0
    until(scene.is_over)
