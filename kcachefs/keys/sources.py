"""What a function says: its source text where that is provably the code that runs, its bytecode where it is not.

Text is preferred because it does not depend on the Python version. But the file may have been edited since it was
imported, and a key made of the new text for the old code would later serve the old kernel to the new code. So the text
is compiled again and taken only if it gives the very code object at hand (about 90 µs for ten lines, once per code
object). Lambdas, generated functions and anything that does not come out equal are told by their bytecode, which is
stable for one Python version.
"""

from __future__ import annotations
import __future__

import linecache
import sys
import weakref
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from kcachefs.keys.encoding import encode

_FUTURE_FLAGS = 0
for _name in __future__.all_feature_names:
    _FUTURE_FLAGS |= getattr(__future__, _name).compiler_flag
_CO_NEWLOCALS = 0x02
_CO_NESTED = 0x10
# How many dedented lines of a string or of a bracket a block may run over before the text is given up.
_EXTENSIONS = 64

# What each code object says, by identity: equal code may stand in different text. Code never changes, and kernels
# that are generated come and go, so the table holds none of them alive.
_known: dict[int, tuple[weakref.ref[CodeType], bytes]] = {}


def statement(function: FunctionType) -> bytes:
    """The encoded statement of what `function` does, apart from everything it refers to."""
    code = function.__code__
    number = id(code)
    known = _known.get(number)
    if known is not None and known[0]() is code:
        return known[1]
    text = _source_text(function)
    said = encode(("code", sys.implementation.cache_tag, shape(code))) if text is None else text_statement(text, code)
    _known[number] = (weakref.ref(code, lambda _: (_known.pop(number, None), None)[1]), said)
    return said


def text_statement(text: str, code: CodeType) -> bytes:
    """The statement of a function by its text.

    Taking the margin off also takes it off the lines inside a string, so strings of more than one line count by value.
    """
    return encode(("text", code.co_flags & _FUTURE_FLAGS, dedent(text), tuple(_long_strings(code))))


def shape(code: CodeType) -> tuple[Any, ...]:
    """A code object as plain data, without the file and the lines it came from."""
    return (
        code.co_code,
        tuple(_constant(value) for value in code.co_consts),
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~_CO_NESTED),
        code.co_exceptiontable,
        code.co_name,
    )


def dedent(block: str) -> str:
    """`block` without its first line's margin and without blank lines at its end."""
    margin = block[: _indent(block)]
    return "\n".join(line.removeprefix(margin) for line in block.rstrip().split("\n"))


def _constant(value: object) -> object:
    if isinstance(value, CodeType):
        return ("code", shape(value))
    if type(value) is tuple:
        return tuple(_constant(item) for item in value)
    if type(value) is frozenset:
        return frozenset(_constant(item) for item in value)
    return value


def _long_strings(code: CodeType) -> Iterator[str | bytes]:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _long_strings(value)
        elif (type(value) is str and "\n" in value) or (type(value) is bytes and b"\n" in value):
            yield value


def _source_text(function: FunctionType) -> str | None:
    code = function.__code__
    if code.co_name.startswith("<"):
        return None
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    start = code.co_firstlineno - 1
    if start >= len(lines):
        return None
    last = max((line for _, _, line in code.co_lines() if line is not None), default=start + 1)
    end = _end_of_block(lines, start, max(last, start + 1))
    # A dedented line may sit in a string or in brackets: then the text does not compile, and the block goes on.
    for _ in range(_EXTENSIONS):
        block = "".join(lines[start:end])
        found = _compiled(block, function)
        if found is not None:
            return block if _same(found, code) else None
        if end >= len(lines):
            return None
        end = _end_of_block(lines, start, end + 1)
    return None


def _same(one: CodeType, two: CodeType) -> bool:
    """Whether two code objects do the same; the quick form of comparing their shapes."""
    return (
        one.co_code == two.co_code
        and one.co_names == two.co_names
        and one.co_varnames == two.co_varnames
        and one.co_freevars == two.co_freevars
        and one.co_cellvars == two.co_cellvars
        and one.co_argcount == two.co_argcount
        and one.co_posonlyargcount == two.co_posonlyargcount
        and one.co_kwonlyargcount == two.co_kwonlyargcount
        and (one.co_flags ^ two.co_flags) & ~_CO_NESTED == 0
        and one.co_exceptiontable == two.co_exceptiontable
        and len(one.co_consts) == len(two.co_consts)
        and all(map(_same_constant, one.co_consts, two.co_consts))
    )


def _same_constant(one: object, two: object) -> bool:
    if isinstance(one, CodeType) and isinstance(two, CodeType):
        return one.co_name == two.co_name and _same(one, two)
    if type(one) is type(two) and type(one) in (str, bytes, int):
        return one == two
    return encode(_constant(one)) == encode(_constant(two))


def _end_of_block(lines: list[str], start: int, line: int) -> int:
    margin = _indent(lines[start])
    while line < len(lines) and (not lines[line].strip() or _indent(lines[line]) > margin):
        line += 1
    return line


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _compiled(block: str, function: FunctionType) -> CodeType | None:
    """The code object that `block` gives for `function`, compiled in the scopes that it stood in."""
    scopes = _scopes(function, block[: _indent(block)])
    if scopes is None:
        return None
    code = function.__code__
    try:
        module = compile(scopes + block, "<source>", "exec", code.co_flags & _FUTURE_FLAGS, True)
    except (SyntaxError, ValueError):
        return None
    return _find(module, code.co_name)


def _scopes(function: FunctionType, margin: str) -> str | None:
    """Headers that give a block the closure and the class it had: they decide which names are free or mangled."""
    free = [name for name in function.__code__.co_freevars if name != "__class__"]
    owner = function.__qualname__.split(".")[-2:-1]
    in_class = bool(owner) and owner[0] != "<locals>"
    if not margin:
        return None if free or in_class else ""
    if not free and not in_class:
        return "if 1:\n"
    head = f"def __outer__({', '.join(free)}):\n" if free else ""
    if not in_class:
        return head
    if free and len(margin) < 2:
        return None
    return f"{head}{margin[:-1] if free else ''}class {owner[0]}:\n"


def _find(code: CodeType, name: str) -> CodeType | None:
    for value in code.co_consts:
        if not isinstance(value, CodeType):
            continue
        if value.co_name == name:
            return value
        is_class_body = not value.co_flags & _CO_NEWLOCALS
        if value.co_name == "__outer__" or is_class_body:
            found = _find(value, name)
            if found is not None:
                return found
    return None
