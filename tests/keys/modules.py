"""Modules written to disk and imported, as a user's kernels are."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

_numbers = itertools.count()


class Modules:
    """Imports source text from real files, each time anew, under one module name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: set[str] = set()

    def load(self, text: str, name: str = "user_kernels") -> ModuleType:
        path = self.folder / f"{next(_numbers)}" / f"{name}.py"
        path.parent.mkdir()
        lines = text.lstrip("\n").split("\n")
        margin = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        path.write_text("\n".join(line.removeprefix(margin) for line in lines))
        return self.load_file(path, name)

    def load_file(self, path: Path, name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        self._names.add(name)
        spec.loader.exec_module(module)
        return module

    def write(self, name: str, text: str) -> Path:
        """Puts a module where `import` finds it, its packages without an `__init__.py`, and forgets the one before."""
        path = self.folder.joinpath("importable", *name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if (root := str(self.folder / "importable")) not in sys.path:
            sys.path.insert(0, root)
        parts = name.split(".")
        for upto in range(1, len(parts) + 1):
            sys.modules.pop(".".join(parts[:upto]), None)
            self._names.add(".".join(parts[:upto]))
        # Bytecode is told stale by time and size, which a quick edit may not change.
        shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)
        importlib.invalidate_caches()
        return path

    def forget(self) -> None:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(self.folder / "importable"))
        for name in self._names:
            sys.modules.pop(name, None)


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[Modules]:
    made = Modules(tmp_path)
    yield made
    made.forget()
