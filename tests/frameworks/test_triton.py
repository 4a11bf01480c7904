"""Real Triton compiling for sm_90 with its cache in the mount; this needs no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks.conftest import ENGINES
from tests.frameworks.programs import TRITON, finish_program, start_program
from tests.frameworks.worlds import World, world

KERNELS = 4


@pytest.fixture(scope="module", params=ENGINES)
def warm(request: pytest.FixtureRequest) -> Iterator[tuple[World, list[str]]]:
    """A mount in which Triton has compiled four kernels, and the kernels' cubins."""
    with world(request.param) as made:
        cold = made.run(TRITON)
        assert cold["compiled"] == KERNELS
        yield made, cold["cubins"]


def make_a_change_of_each_kind(folder: Path) -> None:
    """Tests share the mount in any order, and a remount counts from zero again."""
    (folder / "tmp.pid_1_probe").mkdir()
    (folder / "tmp.pid_1_probe" / "file").write_bytes(b"bytes")
    (folder / "tmp.pid_1_probe" / "file").unlink()
    (folder / "tmp.pid_1_probe").rmdir()


def test_a_new_process_compiles_nothing_and_asks_for_no_change(warm: tuple[World, list[str]]) -> None:
    made, cubins = warm
    make_a_change_of_each_kind(made.folder("triton"))
    before = made.changes()
    assert all(before[name] for name in ("write", "create", "mkdir", "rmdir")), "changes are counted"
    assert made.run(TRITON, afresh=True) == {"compiled": 0, "cubins": cubins}
    assert made.changes() == before


def test_what_was_compiled_is_there_after_a_remount(warm: tuple[World, list[str]]) -> None:
    made, cubins = warm
    made.mount.remount()
    assert made.run(TRITON) == {"compiled": 0, "cubins": cubins}


def test_what_was_compiled_is_there_after_the_daemon_was_killed(warm: tuple[World, list[str]]) -> None:
    made, cubins = warm
    made.mount.kill()
    assert made.run(TRITON) == {"compiled": 0, "cubins": cubins}


def test_an_evicted_kernel_alone_is_compiled_again(warm: tuple[World, list[str]]) -> None:
    made, cubins = warm
    victim = next(made.folder("triton").iterdir()).name
    made.evict(f"triton/{victim}")
    assert victim not in {entry.name for entry in made.folder("triton").iterdir()}
    assert made.run(TRITON) == {"compiled": 1, "cubins": cubins}
    assert made.run(TRITON) == {"compiled": 0, "cubins": cubins}


def test_many_that_start_cold_at_once_get_the_same_kernels(warm: tuple[World, list[str]]) -> None:
    made, cubins = warm
    made.evict("triton/*")
    processes = [start_program(TRITON, made.environment) for _ in range(4)]
    for process in processes:
        assert finish_program(process)["cubins"] == cubins
    assert len(list(made.folder("triton").iterdir())) == KERNELS
    assert made.run(TRITON)["compiled"] == 0
