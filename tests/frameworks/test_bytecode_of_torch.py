"""Real torch in an environment without bytecode, whose bytecode is kept in a mount."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.engines.mounting import Mount, temporary_folder
from tests.frameworks.commands import kcachefs
from tests.frameworks.environments import Environment, compiled, entries, half_imported, plain, variables
from tests.pythons import needs_torch

pytestmark = [pytest.mark.mount, needs_torch]
PROCESSES = 2
"""test_bytecode.py has more of them, with smaller packages: to compile torch's modules takes seconds."""


class TorchEnvironment(Environment):
    """One that can import torch. What else torch requires is needed by its compiler alone."""

    distributions = ("torch", "numpy", "typing-extensions")


@pytest.fixture(scope="module")
def environment() -> Iterator[TorchEnvironment]:
    with temporary_folder() as folder:
        made = TorchEnvironment(folder / "venv")
        made.set_times(1_700_000_001)
        yield made


@pytest.fixture(scope="module")
def shared(environment: TorchEnvironment) -> Iterator[tuple[Mount, list[tuple[int | None, bytes]]]]:
    """One mount for all of them, which was empty when several imported torch at once; and how those ended."""
    with temporary_folder() as folder, Mount(folder / "mount", folder / "store", "direct") as mount:
        values = {**plain(), **variables(mount, environment)}
        command = [str(environment.python), "-W", "error", "-c", "import torch; print(torch.ones(2).sum().item())"]
        processes = [
            subprocess.Popen(command, env=values, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for _ in range(PROCESSES)
        ]
        said = [process.communicate(timeout=240)[0] for process in processes]
        yield mount, [(process.returncode, words) for process, words in zip(processes, said, strict=True)]


def test_several_at_once_on_an_empty_mount_say_nothing_and_the_next_compiles_nothing(
    shared: tuple[Mount, list[tuple[int | None, bytes]]], environment: TorchEnvironment
) -> None:
    mount, ended = shared
    assert ended == [(0, b"2.0\n")] * PROCESSES
    assert compiled(environment.run("import torch", "-v", env=variables(mount, environment))) == []
    assert not list(environment.site.rglob("__pycache__"))


def test_two_environments_with_the_same_paths_do_not_thrash(
    shared: tuple[Mount, list[tuple[int | None, bytes]]], environment: TorchEnvironment
) -> None:
    seen = []
    for installed in (1_700_000_002, 1_700_000_001, 1_700_000_002, 1_700_000_001):
        environment.set_times(installed)
        values = variables(shared[0], environment)
        seen.append(len(compiled(environment.run("import numpy", "-v", env=values))))
    assert seen[0] > 100
    assert seen[1:] == [0, 0, 0], "the first has been compiled with torch"


def test_an_eviction_in_the_middle_of_an_import_harms_nobody(
    shared: tuple[Mount, list[tuple[int | None, bytes]]], environment: TorchEnvironment
) -> None:
    mount, _ = shared
    values = {**plain(), **variables(mount, environment)}
    with half_imported(environment, values, "import torch", "import torch.onnx, torch.ao.ns.fx.utils"):
        assert any("torch" in name for name in entries(mount).values())
        kcachefs("evict", "--mount", mount.mountpoint, "python/*")
        assert not entries(mount)
