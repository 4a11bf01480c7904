"""What code imports as it runs, told without importing it.

A library counts by the version that is installed. A module of the project counts by its file, and by all that it
imports in turn. Whether a module has been imported already does not show: else the first call of a function, which
imports it, would have another key than the second.
"""

from __future__ import annotations

import dis
import functools
import importlib.util
import itertools
import os
import sys
from collections.abc import Collection, Iterator
from importlib.machinery import ModuleSpec
from types import CodeType
from typing import Any, NamedTuple

from blake3 import blake3

from kcachefs.errors import Unkeyable
from kcachefs.keys.references import installed_version, is_library, is_library_file, top_of

_IMPORT_NAME = dis.opmap["IMPORT_NAME"]

# The digest of each module's file when it was first seen, as long as the module is loaded from the same spec.
_first_seen: dict[str, tuple[ModuleSpec | None, bytes]] = {}
_statements_in: dict[bytes, tuple[_Statement, ...]] = {}


class _Statement(NamedTuple):
    """One import: the module's name with a dot for each level, and which names may be modules inside it."""

    name: str
    taken: tuple[str, ...]
    # `import a.b` gives `a`, so that names may be taken from any package on the way; `from a.b import c` does not.
    is_plain: bool


class _Module(NamedTuple):
    name: str
    file: str | None
    folders: list[str]
    is_library: bool
    spec: ModuleSpec | None


def imported(code: CodeType, package: str, home: str, ignore: Collection[str]) -> dict[str, tuple[Any, ...]]:
    """What tells each module that `code` of `package` imports, by name: plain data, whose first item is its kind.

    `home` is a package that is followed though it may be installed; modules in `ignore` are left out.
    """
    told: dict[str, tuple[Any, ...]] = {}
    search = _Search(home)
    pending = [(package, statement) for statement in _statements(code)]
    while pending:
        for name, module in search.reached(*pending.pop()):
            if name in told or any(name == left or name.startswith(f"{left}.") for left in ignore):
                continue
            if module is None:
                told[name] = ("missing",)
            elif module.is_library and top_of(name) != home:
                told[name] = ("library", installed_version(top_of(name), module.file is None))
            elif module.file is None and module.folders:
                told[name] = ("namespace",)
            else:
                content = _content(module)
                told[name] = ("module", *_digests(module, content))
                if not module.is_library:
                    inside = name if module.folders else name.rpartition(".")[0]
                    pending += [(inside, inner) for inner in _statements_of_file(module, content)]
    return told


class _Search:
    """The modules that statements lead to, each looked for once and nothing below a library."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._done: set[tuple[str, _Statement]] = set()
        self._known: dict[str, _Module | None] = {}

    def reached(self, package: str, statement: _Statement) -> Iterator[tuple[str, _Module | None]]:
        """The modules that a statement in `package` imports, and those that its names may mean."""
        if (package, statement) in self._done:
            return
        self._done.add((package, statement))
        try:
            name = importlib.util.resolve_name(statement.name, package or None)
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

    def _inside(self, package: _Module, statement: _Statement) -> Iterator[tuple[str, _Module]]:
        for name in statement.taken:
            module = self._find(f"{package.name}.{name}", package.folders)
            if module is not None:
                yield module.name, module
                if module.folders and statement.is_plain:
                    yield from self._inside(module, statement)

    def _find(self, name: str, folders: list[str] | None) -> _Module | None:
        if name not in self._known:
            self._known[name] = _found(name, folders)
        return self._known[name]


@functools.lru_cache(maxsize=4096)
def _statements(code: CodeType) -> tuple[_Statement, ...]:
    """The imports of `code` and of the code inside it."""
    found: list[_Statement] = []
    if _IMPORT_NAME in code.co_code[::2]:
        # The level and the names wanted are loaded right before.
        told = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
        for level, wanted, step in zip(told, told[1:], told[2:], strict=False):
            if step.opcode == _IMPORT_NAME:
                taken = wanted.argval or code.co_names
                found.append(_Statement("." * level.argval + step.argval, taken, not wanted.argval))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _statements(constant)
    return tuple(found)


def _statements_of_file(module: _Module, content: bytes) -> tuple[_Statement, ...]:
    if module.file is None or not module.file.endswith(".py"):
        return ()
    digest = blake3(content).digest()
    if digest not in _statements_in:
        try:
            _statements_in[digest] = _statements(compile(content, module.file, "exec", dont_inherit=True))
        except (SyntaxError, ValueError):  # importing it would fail
            _statements_in[digest] = ()
    return _statements_in[digest]


def _found(name: str, folders: list[str] | None) -> _Module | None:
    """The module of that name, as it is loaded or as `import` would find it in the `folders` of its package."""
    loaded = sys.modules.get(name)
    # What an extension module makes inside itself is told with it, and could not be found before it is loaded.
    if folders == [] and getattr(loaded, "__file__", None) is None:
        return None
    if loaded is not None:
        file, inner = getattr(loaded, "__file__", None), list(getattr(loaded, "__path__", ()))
        return _Module(name, file, inner, is_library(name), getattr(loaded, "__spec__", None))
    try:
        specs = (finder.find_spec(name, folders) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
    except KeyError:
        # Python makes the path of a namespace package of its parent's, which is not imported.
        spec = ModuleSpec(name, None, is_package=True)
        within = [os.path.join(folder, name.rpartition(".")[2]) for folder in folders or ()]
        spec.submodule_search_locations = [folder for folder in within if os.path.isdir(folder)]
    if spec is None:
        return None
    file, inner = spec.origin if spec.has_location else None, list(spec.submodule_search_locations or ())
    places = [file] if file else inner
    is_installed = all(map(is_library_file, places)) if places else spec.origin in ("built-in", "frozen")
    return _Module(name, file, inner, is_installed, None)


def _content(module: _Module) -> bytes:
    try:
        with open(module.file or "", "rb") as file:
            return file.read()
    except OSError:
        raise Unkeyable(f"module {module.name} has no file to tell it by; name it in `ignore`") from None


def _digests(module: _Module, content: bytes) -> tuple[bytes, bytes]:
    """The digest of the file when the module was first seen, and the present one.

    They differ for a file that is edited after its import. The code that runs is then not what the file says, and the
    key is one that no other process has.
    """
    present = blake3(content).digest()
    spec, first = _first_seen.get(module.name, (None, present))
    if module.spec is None or (spec is not None and spec is not module.spec):
        first = present
    _first_seen[module.name] = (module.spec, first)
    return first, present
