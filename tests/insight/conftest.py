"""Real artefacts, compiled once per run: Triton kernels for a GPU that need not be there, graphs for the CPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.forked_programs import ROOT, Program
from tests.made_once import made_once
from tests.waiting import PATIENCE

TRITON_SAMPLE = (
    *("bins", "head_and_heads", "interleaved", "bias", "odd_n", "overflow", "older_triton", "llvm_options"),
    *("beta", "operator", "helper_operator", "blank", "comment", "renamed", "new"),
)
RUNNERS = ROOT / "benchmarks" / "explain_sets"
INDUCTOR_SAMPLE = ("product_shape", "product_config", "product_settings", "product_turned")
"""They call a library only: compiling C++ would take most of a test's time."""


@pytest.fixture(scope="session")
def triton_changes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the kernels before any change, and for each change of the sample those that it made new."""
    return _compiled(tmp_path_factory, "triton_runner", TRITON_SAMPLE)


@pytest.fixture(scope="session")
def inductor_changes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of graphs that torch.compile made."""
    return _compiled(tmp_path_factory, "inductor_runner", INDUCTOR_SAMPLE)


def _compiled(factory: pytest.TempPathFactory, runner: str, changes: tuple[str, ...]) -> Path:
    def run(folder: Path) -> str:
        environment = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        process = Program(RUNNERS / f"{runner}.py", str(folder), *changes, env=environment)
        _, errors = process.communicate(timeout=5 * PATIENCE)
        assert process.returncode == 0, errors
        return str(folder)

    return Path(made_once(factory, runner, run))
