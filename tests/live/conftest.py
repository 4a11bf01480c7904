"""Kernels that Triton compiled, for all tests that show them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.forked_programs import ROOT, Program
from tests.made_once import made_once
from tests.waiting import PATIENCE

RUNNER = ROOT / "benchmarks" / "explain_sets" / "triton_runner.py"


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with kernels for a GPU that need not be there: those of a program, and what changes to it made new."""
    pytest.importorskip("triton")

    def run(folder: Path) -> str:
        environment = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1"}
        Program(RUNNER, str(folder), "bins", "odd_n", "beta", env=environment).finish(5 * PATIENCE)
        return str(folder)

    return Path(made_once(tmp_path_factory, "live_kernels", run))
