"""The other Python versions that the project supports, as far as scripts/test has set them up."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests import pythons
from tests.pythons import ROOT as ROOT

# Every version that the project supports, besides the one that runs the tests.
VERSIONS = [version for version in pythons.supported() if version != pythons.OWN]


class Interpreter:
    """A Python that has the packages which the library needs, and not the project itself."""

    def __init__(self, program: Path) -> None:
        self.program = program

    def run(self, *arguments: str, root: Path = ROOT, **environment: str) -> str:
        """What `python arguments` prints, run in no folder of the project, with the project at `root`."""
        told = {"PATH": os.environ["PATH"], "HOME": "/", "PYTHONPATH": str(root), **environment}
        command = [str(self.program), *arguments]
        ran = subprocess.run(command, env=told, cwd="/", capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


def interpreter(version: str) -> Interpreter:
    """The interpreter of a version; skips the test where there is none."""
    return Interpreter(pythons.interpreter(version))
