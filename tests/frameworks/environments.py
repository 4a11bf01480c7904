"""Virtual environments as images have them: real packages, installed without bytecode."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PACKAGES = ("rich", "pygments", "markdown_it", "mdurl")
DISTRIBUTIONS = ("rich", "pygments", "markdown_it_py", "mdurl")
SITE = Path(sysconfig.get_paths()["purelib"])
IMPORTS = "import rich.table, markdown_it"


class Environment:
    """A virtual environment with some packages of the one that runs the tests, and none of their bytecode."""

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
        without = shutil.ignore_patterns("__pycache__")
        metadata = [path for name in DISTRIBUTIONS for path in SITE.glob(f"{name}-*.dist-info")]
        assert len(metadata) == len(DISTRIBUTIONS)
        for source in (*(SITE / name for name in PACKAGES), *metadata):
            shutil.copytree(source, self.site / source.name, ignore=without)

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
