"""What a function says: its source text if that provably matches the running code, otherwise its bytecode.

Text is preferred because it is the same under every Python version. But a file may have been edited since it was
imported, and a key made of the new text for the old code would later serve the old kernel to the new code. So the text
is compiled again, and taken only if the result is exactly the running code: a function's own lines where they are
enough, which is quick, or else the whole file, once. Functions made without a file, or from a file that no longer
matches the running code, count by their bytecode, which is stable for one Python version only.
"""

from __future__ import annotations
import __future__

import ast
import io
import linecache
import sys
import tokenize
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from kcachefs.bounded import BoundedDict
from kcachefs.keys.asking import is_a
from kcachefs.keys.by_identity import ByIdentity
from kcachefs.keys.encoding import encode
from kcachefs.keys.references import global_paths

_FUTURE_FLAGS = 0
for _name in __future__.all_feature_names:
    _FUTURE_FLAGS |= getattr(__future__, _name).compiler_flag
_CO_NESTED = 0x10
_FILES_LIMIT = 256

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class _Found(NamedTuple):
    """A function that a file defines: the code it compiles to, its first line, and its text."""

    code: CodeType
    line: int
    text: str


# The statement of each code object, by identity: equal code may come from different text. Code objects never change, #
# and generated kernels come and go, so the table keeps none of them alive.
_statements = ByIdentity[bytes]()
# The functions that each file defines, by name, as long as linecache holds the same lines.
_files = BoundedDict[tuple[str, int], tuple[list[str], dict[str, list[_Found]]]](_FILES_LIMIT)


def statement(function: FunctionType) -> bytes:
    """What `function` does, encoded, apart from everything that it refers to."""
    code = function.__code__
    known = _statements.get(code)
    if known is not None:
        return known
    text = _source_text(function)
    said = encode(("code", sys.implementation.cache_tag, shape(code))) if text is None else text_statement(text, code)
    _statements.put(code, said)
    return said


def text_statement(text: str, code: CodeType) -> bytes:
    """What a function does, encoded, given its text."""
    return encode(("text", code.co_flags & _FUTURE_FLAGS, text))


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


def _constant(value: object) -> object:
    if isinstance(value, CodeType):
        return ("code", shape(value))
    if type(value) is tuple:
        return tuple(_constant(item) for item in value)
    if type(value) is frozenset:
        return frozenset(_constant(item) for item in value)
    return value


def _source_text(function: FunctionType) -> str | None:
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    text = _text_of_lines(function, lines)
    if text is not None:
        return text
    named = _definitions(code, lines).get(code.co_name, [])
    same = [found for found in named if _same(found.code, code)]
    if not same:
        return None
    # The line number alone decides nothing: a file that was edited further up still proves the text further down.
    here = [found.text for found in same if found.line == code.co_firstlineno]
    return min(here or (found.text for found in same))


def _text_of_lines(function: FunctionType, lines: list[str]) -> str | None:
    """The text of a function at the top of a file, if its own lines prove it."""
    code = function.__code__
    start = code.co_firstlineno - 1
    if code.co_freevars or start >= len(lines) or lines[start][:1] not in ("d", "a", "@"):
        return None
    end = max((line for _, _, line in code.co_lines() if line is not None), default=start + 1)
    while end < len(lines) and (not lines[end].strip() or lines[end][0] in " \t)]}"):
        end += 1
    # Python compiles `tl.load(x)` differently where `tl` comes from an import at the top.
    scope = function.__globals__
    imports = sorted({path[0] for path in global_paths(code) if is_a(scope.get(path[0]), ModuleType)})
    block = [f"import {', '.join(imports)}\n" if imports else "\n", *lines[start:end]]
    try:
        tree = ast.parse("".join(block))
        compiled = compile(tree, "", "exec", code.co_flags & _FUTURE_FLAGS, True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in tree.body[-1:]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _first_line(node) == 2:
            same = (inner for inner in _inside(compiled) if inner.co_name == code.co_name and _same(inner, code))
            return _text(node, block, set()) if any(inner.co_firstlineno == 2 for inner in same) else None
    return None


def _definitions(code: CodeType, lines: list[str]) -> dict[str, list[_Found]]:
    """Every function that the lines of a file define, by name."""
    name, flags = code.co_filename, code.co_flags & _FUTURE_FLAGS
    known = _files.get((name, flags))
    if known is None or known[0] is not lines:
        known = _files[name, flags] = (lines, _read(lines, flags) if lines else {})
    return known[1]


def _read(lines: list[str], flags: int) -> dict[str, list[_Found]]:
    try:
        tree = ast.parse("".join(lines))
        everything = list(ast.walk(tree))
        nodes = [node for node in everything if isinstance(node, _Definition)]
        pieces = {piece for node in everything if _is_pieced(node) for piece in ast.walk(node) if piece is not node}
        kept = {line for node in everything if node not in pieces for line in _lines_of_string(node, lines)}
        texts = [_text(node, lines, kept) for node in nodes]
        starts = _tell_lambdas_apart(nodes, len(lines))
        codes = {(code.co_name, code.co_firstlineno): code for code in _inside(compile(tree, "", "exec", flags, True))}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[str, list[_Found]] = {}
    for node, text, start in zip(nodes, texts, starts, strict=True):
        name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
        code = codes.get((name, _first_line(node)))
        if code is not None:  # else the compiler dropped it, such as code under `if 0:`
            found.setdefault(name, []).append(_Found(code, start, text))
    return found


def _tell_lambdas_apart(nodes: list[_Definition], count: int) -> list[int]:
    """Move lambdas that begin on one line to lines of their own, so that their code can be told apart.

    Returns the original line of each line of the result. A lambda moves with everything inside it: the compiler marks
    where the line changes.
    """
    starts = [_first_line(node) for node in nodes]
    seen: dict[int, int] = {}
    for node, start in zip(nodes, starts, strict=True):
        if isinstance(node, ast.Lambda):
            seen[start] = seen.get(start, -1) + 1
            ast.increment_lineno(node, seen[start] * (count + 1))
    return starts


def _first_line(node: _Definition) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return decorators[0].lineno if decorators else node.lineno


def _text(node: _Definition, lines: list[str], kept: set[int]) -> str:
    """The text of a function without its margin. Lines in `kept` begin inside a string and keep their margin."""
    first, last = _first_line(node), node.end_lineno or node.lineno
    if isinstance(node, ast.Lambda):
        raw = [line.encode() for line in lines[first - 1 : last]]
        raw[-1] = raw[-1][: node.end_col_offset]
        raw[0] = raw[0][node.col_offset :]
        return b"".join(raw).decode()
    margin = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip(" \t"))]
    told = (line if at in kept else line.removeprefix(margin) for at, line in enumerate(lines[first - 1 : last], first))
    return "".join(told).rstrip()


def _lines_of_string(node: ast.AST, lines: list[str]) -> set[int]:
    """The lines that begin inside a string. For adjacent strings, the lines between them do not count."""
    is_string = _is_pieced(node) or (isinstance(node, ast.Constant) and type(node.value) in (str, bytes))
    if not is_string or not isinstance(node, ast.expr) or node.end_lineno in (None, node.lineno):
        return set()
    first, last = node.lineno, node.end_lineno or node.lineno
    raw = [line.encode() for line in lines[first - 1 : last]]
    raw[-1] = raw[-1][: node.end_col_offset]
    raw[0] = b"(" + raw[0][node.col_offset :]
    depth, begins = 0, 0
    found: set[int] = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(b"".join([*raw, b")\n"]).decode()).readline):
            kind = tokenize.tok_name[token.type]
            if kind == "STRING" and not depth:
                found.update(range(token.start[0] + 1, token.end[0] + 1))
            elif kind in ("FSTRING_START", "TSTRING_START"):  # since Python 3.12
                begins, depth = (begins if depth else token.start[0]), depth + 1
            elif kind in ("FSTRING_END", "TSTRING_END"):
                depth -= 1
                if not depth:
                    found.update(range(begins + 1, token.end[0] + 1))
    except (tokenize.TokenError, SyntaxError):
        return set(range(first + 1, last + 1))
    return {first - 1 + line for line in found}


def _is_pieced(node: ast.AST) -> bool:
    """Whether it is a string with expressions in braces, which consists of pieces."""
    return type(node).__name__ in ("JoinedStr", "TemplateStr")  # the second one is new in Python 3.14


def _inside(code: CodeType) -> Iterator[CodeType]:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield value
            yield from _inside(value)


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
