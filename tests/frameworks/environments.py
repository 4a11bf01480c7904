"""Virtual environments as images have them: real packages, installed without bytecode."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kcachefs.session import account
from tests.engines.mounting import Mount
from tests.frameworks.commands import kcachefs

IMPORTS = "import rich.text, mdurl"

_NOT_INSTALLED = {"__pycache__", "include", "test", "tests"}


class Environment:
    """A virtual environment with some packages of the one that runs the tests, and none of their bytecode."""

    distributions: Sequence[str] = ("rich", "pygments", "markdown-it-py", "mdurl")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        (folder / "bin").mkdir(parents=True)
        self.python.symlink_to(os.path.realpath(sys.executable))
        base = Path(sys.base_prefix) / "bin"
        version = ".".join(map(str, sys.version_info[:3]))
        (folder / "pyvenv.cfg").write_text(
            f"home = {base}\ninclude-system-site-packages = false\nversion = {version}\n"
        )
        self.site.mkdir(parents=True)
        for name in self.distributions:
            for file in importlib.metadata.distribution(name).files or ():
                # Pygments has 4 MB of lexers, which nobody imports here.
                is_lexer = file.parent.name == "lexers" and not file.name.startswith("_")
                if ".." not in file.parts and not _NOT_INSTALLED & set(file.parts) and not is_lexer:
                    self._install(file.locate(), self.site / file)

    @staticmethod
    def _install(source: Any, target: Path) -> None:
        """What has no bytecode is only linked: torch's libraries are large."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".py" or ".dist-info" in str(target):
            shutil.copy2(source, target)
        else:
            target.symlink_to(source)

    def set_times(self, seconds: int, *, step: int = 1) -> None:
        """As if it had been installed then, and that took `step` seconds a distribution; 0: as if by a builder that
        gives all files one time."""
        for path in self.site.rglob("*.py"):
            os.utime(path, (seconds, seconds))
        for number, path in enumerate(sorted(self.site.glob("*.dist-info")), 1):
            os.utime(path, (seconds + number * step, seconds + number * step))

    def with_library(self, folder: Path, seconds: int) -> None:
        """Have it use a Python's library there, one module of which has that time; the others are links."""
        library = folder / "lib" / self.site.parent.name
        library.mkdir(parents=True)
        real = Path(os.__file__).parent
        for path in real.iterdir():
            if path.name not in ("os.py", "site-packages", "dist-packages", "__pycache__"):
                (library / path.name).symlink_to(path)
        shutil.copy(real / "os.py", library)
        os.utime(library / "os.py", (seconds, seconds))
        configuration = self.folder / "pyvenv.cfg"
        text = re.sub("(?m)^home = .*", f"home = {folder / 'bin'}", configuration.read_text())
        configuration.write_text(text)

    def copied_to(self, folder: Path) -> Environment:
        """The same at another place."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return self._at(folder)

    def _at(self, folder: Path) -> Environment:
        there = Environment.__new__(Environment)
        there.folder, there.python = folder, folder / "bin" / "python"
        there.site = folder / self.site.relative_to(self.folder)
        return there

    @contextlib.contextmanager
    def shown_at(self, place: Path) -> Iterator[Environment]:
        """Within the scope it lies at that place, where a container would show it."""
        self.folder.rename(place)
        try:
            yield self._at(place)
        finally:
            place.rename(self.folder)

    def run(
        self, code: str = IMPORTS, *options: str, env: dict[str, str] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run code in it, with these variables and no others that concern bytecode."""
        command = [str(self.python), *options, "-c", code]
        return subprocess.run(
            command, env={**plain(), **(env or {})}, capture_output=True, text=True, timeout=120, check=check
        )

    def compile(self) -> None:
        """What pip does behind an installation: bytecode beside every source."""
        self.run(f"import compileall; compileall.compile_dir({str(self.site)!r}, quiet=2)")


def plain() -> dict[str, str]:
    """The environment of a shell in which nobody has said anything about Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def compiled(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The modules that a Python with -v had to compile."""
    return [line for line in done.stderr.splitlines() if line.startswith("# code object from /")]


def variables(mount: Mount, environment: Environment) -> dict[str, str]:
    """What `kcachefs env` says in a shell with that environment's Python."""
    told = kcachefs("env", "--mount", mount.mountpoint, "--python", str(environment.python), "--json").stdout
    return {name: value for name, value in json.loads(told).items() if name.startswith("PYTHON")}


def entries(mount: Mount) -> dict[str, str]:
    """The entries of bytecode: their names by their paths."""
    account.read(mount.mountpoint)  # seals what waits
    found = json.loads(kcachefs("ls", "--mount", mount.mountpoint, "python", "--json").stdout)
    return {one["path"]: one["name"] for one in found}


def warm(mount: Mount, *arguments: str | Path) -> dict[str, list[str]]:
    """What `kcachefs warm` compiled, and what it knew."""
    told: dict[str, list[str]] = json.loads(kcachefs("warm", "--mount", mount.mountpoint, "--json", *arguments).stdout)
    return told


@contextlib.contextmanager
def half_imported(
    environment: Environment, values: dict[str, str], first: str = "import rich", rest: str = IMPORTS
) -> Iterator[None]:
    """Within the scope a program has imported a part of what it needs; then it imports the rest without a complaint."""
    code = f"import sys; {first}; print('half', flush=True); sys.stdin.readline(); {rest}; print('whole')"
    with subprocess.Popen(
        [str(environment.python), "-W", "error", "-c", code],
        env=values,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        yield
        said, _ = process.communicate("go on\n", timeout=120)
    assert (process.returncode, said) == (0, "whole\n")
