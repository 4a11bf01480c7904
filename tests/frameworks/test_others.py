"""Further frameworks that run on a CPU, tested where they are installed: pip install kcachefs[frameworks]."""

from __future__ import annotations

import importlib.util

import pytest

from tests.frameworks.programs import CUPY, JAX, NUMBA
from tests.frameworks.worlds import files_below, world

pytestmark = pytest.mark.mount


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
def test_numba_finds_its_function_again_by_the_time_of_its_source() -> None:
    with world("direct") as made:
        cold = made.run(NUMBA)
        assert (cold["hits"], cold["misses"]) == (0, 1)
        names = sorted(name.rpartition(".")[2] for name in files_below(made.folder("numba")))
        assert names == ["nbc", "nbi"]
        warm = {**cold, "hits": 1, "misses": 0}
        assert made.run(NUMBA) == warm
        made.mount.kill()
        assert made.run(NUMBA) == warm
        made.evict("numba/*")
        assert made.run(NUMBA) == cold


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_jax_finds_its_programs_again() -> None:
    with world("direct") as made:
        cold = made.run(JAX)
        assert cold["hits"] == 0
        assert cold["misses"] > 0
        warm = {**cold, "hits": cold["misses"], "misses": 0}
        assert made.run(JAX) == warm
        made.mount.remount()
        assert made.run(JAX) == warm
        made.evict("jax/*")
        assert made.run(JAX) == cold


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="cupy is not installed")
def test_cupys_own_cache_finds_its_files_again() -> None:
    """Only its cache, with random bytes for kernels: CuPy cannot compile without a GPU."""
    with world("direct") as made:
        assert made.run(CUPY) == {"hits": 0, "misses": 3}
        assert files_below(made.folder("cupy")) == {f"{number:040x}.cubin" for number in range(3)}
        before = made.changes()
        assert made.run(CUPY) == {"hits": 3, "misses": 0}
        assert made.changes() == before
        made.evict(f"cupy/{0:040x}")
        assert made.run(CUPY) == {"hits": 2, "misses": 1}
