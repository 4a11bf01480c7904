"""Every Python version that the project supports: all modules and their examples, the keys, and a mount."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.pythons import OWN, ROOT, interpreter, supported

OTHERS = [version for version in supported() if version != OWN]

CHOSEN = [
    "tests/keys/test_functions.py",
    "tests/keys/test_golden.py",
    "tests/engines/test_posix_remount.py::test_a_tree_of_everything_is_the_same",
]
"""tests/keys/test_versions.py and test_properties.py compare the versions' keys in many more cases."""

IMPORTS = """
import doctest, importlib, pkgutil, sys
import kcachefs

# Not among what kcachefs needs to run, and so not installed here.
OPTIONAL = {"cuda", "cupy", "h11", "jax", "numba", "numpy", "pyfuse3", "textual", "torch", "triton"}
examples = 0
for found in pkgutil.walk_packages(kcachefs.__path__, "kcachefs."):
    if found.name.endswith("__main__"):
        continue
    try:
        module = importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in OPTIONAL:
            raise
    else:
        for test in doctest.DocTestFinder().find(module):
            if test.examples:  # doctest.testmod also runs the others, and asks for the times of all files before each
                done = doctest.DocTestRunner().run(test)
                assert done.failed == 0, test
                examples += done.attempted
assert examples > 20, examples
print(*sys.version_info[:2], sep=".")
"""


@pytest.fixture(params=OTHERS)
def python(request: pytest.FixtureRequest) -> tuple[str, Path]:
    return request.param, interpreter(request.param)


def run(python: Path, *arguments: str, cwd: Path, **environment: str) -> str:
    """What it prints. Nothing but PYTHONPATH says which kcachefs it imports: this checkout's."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    done = subprocess.run(
        [str(python), *arguments],
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_this_version_is_one_that_the_project_supports() -> None:
    assert OWN in supported()


def test_every_module_is_imported_and_its_examples_hold(python: tuple[str, Path], tmp_path: Path) -> None:
    version, program = python
    assert run(program, "-c", IMPORTS, cwd=tmp_path) == f"{version}\n"


@pytest.mark.mount
def test_keys_and_a_mount_work(python: tuple[str, Path]) -> None:
    """The tests of the keys, and those of what a mount keeps over a remount, run by the other Python."""
    _, program = python
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not triton", *CHOSEN]
    said = run(program, *command, cwd=ROOT, KCACHEFS_TEST_ROOTS="direct")
    assert " passed" in said.splitlines()[-1], said
