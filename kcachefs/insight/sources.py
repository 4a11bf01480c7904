"""Source files that artefacts name, in their present state: whether they are what was compiled, and what they contain.

The files are read and parsed, never imported.
"""

from __future__ import annotations

import ast
import functools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kcachefs.insight.triton_ir import Place

_SIZE_MAX = 1 << 20
_SLACK_SECONDS = 1.0
"""A file written up to this long after an entry was begun may still be what was compiled: clocks are coarse."""

Read = Callable[[str], "tuple[str, float] | None"]
"""Returns the text of a file and the time of its last change, or None."""


def read_file(path: str) -> tuple[str, float] | None:
    """A Python file with the time of its last change, by whatever means.

    The path comes from an artefact that anybody may have written: only a regular file of moderate size is opened.
    """
    return read_for((), path)


def reader_for(*makers: int) -> Read:
    """A reader for files that artefacts of these users name."""
    return functools.partial(read_for, makers)


def read_for(makers: Sequence[int], path: str) -> tuple[str, float] | None:
    """Like `read_file`, but only if each of these users could read the file too.

    This keeps a user from getting lines of another user's file into an explanation, a page or a report by naming it.
    """
    if not path.endswith(".py"):
        return None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    with open(handle, "rb") as file:
        told = os.fstat(handle)
        if not stat.S_ISREG(told.st_mode) or told.st_size > _SIZE_MAX:
            return None
        if not all(_may_read(handle, told, uid) for uid in makers if uid != os.geteuid()):
            return None
        # A copy may keep an old mtime, but not the ctime.
        return file.read(_SIZE_MAX).decode("utf-8", "replace"), max(told.st_mtime, told.st_ctime)


def _may_read(handle: int, told: os.stat_result, uid: int) -> bool:
    """Whether the user may read the file, judged by the open descriptor: a link could lead elsewhere by now."""
    if told.st_uid == uid:
        return True
    try:
        place = Path(os.readlink(f"/proc/self/fd/{handle}"))
        return bool(told.st_mode & stat.S_IROTH) and all(one.stat().st_mode & stat.S_IXOTH for one in place.parents)
    except OSError:
        return False


class State(Enum):
    """How a source file relates to an older entry that was compiled from it."""

    UNTOUCHED = "untouched"
    EDITED = "edited"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Constant:
    """A name to which a module gives a value."""

    name: str
    value: str
    line: int


class Source:
    """The text of one file and the code at each place in it."""

    def __init__(self, text: str, state: State) -> None:
        self.text, self.state = text, state
        self._lines = text.splitlines()
        try:
            self.tree: ast.Module | None = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.tree = None
        self._starts: dict[tuple[int, int], list[ast.AST]] = {}
        self._by_operand: dict[tuple[int, int], list[ast.AST]] = {}
        """Expressions and statements by where their last operand begins."""
        self._functions: list[ast.FunctionDef] = []
        self._indentations: dict[int, int] = {}
        for node in ast.walk(self.tree) if self.tree else ():
            if isinstance(node, ast.expr | ast.stmt):
                self._starts.setdefault((node.lineno, node.col_offset), []).append(node)
                if isinstance(node, ast.FunctionDef):
                    self._functions.append(node)
                last = _last_operand(node)
                if last is not None:
                    self._by_operand.setdefault((last.lineno, last.col_offset), []).append(node)

    def line(self, number: int) -> str:
        return self._lines[number - 1].strip()[:100] if 0 < number <= len(self._lines) else ""

    def nodes_at(self, place: Place) -> list[ast.AST]:
        """The code at the place, the largest node first."""
        found = [] if place.of_operand else self._starts.get((place.line, place.column - 1), [])
        here = (place.line, place.column + (self._indentation(place.line) if place.of_operand else 0))
        return found or self._by_operand.get(here) or self._starts.get(here, [])

    def _indentation(self, line: int) -> int:
        """The indentation of the function around the line: Triton up to 3.7 counts columns without it."""
        if line not in self._indentations:
            around = [one for one in self._functions if one.lineno <= line <= (one.end_lineno or 0)]
            self._indentations[line] = max(around, key=lambda one: one.lineno).col_offset if around else 0
        return self._indentations[line]

    def function_at(self, line: int) -> ast.FunctionDef | None:
        """The function whose `def`, or one of its decorators, is on that line."""
        for one in self._functions:
            if min((mark.lineno for mark in one.decorator_list), default=one.lineno) <= line <= one.lineno:
                return one
        return None

    def constant(self, name: str) -> Constant | None:
        """The module's own constant of that name, if it is given a plain value."""
        for node in self.tree.body if self.tree else ():
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            value = getattr(node, "value", None)
            if value is not None and any(isinstance(one, ast.Name) and one.id == name for one in targets):
                plain = value.args[0] if isinstance(value, ast.Call) and value.args else value
                if isinstance(plain, ast.UnaryOp) and isinstance(plain.op, ast.USub):
                    plain = plain.operand
                if isinstance(plain, ast.Constant):
                    return Constant(name, str(plain.value), node.lineno)
        return None

    def guards(self, function: ast.FunctionDef, line: int) -> Iterator[tuple[ast.expr, ast.AST]]:
        """The conditions and unrolled loops around a line of a function, the innermost first."""
        around: list[tuple[int, ast.expr, ast.AST]] = []
        for node in ast.walk(function):
            if isinstance(node, ast.If | ast.IfExp | ast.While):
                test = node.test
            elif isinstance(node, ast.For):
                test = node.iter
            else:
                continue
            if node.lineno <= line <= (node.end_lineno or node.lineno):
                around.append(((node.end_lineno or node.lineno) - node.lineno, test, node))
        for _, test, node in sorted(around, key=lambda one: one[0]):
            yield test, node


def _last_operand(node: ast.AST) -> ast.expr | None:
    """The last part of an expression or statement that Triton's compiler visits before it compiles the whole."""
    match node:
        case ast.BinOp(right=last) | ast.Compare(comparators=[*_, last]) | ast.UnaryOp(operand=last):
            return last
        case ast.Call(args=[*_, last]) | ast.For(iter=ast.Call(args=[*_, last])):
            return last
        case ast.Call(keywords=[*_, ast.keyword(value=last)]):  # visited before the arguments
            return last
        case ast.AugAssign(value=last) | ast.Assign(value=last) | ast.Return(value=ast.expr() as last):
            return last
    return None


def parameters(function: ast.FunctionDef) -> list[str]:
    return [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def constants_of(function: ast.FunctionDef, passed: set[str]) -> set[str]:
    """Names that stand for constants in a kernel: parameters not passed at run time, and names derived from them."""
    names = {name for name in parameters(function) if name not in passed}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            used = names_in(node.value)
            if used and used <= names and not any(isinstance(one, ast.Call) for one in ast.walk(node.value)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {one.id for one in targets if isinstance(one, ast.Name)}
    return names


def names_in(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def literals_in(node: ast.AST) -> set[str]:
    return {
        str(one.value)
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, int | float | str)
    }


def is_literal(node: ast.AST, number: str) -> bool:
    """Whether a number, written as by `plain`, stands literally in an expression."""
    return number in {plain(text) for text in literals_in(node)}


def plain(number: str) -> str:
    """A number as people write it.

    >>> plain("5.000000e-01"), plain("128"), plain("1.0E-5"), plain("tf32")
    ('0.5', '128', '1e-05', 'tf32')
    """
    try:
        value = float(number)
    except (ValueError, OverflowError):
        return number
    whole = abs(value) < 1e15 and value == int(value)
    return str(int(value)) if whole else f"{value:g}"


class Sources:
    """The files behind one comparison of a new entry with an older one."""

    def __init__(self, read: Read, new_created: float, old_created: float) -> None:
        self._read, self._new, self._old = read, new_created, old_created
        self._known: dict[str, Source | None] = {}

    def find(self, path: str) -> Source | None:
        """The text that the new entry was compiled from; None if it cannot be determined any more."""
        if path not in self._known:
            found = self._read(path) if path else None
            if found is None or found[1] > self._new + _SLACK_SECONDS:
                self._known[path] = None
            else:
                state = State.UNTOUCHED if found[1] < self._old else State.EDITED
                self._known[path] = Source(found[0], state)
        return self._known[path]

    def state(self, path: str) -> State:
        source = self.find(path)
        return source.state if source else State.UNKNOWN
