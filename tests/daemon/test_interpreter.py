"""Free-threaded Python is refused with one line, by the command and by the worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from kcachefs.daemon.interpreter import refuse_free_threading
from kcachefs.errors import FreeThreaded
from tests.cli.scene import Scene, scene

WITHOUT_GIL = "import sys; sys._is_gil_enabled = lambda: False; from kcachefs.cli import main; main()"
"""A kcachefs that believes that it runs without the GIL."""


def test_only_an_interpreter_without_the_gil_is_refused() -> None:
    refuse_free_threading(gil_enabled=True)
    refuse_free_threading()  # the interpreter that runs these tests
    with pytest.raises(FreeThreaded, match="PYTHON_GIL=1"):
        refuse_free_threading(gil_enabled=False)


@pytest.fixture(name="scene")
def a_scene() -> Iterator[Scene]:
    with scene() as place:
        yield place


@pytest.mark.parametrize("options", [[], ["-f"]])
def test_mount_refuses_it_in_one_line_and_touches_nothing(scene: Scene, options: list[str]) -> None:
    outcome = scene.run("mount", scene.mountpoint, *options, command=(sys.executable, "-c", WITHOUT_GIL))
    outcome.refused_with(4, "free-threaded Python", "PYTHON_GIL=1")
    assert not scene.mountpoint.exists()
    assert not scene.store.exists()


@pytest.mark.mount
def test_a_worker_refuses_it_too_and_the_mount_is_not_made(scene: Scene) -> None:
    """The command may run with the GIL and the worker without: an imported extension can switch it on."""
    scene.in_every_python(
        "import sys\nif 'kcachefs.daemon.worker' in sys.orig_argv: sys._is_gil_enabled = lambda: False\n"
    )
    outcome = scene.run("mount", scene.mountpoint)
    outcome.refused_with(4, "free-threaded Python", "PYTHON_GIL=1")
    assert scene.is_over()
