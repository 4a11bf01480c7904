"""The imports in a code object, read from its bytecode: statements, and calls of `import_module` and `__import__`."""

from __future__ import annotations

import builtins
import dis
import functools
import importlib
import itertools
from types import CodeType
from typing import Any, NamedTuple

from kcachefs.keys.references import global_paths

_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_NAMES = frozenset({"import_module", "__import__"})
_FUNCTIONS = (importlib.import_module, builtins.__import__, importlib.__import__)
# Operations between a function's name and its first argument.
_PREPARING = frozenset({"EXTENDED_ARG", "PUSH_NULL", "CACHE", "PRECALL"})
# Operations that load the arguments of a call without touching the first one.
_OF_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_OF_ARGUMENTS = _OF_ATTRIBUTES | {
    *("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FAST", "LOAD_FAST_BORROW"),
    *("LOAD_FAST_CHECK", "BUILD_LIST", "BUILD_TUPLE", "LIST_EXTEND", "KW_NAMES"),
}


class Statement(NamedTuple):
    """One import: the module's name with a dot for each level, and the names that may be modules inside it."""

    # None for a call whose argument is not a constant.
    name: str | None
    taken: tuple[str, ...]
    # `import a.b` gives `a`, so that names may be taken from any package on the way; `from a.b import c` does not.
    is_plain: bool
    # For a call: the package that a relative name is relative to; the name that was called, and the code it is in.
    package: str = ""
    called: str = ""
    where: str = ""


def import_functions(code: CodeType, scope: dict[str, Any]) -> frozenset[str]:
    """The names by which code with these globals may call `import_module` or `__import__`."""
    heads = {path[0] for path in global_paths(code)}
    return _NAMES.union(name for name in heads if any(scope.get(name) is function for function in _FUNCTIONS))


@functools.lru_cache(maxsize=4096)
def statements(code: CodeType, calls: frozenset[str] = _NAMES) -> tuple[Statement, ...]:
    """The imports of `code` and of the code inside it; `calls` are the names of functions that import."""
    found: list[Statement] = []
    has_call = not calls.isdisjoint(code.co_names) or not calls.isdisjoint(code.co_varnames)
    if has_call or _IMPORT_NAME in code.co_code[::2]:
        steps = [step for step in dis.get_instructions(code) if step.opname not in _PREPARING]
        for at, step in enumerate(steps):
            if step.opcode == _IMPORT_NAME:
                found.append(_of_statement(code, steps[at - 2], steps[at - 1], step))
            elif step.opname.startswith("LOAD") and isinstance(step.argval, str) and step.argval in calls:
                found.append(_of_call(code, step.argval, steps[at + 1 :]))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += statements(constant, calls)
    return tuple(found)


def _of_statement(code: CodeType, level: dis.Instruction, wanted: dis.Instruction, step: dis.Instruction) -> Statement:
    """The level and the names wanted are loaded right before an import."""
    return Statement("." * level.argval + step.argval, wanted.argval or code.co_names, not wanted.argval)


def _of_call(code: CodeType, called: str, after: list[dis.Instruction]) -> Statement:
    """A call with a constant name; any other use of the function may import anything."""
    unknown = Statement(None, (), True, called=called, where=code.co_qualname)
    arguments = list(itertools.takewhile(lambda step: not step.opname.startswith("CALL"), after))
    if not arguments or not _is_text(arguments[0]) or not {step.opname for step in arguments} <= _OF_ARGUMENTS:
        return unknown
    if len(arguments) > 1 and arguments[1].opname in _OF_ATTRIBUTES:  # as in "a.b".lower()
        return unknown
    name, package = arguments[0].argval, ""
    if name.startswith("."):
        second = arguments[1] if len(arguments) > 1 else None
        if second is not None and _is_text(second):
            package = second.argval
        elif second is None or second.argval not in ("__package__", "__name__"):
            return unknown
    # The module that the call returns, and any modules taken from it by name.
    return Statement(name, code.co_names, True, package)


def _is_text(step: dis.Instruction) -> bool:
    return step.opname == "LOAD_CONST" and isinstance(step.argval, str)
