"""The modules that code imports as it runs, found without importing them.

A library counts by its installed version. A module of the project counts by its file, and by everything that it imports
in turn. Whether a module has been imported already does not count: otherwise the first call of a function, which
imports it, would have a different key from the second.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import Collection, Iterator
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from blake3 import blake3

from kcachefs.errors import Unkeyable
from kcachefs.keys.files import module_digests, module_file
from kcachefs.keys.import_statements import Statement, import_functions, statements
from kcachefs.keys.libraries import installed_version, is_library, is_library_file, place_of, top_of

_statements_in: dict[bytes, tuple[Statement, ...]] = {}


class _Module(NamedTuple):
    name: str
    file: str | None
    folders: list[str]
    is_library: bool
    spec: ModuleSpec | None


def imported(function: FunctionType, home: str, ignore: Collection[str]) -> dict[str, tuple[Any, ...]]:
    """Each module that `function` imports, by name: plain data that identifies it, with its kind first.

    `home` is a package that is followed even if it is installed; modules in `ignore` are left out.
    """
    scope = function.__globals__
    name = str(scope.get("__name__", ""))
    package = scope.get("__package__") or (name if "__path__" in scope else name.rpartition(".")[0])
    found = statements(function.__code__, import_functions(function.__code__, scope))
    return _follow([(package, statement) for statement in found], home, ignore) if found else {}


def imported_module(module: ModuleType, home: str, ignore: Collection[str]) -> dict[str, tuple[Any, ...]]:
    """A loaded module, each module in it if it is a package, and each module that any of these imports, by name."""
    name = module.__name__
    file, folders, spec = place_of(module)
    if sys.modules.get(name) is module:
        parent = sys.modules.get(name.rpartition(".")[0])
        if file is None and not folders and place_of(parent).file is None:
            raise Unkeyable(f"module {name} has no file to read; name it in `ignore`")
        return _follow([("", Statement(name, ("*",), False))], home, ignore)
    # Loaded by hand: `import` would not find it.
    loose = _Module(name, file, folders, False, spec)
    content = module_file(name, file)
    told = _follow([(_package(loose), inner) for inner in _statements_of_file(loose, content)], home, ignore)
    return {**told, name: _told(loose, content)}


def _follow(pending: list[tuple[str, Statement]], home: str, ignore: Collection[str]) -> dict[str, tuple[Any, ...]]:
    told: dict[str, tuple[Any, ...]] = {}
    search = _Search(home)
    while pending:
        package, statement = pending.pop()
        if statement.name is None and statement.called not in ignore:
            raise Unkeyable(
                f"{statement.where} calls {statement.called} for a module whose name is not written there; write it as "
                f"a constant, or put {statement.called!r} into `ignore` and declare what it imports with `depends`"
            )
        for name, module in search.reached(package, statement):
            if name in told or any(name == left or name.startswith(f"{left}.") for left in ignore):
                continue
            if module is None:
                told[name] = ("missing",)
            elif module.is_library and top_of(name) != home:
                told[name] = ("library", installed_version(top_of(name), module.file is None))
            elif module.file is None and module.folders:
                told[name] = ("namespace",)
            else:
                content = module_file(module.name, module.file)
                told[name] = _told(module, content)
                if module.is_library:  # the home package: its version stands for what it imports
                    told[name] += (installed_version(top_of(name), False),)
                if not module.is_library:
                    pending += [(_package(module), inner) for inner in _statements_of_file(module, content)]
    return told


def _told(module: _Module, content: bytes) -> tuple[Any, ...]:
    # `python -O` leaves assertions out of modules.
    return ("module", sys.flags.optimize, *module_digests(module.name, module.spec, content))


def _package(module: _Module) -> str:
    """The package that relative imports in a module are relative to."""
    return module.name if module.folders else module.name.rpartition(".")[0]


class _Search:
    """The modules that statements lead to, each looked for once and nothing below a library."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._done: set[tuple[str, Statement]] = set()
        self._known: dict[str, _Module | None] = {}

    def reached(self, package: str, statement: Statement) -> Iterator[tuple[str, _Module | None]]:
        """The modules that a statement in `package` imports, and those that its names may mean."""
        if (package, statement) in self._done or statement.name is None:
            return
        self._done.add((package, statement))
        try:
            name = importlib.util.resolve_name(statement.name, statement.package or package or None)
        except ImportError:
            return
        folders: list[str] | None = None
        for inner in itertools.accumulate(name.split("."), "{}.{}".format):
            module = self._find(inner, folders)
            yield inner, module
            if module is None or (module.is_library and top_of(name) != self._home):
                return
            folders = module.folders
            if folders and (statement.is_plain or inner == name):
                yield from self._inside(module, statement)

    def _inside(self, package: _Module, statement: Statement) -> Iterator[tuple[str, _Module]]:
        for name in self._names(package, statement):
            module = self._find(f"{package.name}.{name}", package.folders)
            if module is not None:
                yield module.name, module
                if module.folders and (statement.is_plain or statement.taken == ("*",)):
                    yield from self._inside(module, statement)

    @staticmethod
    def _names(package: _Module, statement: Statement) -> Iterator[str]:
        """The names that are taken from a package; every module in it, where the package is passed on as a whole."""
        if statement.taken != ("*",):
            yield from statement.taken
            return
        for folder in package.folders:
            for child in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
                name, _, _ = child.partition(".")
                if name.isidentifier() and name not in ("__init__", "__pycache__", "__main__"):
                    yield name

    def _find(self, name: str, folders: list[str] | None) -> _Module | None:
        if name not in self._known:
            self._known[name] = _locate(name, folders)
        return self._known[name]


def _statements_of_file(module: _Module, content: bytes) -> tuple[Statement, ...]:
    if module.file is None or not module.file.endswith(".py"):
        return ()
    digest = blake3(content).digest()
    if digest not in _statements_in:
        try:
            _statements_in[digest] = statements(compile(content, module.file, "exec", dont_inherit=True))
        except (SyntaxError, ValueError):  # importing it would fail
            _statements_in[digest] = ()
    return _statements_in[digest]


def _locate(name: str, folders: list[str] | None) -> _Module | None:
    """The module of that name, as it was loaded or as `import` would find it in the `folders` of its package."""
    loaded = sys.modules.get(name)
    # Modules that an extension module creates inside itself count with it, and could not be found before it is loaded.
    if folders == [] and place_of(loaded).file is None:
        return None
    if loaded is not None:
        file, inner, spec = place_of(loaded)
        return _Module(name, file, inner, is_library(name), spec)
    try:
        specs = (finder.find_spec(name, folders) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
    except KeyError:
        # Python derives the path of a namespace package from its parent's, and the parent is not imported.
        spec = ModuleSpec(name, None, is_package=True)
        within = [os.path.join(folder, name.rpartition(".")[2]) for folder in folders or ()]
        spec.submodule_search_locations = [folder for folder in within if os.path.isdir(folder)]
    if spec is None:
        return None
    file, inner = spec.origin if spec.has_location else None, list(spec.submodule_search_locations or ())
    places = [file] if file else inner
    is_installed = all(map(is_library_file, places)) if places else spec.origin in ("built-in", "frozen")
    return _Module(name, file, inner, is_installed, None)
