"""Real compilers do not notice when the worker of their mount is killed ten times."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.daemon.kills import fsck, kill_worker
from tests.engines.mounting import Mount, temporary_folder
from tests.frameworks.commands import PATIENCE
from tests.frameworks.programs import INDUCTOR, finish_program, start_program
from tests.frameworks.worlds import world
from tests.waiting import until

pytestmark = [pytest.mark.mount, pytest.mark.slow]

KILLS = 10
STORM = (
    "import json, sys; from pathlib import Path; from tests.frameworks.triton_storm import storm;"
    "print(json.dumps(storm(Path(sys.argv[1]), Path(sys.argv[2]), 8, 4, 5)))"
)


def kill_while_it_runs(mount: Mount, process: subprocess.Popen[str], pause: float = 0.3) -> int:
    """Kill the worker at most ten times, with pauses; returns how many times the process still ran afterwards."""
    killed = 0
    while killed < KILLS and process.poll() is None:
        kill_worker(mount)
        killed += process.poll() is None
        with suppress(subprocess.TimeoutExpired):
            process.wait(pause)
    return killed


@pytest.mark.timeout(600)
def test_torch_compile_does_not_notice() -> None:
    with world("direct") as made:
        process = start_program(INDUCTOR, made.environment, "mlp")
        killed = kill_while_it_runs(made.mount, process, pause=0.7)
        cold = finish_program(process)
        assert killed > 0
        assert cold["built"] > 0
        while killed < 2 * KILLS:  # on a quick machine one run is over before
            process = start_program(INDUCTOR, made.environment, "mlp")
            killed += kill_while_it_runs(made.mount, process, pause=0.1)
            warm = finish_program(process)
            assert (warm["built"], warm["graph_misses"], warm["autograd_misses"]) == (0, 0, 0)
            assert warm["results"] == cold["results"]
        store = made.mount.store
        made.mount.umount()
        fsck(store)


@pytest.mark.timeout(600)
def test_a_triton_storm_does_not_notice(tmp_path: Path) -> None:
    with temporary_folder() as base:
        with Mount(base / "mount", base / "store", "direct") as mount:
            killed = 0
            while killed < KILLS:  # on a fast machine one storm is not enough
                folder = mount.mountpoint / "triton" / f"after{killed}"
                folder.mkdir()
                command = [sys.executable, "-c", STORM, str(folder), str(tmp_path)]
                with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                    wait_for_work(folder, process)
                    killed += kill_while_it_runs(mount, process)
                    out, errors = process.communicate(timeout=PATIENCE)
                assert process.returncode == 0, errors
                told = json.loads(out)
                assert (told["failed"], told["failures"], told["compilations"]) == (0, [], 160)
        fsck(base / "store")


def wait_for_work(folder: Path, process: subprocess.Popen[str]) -> None:
    until(lambda: process.poll() is not None or any(folder.iterdir()), "the first kernel is being stored")
