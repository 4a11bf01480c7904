"""Which globals a code object refers to, read from its bytecode, and which modules are libraries."""

from __future__ import annotations

import contextlib
import functools
import opcode
import re
import sys
import sysconfig
from collections.abc import Mapping
from types import CodeType, ModuleType

_LOAD_GLOBAL = opcode.opmap["LOAD_GLOBAL"]
_LOAD_ATTR = opcode.opmap["LOAD_ATTR"]
_EXTENDED_ARG = opcode.opmap["EXTENDED_ARG"]


def _either(*names: str) -> bytes:
    # A number above 255 names an operation that only the compiler uses inside; it stands in no code object.
    numbers = [opcode.opmap[name] for name in names if opcode.opmap.get(name, 256) < 256]
    return b"[" + b"".join(re.escape(bytes([number])) for number in numbers) + b"]"


# Every second byte of the bytecode is an operation. A global's load, then the attributes taken of it at once; between
# them stand inline caches and argument prefixes.
_BETWEEN = _either("CACHE", "EXTENDED_ARG") + b"*"
_STEPS = re.compile(_either("LOAD_ATTR", "LOAD_METHOD"), re.DOTALL)
_LOADS = re.compile(_either("LOAD_GLOBAL", "LOAD_NAME") + b"(?:" + _BETWEEN + _STEPS.pattern + b")*", re.DOTALL)
# Since 3.12 the lowest bit of LOAD_ATTR's argument tells a method call; LOAD_GLOBAL's has been a flag since 3.11.
_ATTR_SHIFT = 1 if sys.version_info >= (3, 12) else 0

Path = tuple[str, ...]


@functools.lru_cache(maxsize=4096)
def global_paths(code: CodeType) -> tuple[Path, ...]:
    """Every global that `code` and the code inside it load, each with the attributes taken of it at once, sorted.

    >>> import math
    >>> def area(r): return math.pi * square(r)
    >>> global_paths(area.__code__)
    (('math', 'pi'), ('square',))
    """
    found: set[Path] = set()
    _collect(code, found)
    return tuple(sorted(found))


def _collect(code: CodeType, found: set[Path]) -> None:
    raw = code.co_code
    operations, arguments = raw[::2], raw[1::2]
    names = code.co_names
    seen: set[bytes] = set()
    for load in _LOADS.finditer(operations):
        at, end = load.span()
        # A kernel says `tl.load` many times over; the same bytes are the same path, unless a prefix comes before them.
        same = raw[2 * at : 2 * end]
        if same in seen and operations[at - 1] != _EXTENDED_ARG:
            continue
        seen.add(same)
        path = [names[_argument(operations, arguments, at) >> (operations[at] == _LOAD_GLOBAL)]]
        for step in _STEPS.finditer(operations, at + 1, end):
            index = _argument(operations, arguments, step.start())
            path.append(names[index >> _ATTR_SHIFT if operations[step.start()] == _LOAD_ATTR else index])
        found.add(tuple(path))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _collect(constant, found)


def _argument(operations: bytes, arguments: bytes, at: int) -> int:
    """The argument of an instruction, with the prefixes before it that carry its upper bits."""
    argument, shift = arguments[at], 8
    while at > 0 and operations[at - 1] == _EXTENDED_ARG:
        at -= 1
        argument |= arguments[at] << shift
        shift += 8
    return argument


@functools.lru_cache(maxsize=4096)
def is_library_file(file: str) -> bool:
    """Whether a file or a folder belongs to something that is installed."""
    parts = file.split("/")
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    return any(file.startswith(folder + "/") for folder in _LIBRARY_FOLDERS)


_LIBRARY_FOLDERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def is_library(module_name: str, home: str = "") -> bool:
    """Whether a module is installed rather than part of the project whose top package is `home`.

    A library's functions are told by name and version: following them would hash half of torch.
    """
    if home and top_of(module_name) == home:
        return False
    module = sys.modules.get(module_name)
    if module is None or module_name == "__main__":
        return False
    file = getattr(module, "__file__", None)
    if file is not None:
        return is_library_file(file)
    if folders := list(getattr(module, "__path__", ())):
        return all(map(is_library_file, folders))
    # Built in, frozen, or made by an extension module, which is its parent.
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    if origin in ("built-in", "frozen") or top_of(module_name) in sys.stdlib_module_names:
        return True
    return is_library(module_name.rpartition(".")[0])


def top_of(module_name: str) -> str:
    """The top package of a dotted name."""
    return module_name.partition(".")[0]


def version_of(module_name: str) -> str:
    """The versions that a module and its packages state, or else those that were installed; nothing for Python's own.

    A namespace package such as `cuda` states none: what is inside it does.
    """
    top = top_of(module_name)
    stated = [getattr(sys.modules.get(top), "__version__", "")]
    while module_name != top:
        # Not through `getattr`, which would have a lazy module import what it has not.
        stated.append(getattr(sys.modules.get(module_name), "__dict__", {}).get("__version__", ""))
        module_name = module_name.rpartition(".")[0]
    told = [str(version) for version in stated if isinstance(version, str) and version]  # torch's is a subclass of text
    return " ".join(told) or installed_version(top, getattr(sys.modules.get(top), "__file__", None) is None)


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


def resolve(module: ModuleType, attributes: Path) -> tuple[ModuleType, Path]:
    """Follow `attributes` through submodules: the last module reached, and what is left."""
    while attributes and isinstance(inner := vars(module).get(attributes[0]), ModuleType):
        module, attributes = inner, attributes[1:]
    return module, attributes
