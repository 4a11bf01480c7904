"""Real NVRTC through cuda.core's program cache in the mount; compiling needs no GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.frameworks.conftest import ENGINES
from tests.frameworks.programs import NVRTC, finish_program, start_program
from tests.frameworks.worlds import World, files_below, world

PROGRAMS = 4


@pytest.fixture(scope="module", params=ENGINES)
def warm(request: pytest.FixtureRequest) -> Iterator[tuple[World, list[str]]]:
    with world(request.param) as made:
        cold = made.run(NVRTC, str(made.folder("cuda_core")), str(PROGRAMS))
        assert cold["made"] == PROGRAMS
        yield made, cold["cubins"]


def run(made: World) -> dict[str, object]:
    return made.run(NVRTC, str(made.folder("cuda_core")), str(PROGRAMS))


def test_a_new_process_compiles_nothing(warm: tuple[World, list[str]]) -> None:
    made, cubins = warm
    assert run(made) == {"made": 0, "cubins": cubins}


def test_an_evicted_program_alone_is_compiled_again(warm: tuple[World, list[str]]) -> None:
    made, cubins = warm
    victim = sorted(files_below(made.folder("cuda_core") / "entries"))[0]
    made.evict(f"cuda_core/entries/{victim}")
    assert run(made) == {"made": 1, "cubins": cubins}
    assert run(made) == {"made": 0, "cubins": cubins}


def test_two_processes_share_it(warm: tuple[World, list[str]]) -> None:
    made, cubins = warm
    made.evict("cuda_core/*")
    arguments = (str(made.folder("cuda_core")), str(PROGRAMS))
    processes = [start_program(NVRTC, made.environment, *arguments) for _ in range(2)]
    for process in processes:
        assert finish_program(process)["cubins"] == cubins
    assert run(made)["made"] == 0
    assert files_below(made.folder("cuda_core") / "tmp") == set()
