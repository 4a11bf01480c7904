"""The Triton cache manager, and what is explained, with other Triton versions: in the environments that
scripts/triton_versions makes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.explain_sets.grading import grade, load
from benchmarks.explain_sets.triton_runner import CHANGES
from tests.insight.conftest import TRITON_SAMPLE

ROOT = Path(__file__).parents[1]
FOLDER = os.environ.get("KCACHEFS_TRITON_ENVIRONMENTS", "")
INTERPRETERS = sorted(Path(FOLDER).glob("*/bin/python")) if FOLDER else []
OURS = "kcachefs.triton:CacheManager"
needs_environments = pytest.mark.skipif(
    not INTERPRETERS, reason="needs environments: scripts/triton_versions DIR makes them and runs this"
)
for_each_version = pytest.mark.parametrize(
    "python", INTERPRETERS or [Path()], ids=[path.parts[-3] for path in INTERPRETERS] or ["none"]
)


def compile_kernels(python: Path, folder: Path, manager: str, *blocks: int) -> dict[str, Any]:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_CACHE_MANAGER", None)
    if manager:
        environment["TRITON_CACHE_MANAGER"] = manager
    words = [str(python), "-W", "ignore", str(ROOT / "tests" / "triton_kernel.py"), *map(str, blocks)]
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


@needs_environments
@for_each_version
def test_cold_compiles_and_warm_does_not(python: Path, tmp_path: Path) -> None:
    cold = compile_kernels(python, tmp_path, OURS, 64, 128)
    warm = compile_kernels(python, tmp_path, OURS, 64, 128)
    assert (cold["hits"], warm["hits"]) == ([False, False], [True, True])
    assert warm["kernels"] == cold["kernels"]
    assert list((tmp_path / ".kcachefs").iterdir()) == []


@needs_environments
@for_each_version
@pytest.mark.parametrize(("first", "second"), [(OURS, ""), ("", OURS)], ids=["ours first", "theirs first"])
def test_triton_and_this_manager_read_each_others_groups(python: Path, tmp_path: Path, first: str, second: str) -> None:
    assert compile_kernels(python, tmp_path, first, 64)["hits"] == [False]
    assert compile_kernels(python, tmp_path, second, 64)["hits"] == [True]


@needs_environments
@for_each_version
def test_a_damaged_group_is_compiled_again(python: Path, tmp_path: Path) -> None:
    compile_kernels(python, tmp_path, OURS, 64)
    (cubin,) = tmp_path.glob("*/*.cubin")
    cubin.write_bytes(cubin.read_bytes()[:-1])
    assert compile_kernels(python, tmp_path, OURS, 64)["hits"] == [False]
    assert compile_kernels(python, tmp_path, OURS, 64)["hits"] == [True]


@needs_environments
@for_each_version
def test_changes_are_named(python: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_DEFAULT_FP_FUSION": "1"}
    command = [str(python), "-m", "benchmarks.explain_sets.triton_runner", str(tmp_path), *TRITON_SAMPLE]
    subprocess.run(command, env=environment, check=True)
    base = load(tmp_path / "base")
    graded = [
        grade(change, load(tmp_path / change.name), base, with_source=with_source)
        for change in CHANGES
        if change.name in TRITON_SAMPLE
        for with_source in (True, False)
    ]
    assert [one for one in graded if not one.right or one.wrongly_certain] == []
