"""The storm of triton#11512 in brief; scripts/triton_storm runs all of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.frameworks.commands import PATIENCE
from tests.frameworks.conftest import ENGINES


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_processes_that_publish_the_same_kernels_at_once_never_fail(engine: str) -> None:
    command = ["-m", "tests.frameworks.triton_storm", "--engine", engine, "--kernels", "4", "--rounds", "4"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith(f"{engine}: 0 errors of 256 compilations")
    assert done.returncode == 0
