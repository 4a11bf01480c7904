"""The storm of triton#11512 in brief; scripts/triton_storm runs all of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.engines.mounting import Mount
from tests.forked_programs import Program
from tests.frameworks.commands import PATIENCE
from tests.frameworks.conftest import ENGINES

STORM = Path(__file__).with_name("triton_storm.py")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_processes_that_publish_the_same_kernels_at_once_never_fail(engine: str, base: Path) -> None:
    with Mount(base / "mount", base / "store", engine) as mount:
        folder = mount.mountpoint / "triton"
        with Program(STORM, "--directory", str(folder), "--kernels", "4", "--rounds", "4", env=os.environ) as process:
            said, errors = process.communicate(timeout=PATIENCE)
    assert errors == ""
    assert said.startswith(f"{folder}: 0 errors of 256 compilations")
    assert process.returncode == 0
