"""Evaluates the table of cases in one process and prints the keys as JSON: `python -m tests.keys.cases.runner FOLDER`.

Sources are written below FOLDER, as a checkout would lie there, and imported from it. Cases that change nothing share
what they import.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import itertools
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from kcachefs import keys
from kcachefs.errors import Unkeyable, UsageError
from tests.keys.cases import CASES
from tests.keys.cases.case import Case

_GIVEN = {name: getattr(keys, name) for name in keys.__all__}

# Keys of sources that many cases edit, made once.
_before: dict[tuple[Any, ...], str] = {}
# The folder and the modules of sources that many cases only look at.
_looked_at: dict[tuple[Any, ...], tuple[Path, dict[str, ModuleType]]] = {}


def main() -> None:
    warnings.simplefilter("ignore")
    sys.dont_write_bytecode = True
    gc.set_threshold(100_000, 50, 100)  # the libraries are millions of objects that stay
    root = Path(sys.argv[1]).resolve()
    names = set(sys.argv[2:])
    told = {}
    for number, case in enumerate(CASES):
        if names and not any(case.name.startswith(name) for name in names):
            continue
        if all(importlib.util.find_spec(package) for package in case.needs):
            try:
                told[case.name] = evaluate(case, root / f"case{number}")
            except Exception as error:
                told[case.name] = [f"failed: {type(error).__name__}: {error}"] * 2
    json.dump(told, sys.stdout)


def evaluate(case: Case, folder: Path) -> list[str]:
    """The two keys of a case, or why there is none."""
    if not case.edits:
        with _imported(case.sources, folder / "one") if case.then else _shared(case.sources, folder) as module:
            before = _key(case.before, module)
            exec(compile(case.then, "<then>", "exec"), vars(module))
            return [before, _key(case.after, module)]
    origin = (case.before, *case.sources.items())
    if origin not in _before:
        with _imported(case.sources, folder / "one") as module:
            _before[origin] = _key(case.before, module)
    with _imported({**case.sources, **case.edits}, folder / "two") as module:
        exec(compile(case.then, "<then>", "exec"), vars(module))
        return [_before[origin], _key(case.after, module)]


def _key(expression: str, module: ModuleType) -> str:
    try:
        return str(eval(expression, {**_GIVEN, **vars(module)}))
    except (Unkeyable, UsageError) as error:
        return f"refused: {error}"
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"


@contextlib.contextmanager
def _shared(sources: dict[str, str], folder: Path) -> Iterator[ModuleType]:
    """The module `main` of the sources, imported by the first case that has them."""
    origin = tuple(sources.items())
    if origin not in _looked_at:
        _write(sources, folder)
        _looked_at[origin] = (folder, {})
    place, modules = _looked_at[origin]
    with _inside(place, modules):
        yield importlib.import_module("main")


@contextlib.contextmanager
def _imported(sources: dict[str, str], folder: Path) -> Iterator[ModuleType]:
    """The module `main` of the sources, written to a folder that is the current one and on the path meanwhile."""
    _write(sources, folder)
    with _inside(folder, {}):
        yield importlib.import_module("main")


def _write(sources: dict[str, str], folder: Path) -> None:
    for name, text in sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@contextlib.contextmanager
def _inside(folder: Path, modules: dict[str, ModuleType]) -> Iterator[None]:
    """Be in the folder, with modules of it that were imported before; those that are imported meanwhile are added."""
    last, before, own = next(reversed(sys.modules)), os.getcwd(), str(folder)
    sys.modules.update(modules)
    sys.path.insert(0, own)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        sys.path.remove(own)
        for place in [place for place in sys.path_importer_cache if place.startswith(own)]:
            del sys.path_importer_cache[place]  # none may say what was in a folder before
        for name in list(itertools.takewhile(lambda name: name != last, reversed(sys.modules))):
            module = sys.modules[name]
            held = getattr(module, "__dict__", {})
            places = [held.get("__file__") or "", *(held.get("__path__") or ())]
            if any(place.startswith(own) for place in places):
                modules[name] = sys.modules.pop(name)


if __name__ == "__main__":
    main()
