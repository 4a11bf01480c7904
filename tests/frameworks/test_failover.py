"""Triton does not notice when the worker of its mount is killed ten times. test_inductor.py has that of torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.kills import KILLS, fsck, kill_while_it_runs
from tests.engines.mounting import Mount, temporary_folder
from tests.frameworks.commands import PATIENCE
from tests.waiting import until

pytestmark = [pytest.mark.mount, pytest.mark.slow]

STORM = (
    "import json, sys; from pathlib import Path; from tests.frameworks.triton_storm import storm;"
    "print(json.dumps(storm(Path(sys.argv[1]), Path(sys.argv[2]), 8, 4, 5)))"
)


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
