"""Which modules are installed libraries rather than part of the project, and which versions they have.

A library's objects count by name and version: following them would mean hashing half of torch.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from typing import Any, NamedTuple

from kcachefs.keys.asking import ask, dictionary_of, is_a
from kcachefs.keys.visibility import is_written_in_c


@functools.lru_cache(maxsize=4096)
def is_library_file(file: str) -> bool:
    """Whether a file or a folder belongs to an installed package."""
    parts = file.split("/")
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    return any(file.startswith(folder + "/") for folder in _LIBRARY_FOLDERS)


_OURS = __name__.partition(".")[0]
_LIBRARY_FOLDERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def is_library(module_name: str, home: str = "") -> bool:
    """Whether a module is installed. The package `home` never counts as installed: its own key was asked for.

    kcachefs itself always counts as installed, so that its objects count alike wherever it is imported from.
    """
    if home and top_of(module_name) == home:
        return False
    if top_of(module_name) == _OURS:
        return True
    module = sys.modules.get(module_name)
    if module is None or module_name in _SCRIPTS:
        return False
    file = dictionary_of(module).get("__file__")
    if file is not None:
        return is_library_file(file)
    place = place_of(module)
    if place.folders:
        return all(map(is_library_file, place.folders))
    # Built in, frozen, or made by an extension module, its parent.
    origin = ask(place.spec, "origin")
    if origin in ("built-in", "frozen") or top_of(module_name) in sys.stdlib_module_names:
        return True
    return is_library(module_name.rpartition(".")[0])


# The name of the main program's module in its own process, and in the processes that multiprocessing starts.
_SCRIPTS = frozenset({"__main__", "__mp_main__"})


def imported_name(module_name: str) -> str:
    """The name under which others import a module: the main program has one too."""
    if module_name not in _SCRIPTS:
        return module_name
    place = place_of(sys.modules.get(module_name))
    name = ask(place.spec, "name")  # set if it was started with `python -m`
    if type(name) is str:
        return name
    return os.path.splitext(os.path.basename(place.file))[0] if type(place.file) is str else "__main__"


def is_library_class(cls: type, home: str = "") -> bool:
    """Whether a class is one that a library offers, so that its name and version identify it.

    A class that a library makes on demand, as `make_dataclass` does, has a library's name and somebody else's content.
    """
    module = module_of(cls)
    if not is_library(module, home):
        return False
    # Some classes made by C code, such as jax.Array, keep the module they were first in as part of their name.
    return is_written_in_c(cls) or any(_offered(module, name) is cls for name in {cls.__qualname__, _last(cls)})


def _last(cls: type) -> str:
    return cls.__qualname__.rpartition(".")[2]


def module_of(cls: type) -> str:
    """The name of a class's module; empty where `__module__` is not text, as sympy's functions do."""
    name: object = cls.__module__
    return name if is_a(name, str) else ""


class Place(NamedTuple):
    """Where a module comes from: its file, the folders that a package searches, and how it was found."""

    file: str | None
    folders: list[str]
    spec: ModuleSpec | None


def place_of(module: object) -> Place:
    """Where a module comes from, by its own dictionary: a module may answer `getattr` with anything."""
    held = dictionary_of(module)
    return Place(held.get("__file__"), list(held.get("__path__") or ()), held.get("__spec__"))


def library_name(value: Any, home: str = "") -> tuple[str, str] | None:
    """The module and the name under which a library offers this very object, such as `numpy.add`."""
    names = [name for said in ("__qualname__", "__name__") if type(name := ask(value, said)) is str]
    for module_name in _homes(value):
        for name in names:
            if _offered(module_name, name) is value and is_library(module_name, home):
                return module_name, name
    return None


def _offered(module_name: str, name: str) -> Any:
    # Through dictionaries alone: asking a lazy module for a name would make it import things.
    found: Any = sys.modules.get(module_name)
    for part in name.split("."):
        found = dictionary_of(found).get(part)
    return found


def _homes(value: Any) -> Iterator[str]:
    owner = ask(value, "__self__")
    named = ask(owner, "__name__") if is_a(owner, types.ModuleType) else type(owner).__module__
    for name in (ask(value, "__module__"), type(value).__module__, named):
        if is_a(name, str):
            yield name


def top_of(module_name: str) -> str:
    """The top package of a dotted name."""
    return module_name.partition(".")[0]


def version_of(module_name: str) -> str:
    """The versions that a module and its packages state, or else the installed ones; empty for Python's own modules.

    A namespace package such as `cuda` states no version; the packages inside it do.
    """
    top = top_of(module_name)
    stated = []
    while module_name:
        # Not through `getattr`, which would make a lazy module import what it has not loaded yet.
        stated.append(dictionary_of(sys.modules.get(module_name)).get("__version__", ""))
        module_name = module_name.rpartition(".")[0]
    found = [str(version) for version in stated if is_a(version, str) and version]  # torch's is a subclass of str
    return " ".join(found) or installed_version(top, place_of(sys.modules.get(top)).file is None)


@functools.cache
def installed_version(top: str, is_namespace: bool) -> str:
    """The distributions that a top package comes from, with their versions."""
    if top in sys.stdlib_module_names:
        return ""
    from importlib.metadata import PackageNotFoundError, version  # takes longer to import than most keys to make

    if not is_namespace:
        with contextlib.suppress(PackageNotFoundError):
            return f"{top}-{version(top)}"
    return " ".join(sorted(f"{name}-{version(name)}" for name in set(_distributions().get(top, ())) if name))


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    from importlib.metadata import packages_distributions

    return packages_distributions()
