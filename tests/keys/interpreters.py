"""The other Python versions on this machine, each with the few packages that the library half of kcachefs needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Every version that the project supports, besides the one that runs the tests.
VERSIONS = [minor for minor in ("3.11", "3.12", "3.13", "3.14") if minor != f"3.{sys.version_info.minor}"]
# What `kcachefs.keys` and `kcachefs.caches` import.
PACKAGES = ("blake3>=1.0.5", "msgspec>=0.19", "platformdirs>=4")


class Interpreter:
    """A Python with the packages on its path."""

    def __init__(self, program: Path, packages: Path) -> None:
        self.program = program
        self.packages = packages

    def run(self, *arguments: str, root: Path = ROOT, **environment: str) -> str:
        """What `python arguments` prints, run in no folder of the project, with the project at `root`."""
        path = os.pathsep.join([str(root), str(self.packages)])
        told = {"PATH": os.environ["PATH"], "HOME": str(self.packages), "PYTHONPATH": path, **environment}
        command = [str(self.program), *arguments]
        ran = subprocess.run(command, env=told, cwd="/", capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


def interpreter(minor: str, folder: Path) -> Interpreter:
    """The interpreter of a version; skips the test where there is none, or where its packages cannot be had.

    Packages are installed once into `folder`, and stay there for the next run.
    """
    program = _program(minor)
    if program is None:
        pytest.skip(f"Python {minor} is not on this machine, so it was not tested")
    packages = folder / f"{minor}-{'-'.join(PACKAGES)}".replace(">=", "")
    if not packages.is_dir():
        _install(program, packages)
    return Interpreter(program, packages)


def _program(minor: str) -> Path | None:
    """The newest `pythonX.Y` of pyenv that runs, or else the one on the PATH."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    of_pyenv = sorted(root.glob(f"versions/{minor}.*/bin/python{minor}"), key=lambda path: path.parts[-3])
    on_path = shutil.which(f"python{minor}")
    for program in [*reversed(of_pyenv), *([Path(on_path)] if on_path else [])]:
        ran = subprocess.run([program, "-c", "pass"], capture_output=True, check=False)
        if ran.returncode == 0:
            return program
    return None


def _install(program: Path, packages: Path) -> None:
    with tempfile.TemporaryDirectory(dir=packages.parent) as temporary:
        made = Path(temporary, "packages")
        command = [sys.executable, "-m", "pip", "--python", str(program), "install", "-q", "--only-binary", ":all:"]
        ran = subprocess.run(
            [*command, "--target", str(made), *PACKAGES], capture_output=True, text=True, check=False, timeout=240
        )
        if ran.returncode != 0:
            last = ran.stderr.strip().rpartition("\n")[2]
            pytest.skip(f"the packages for {program.name} cannot be installed, so it was not tested: {last}")
        if not packages.is_dir():
            made.rename(packages)
