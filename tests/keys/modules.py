"""Modules written to disk and imported, as a user's kernels are."""

from __future__ import annotations

import importlib.util
import itertools
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

    def forget(self) -> None:
        for name in self._names:
            sys.modules.pop(name, None)


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[Modules]:
    made = Modules(tmp_path)
    yield made
    made.forget()
