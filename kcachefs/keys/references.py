"""Which globals a code object refers to, read from its bytecode."""

from __future__ import annotations

import functools
import opcode
import re
import sys
from types import CodeType

_LOAD_GLOBAL = opcode.opmap["LOAD_GLOBAL"]
_LOAD_ATTR = opcode.opmap["LOAD_ATTR"]
_EXTENDED_ARG = opcode.opmap["EXTENDED_ARG"]


def _either(*names: str) -> bytes:
    # Numbers above 255 belong to operations internal to the compiler; no code object contains them.
    numbers = [opcode.opmap[name] for name in names if opcode.opmap.get(name, 256) < 256]
    return b"[" + b"".join(re.escape(bytes([number])) for number in numbers) + b"]"


# Every second byte of the bytecode is an operation. A path is the load of a global and then of attributes taken
# directly from it, with inline caches and argument prefixes between them.
_BETWEEN = _either("CACHE", "EXTENDED_ARG") + b"*"
_STEPS = re.compile(_either("LOAD_ATTR", "LOAD_METHOD"), re.DOTALL)
_HEADS = _either("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_LOADS = re.compile(_HEADS + b"(?:" + _BETWEEN + _STEPS.pattern + b")*", re.DOTALL)
# Since 3.12 the lowest bit of LOAD_ATTR's argument marks a method call; LOAD_GLOBAL's has been a flag since 3.11.
_ATTR_SHIFT = 1 if sys.version_info >= (3, 12) else 0

Path = tuple[str, ...]


@functools.lru_cache(maxsize=4096)
def global_paths(code: CodeType) -> tuple[Path, ...]:
    """Every global that `code` and the code inside it load, each with the attributes taken directly from it, sorted.

    >>> import math
    >>> def area(r): return math.pi * square(r)
    >>> global_paths(area.__code__)
    (('math', 'pi'), ('square',))
    """
    found: set[Path] = set()
    _collect(code, found)
    return tuple(sorted(found))


@functools.lru_cache(maxsize=4096)
def names_in(code: CodeType) -> frozenset[str]:
    """Every name that `code` and the code inside it load as a global, an attribute or a module."""
    return frozenset(code.co_names).union(*(names_in(item) for item in code.co_consts if isinstance(item, CodeType)))


def _collect(code: CodeType, found: set[Path]) -> None:
    raw = code.co_code
    operations, arguments = raw[::2], raw[1::2]
    names = code.co_names
    seen: set[bytes] = set()
    for load in _LOADS.finditer(operations):
        at, end = load.span()
        # A kernel says `tl.load` many times over. Equal bytes mean an equal path, unless a prefix comes before them.
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
