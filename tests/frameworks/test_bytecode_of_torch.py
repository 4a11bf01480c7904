"""Real torch in an environment without bytecode, whose bytecode is kept in a mount."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.engines.mounting import Mount, temporary_folder
from tests.frameworks.commands import kcachefs
from tests.frameworks.environments import (
    Environment,
    compiled,
    entries,
    half_imported,
    plain,
    variables,
    with_requirements,
)
from tests.pythons import needs_torch

pytestmark = [pytest.mark.mount, needs_torch]
PROCESSES = 4


class TorchEnvironment(Environment):
    """One that can import torch."""

    distributions = with_requirements("torch", "numpy")


@pytest.fixture(scope="module")
def environment() -> Iterator[TorchEnvironment]:
    with temporary_folder() as folder:
        made = TorchEnvironment(folder / "venv")
        made.set_times(1_700_000_001)
        yield made


@pytest.fixture(scope="module")
def shared(environment: TorchEnvironment) -> Iterator[Mount]:
    """One mount for all of them: to compile torch's modules takes seconds."""
    with temporary_folder() as folder, Mount(folder / "mount", folder / "store", "direct") as mount:
        yield mount


def test_several_at_once_on_an_empty_mount_say_nothing_and_the_next_compiles_nothing(
    shared: Mount, environment: TorchEnvironment
) -> None:
    values = {**plain(), **variables(shared, environment)}
    command = [str(environment.python), "-W", "error", "-c", "import torch; print(torch.ones(2).sum().item())"]
    processes = [
        subprocess.Popen(command, env=values, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for _ in range(PROCESSES)
    ]
    said = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES
    assert said == [b"2.0\n"] * PROCESSES
    assert compiled(environment.run("import torch", "-v", env=values)) == []
    assert not list(environment.site.rglob("__pycache__"))


def test_two_environments_with_the_same_paths_do_not_thrash(shared: Mount, environment: TorchEnvironment) -> None:
    seen = []
    for installed in (1_700_000_002, 1_700_000_001, 1_700_000_002, 1_700_000_001):
        environment.set_times(installed)
        values = variables(shared, environment)
        seen.append(len(compiled(environment.run("import torch", "-v", env=values))))
    assert seen[0] > 500
    assert seen[2:] == [0, 0]


def test_an_eviction_in_the_middle_of_an_import_harms_nobody(shared: Mount, environment: TorchEnvironment) -> None:
    values = {**plain(), **variables(shared, environment)}
    environment.run("import torch", env=values)
    with half_imported(environment, values, "import torch", "import torch._dynamo"):
        assert any("torch" in name for name in entries(shared).values())
        kcachefs("evict", "--mount", shared.mountpoint, "python/*")
        assert not entries(shared)
