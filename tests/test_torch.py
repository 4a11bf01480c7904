"""The store for torch.compiler's artefacts, with real compilations on the CPU in processes of their own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.forked_programs import Program
from tests.pythons import needs_torch

pytestmark = needs_torch

ROOT = Path(__file__).parents[1]


def run(store: Path, caches: Path) -> dict[str, Any]:
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(caches),
        # Precompiling Inductor's header takes longer than the test and happens outside its cache; so do the programs
        # that it compiles to find out what this CPU can do.
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
        "TORCHINDUCTOR_VEC_ISA_OK": "0",  # vectors take the compiler longer
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(caches.parent),
    }
    process = Program(ROOT / "tests" / "torch_model.py", str(store), env=environment)
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told


@pytest.mark.slow
def test_a_second_run_on_an_empty_cache_does_not_compile(tmp_path: Path) -> None:
    cold = run(tmp_path / "store", tmp_path / "one")
    assert (cold["loaded"], cold["hits"], cold["misses"]) == (False, 0, 1)
    warm = run(tmp_path / "store", tmp_path / "two")
    assert (warm["loaded"], warm["hits"], warm["misses"]) == (True, 1, 0)
    assert warm["result"] == cold["result"]
    check_damage_is_a_miss(tmp_path / "store")


def check_damage_is_a_miss(folder: Path) -> None:
    from kcachefs.torch import ArtifactStore

    for path in folder.glob("entries/*/*/*"):
        path.write_bytes(path.read_bytes()[:-1])
    with ArtifactStore(folder) as store:
        assert not store.load("small")
        assert store.cache.stats().damaged == 1


def test_names_versions_and_devices_are_kept_apart(tmp_path: Path) -> None:
    from kcachefs.torch import ArtifactStore

    with ArtifactStore(tmp_path) as store:
        assert store.key("a") == store.key("a") != store.key("b")
        assert not store.load("a")
