"""Which constants of a kernel differ, judged by the numbers in two bodies of the same shape and by the source."""

from __future__ import annotations

import ast
import re
from collections import Counter, deque
from dataclasses import dataclass, field

from kcachefs.insight.causes import Cause, Kind, clipped
from kcachefs.insight.kernels import TritonKernel, shown
from kcachefs.insight.sources import (
    Source,
    Sources,
    State,
    constants_of,
    is_literal,
    names_in,
    plain,
)
from kcachefs.insight.triton_ir import NOWHERE, Function, Operation, Place

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])|(?<=[<x])\d+(?=x)")
_SHAPE = re.compile(r"tensor<[^>]*>+|!tt\.ptr<[^>]*>+")
_OLD_CONSTANT = re.compile(r"_\((\d{1,9}),[\d, ]{0,64}\)c(?:constexpr_)?(.*?)(?=_\(\d|$)")
_LEAF = re.compile(r"c(?P<constant>.*?)(?=_(?:c|fp\d|bf\d|i\d|u\d|P|T|S)|T(?:_|$)|$)|(?:fp|bf|i|u|P)[^_]*(?:S[\d_]*S)?")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A number that both bodies have at one place, equal or not, and the constants that may have given it its value."""

    place: Place
    was: str
    now: str
    expression: ast.AST | None = None
    callee: str = ""


@dataclass(slots=True)
class Solved:
    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Constants by name: the old and the new value."""
    derived: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """Constants of which only an expression is known: the expression, its old and its new value."""
    place: Place = NOWHERE


def differing_constants(new: TritonKernel, old: TritonKernel, sources: Sources) -> list[Cause]:
    """The causes if the two kernels differ only in numbers, or in what they pass to functions."""
    if new.main is None or old.main is None:
        return []
    source = sources.find(new.place.file)
    evidence = evidence_of(new.main, old.main, source)
    changed = [one for one in evidence if one.was != one.now]
    if not changed:
        return []
    settled = all(a.place == b.place for a, b in zip(new.main.operations, old.main.operations, strict=False))
    named = _by_name(new, evidence, changed, source, settled) if source is not None else []
    placed = next((one for one in changed if one.place.line), changed[0])
    return named or [_by_place(placed, source)]


def _by_name(
    new: TritonKernel, evidence: list[Evidence], changed: list[Evidence], source: Source, settled: bool
) -> list[Cause]:
    function = source.function_at(new.place.line)
    if function is None:
        return []
    constant_names = constants_of(function, set(new.arguments))
    certain = settled or source.state is State.UNTOUCHED
    solved = solve(evidence, constant_names)
    found = []
    if solved.names:
        told = ", ".join(f"{name} is {now}, was {was}" for name, (was, now) in sorted(solved.names.items()))
        found.append(Cause(Kind.CONSTANT, f"constexpr {told} ({shown(solved.place)})", certain))
    found += _globals(changed, source, constant_names)
    literal = _literal(changed, source, constant_names)
    if literal is not None and source.state is not State.UNTOUCHED:
        found.append(literal)
    if not found and solved.derived:
        name, (text, was, now) = next(iter(solved.derived.items()))
        words = f"constexpr {name} differs: {text} is {now}, was {was} ({shown(solved.place)})"
        found.append(Cause(Kind.CONSTANT, words, certain))
    return found


def _globals(changed: list[Evidence], source: Source, constant_names: set[str]) -> list[Cause]:
    """The module's constants that have the new values."""
    for one in changed:
        for name in sorted(names_in(one.expression) - constant_names) if one.expression is not None else ():
            known = source.constant(name)
            if known is not None and plain(known.value) == one.now:
                words = f"the global {name} is {one.now}, was {one.was} ({shown(_at(one.place, known.line))})"
                return [Cause(Kind.CONSTANT, words)]
    return []


def _literal(changed: list[Evidence], source: Source, constant_names: set[str]) -> Cause | None:
    """The cause if the new number stands literally in the source."""
    for one in changed:
        if one.expression is None or names_in(one.expression) & constant_names:
            continue
        if is_literal(one.expression, one.now):
            to = f" for {one.callee}" if one.callee else ""
            words = f"{shown(one.place)} has {one.now}{to}, was {one.was}: `{source.line(one.place.line)}`"
            return Cause(Kind.SOURCE, words)
    return None


def _by_place(one: Evidence, source: Source | None) -> Cause:
    if one.callee:
        what = (
            f"{one.callee} is called with the constant {clipped(one.now)} at {shown(one.place)}, was {clipped(one.was)}"
        )
    else:
        what = f"a constant at {shown(one.place)} is {clipped(one.now)}, was {clipped(one.was)}"
    if source is not None and source.state is State.UNTOUCHED:
        return Cause(Kind.CONSTANT, f"{what}; the file is unchanged: a constexpr or a global differs")
    return Cause(Kind.CONSTANT, f"{what} (a constexpr, a global, or the line was edited)")


def solve(evidence: list[Evidence], constant_names: set[str]) -> Solved:
    """Which of the names have another value. A name is reported only if nothing contradicts it."""
    values: dict[str, Counter[tuple[str, str]]] = {}
    derived: dict[str, tuple[str, str, str]] = {}
    places: dict[str, Place] = {}
    open_ones: list[tuple[Evidence, set[str]]] = []
    for one in evidence:
        names = names_in(one.expression) & constant_names if one.expression is not None else set()
        if isinstance(one.expression, ast.Name) and names:
            values.setdefault(one.expression.id, Counter())[one.was, one.now] += 1
            places.setdefault(one.expression.id, one.place)
        elif names:
            open_ones.append((one, names))
    direct = {name: pair for name, pairs in values.items() if (pair := _change_in(pairs))}
    for one, names in open_ones:
        left = {name for name in names if name not in direct}
        explained = len(left) < len(names)
        if one.was != one.now and len(left) == 1 and not explained and one.expression is not None:
            name = next(iter(left))
            if name not in values:
                derived.setdefault(name, (clipped(ast.unparse(one.expression), 40), one.was, one.now))
                places.setdefault(name, one.place)
    first = next(iter(direct or derived), None)
    return Solved(direct, derived, places[first] if first else NOWHERE)


def _change_in(pairs: Counter[tuple[str, str]]) -> tuple[str, str] | None:
    """A name's old and new value, if the numbers at its places agree on them: the old value is gone everywhere."""
    for (was, now), _ in pairs.most_common():
        if was != now and (was, was) not in pairs:
            return was, now
    return None


# --- evidence --------------------------------------------------------------------------------------------------------


def evidence_of(new: Function, old: Function, source: Source | None) -> list[Evidence]:
    """The numbers of two bodies of the same shape, side by side."""
    found: list[Evidence] = []
    for now, was in zip(new.operations, old.operations, strict=False):
        nodes = source.nodes_at(now.place) if source else []
        if now.callee:
            found += _passed(now, was, nodes)
            continue
        # A shape follows from a constant elsewhere; only a value says something about this place.
        pair = (NUMBER.findall(_SHAPE.sub("", one.text)) for one in (was, now))
        for x, y in zip(*pair, strict=False):
            if ".constant" in now.text or "make_range" in now.text:
                found += _read(now, plain(x), plain(y), nodes)
    if not any(one.was != one.now for one in found):
        found += _shapes(new, old, source)
    return found


def _read(operation: Operation, was: str, now: str, nodes: list[ast.AST]) -> list[Evidence]:
    leaves = list(dict.fromkeys(leaf for node in nodes for leaf in _leaves(node)))
    fitting = [leaf for leaf in leaves if isinstance(leaf, ast.Constant) and plain(str(leaf.value)) == now]
    if fitting and was == now:
        return []  # an unchanged literal
    if fitting:
        return [Evidence(operation.place, was, now, fitting[0])]
    named = [leaf for leaf in leaves if not isinstance(leaf, ast.Constant) and names_in(leaf)]
    if "make_range" in operation.text and now == "0" == was:
        return []
    return [Evidence(operation.place, was, now, leaf) for leaf in named] or [Evidence(operation.place, was, now)]


def _leaves(node: ast.AST) -> list[ast.AST]:
    """The operands of an expression or statement: what a constant at its place can stand for."""
    parts: list[ast.AST] = []
    if isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.Call):
        parts = [*node.args, *(one.value for one in node.keywords)]
    elif isinstance(node, ast.For):
        parts = [*getattr(node.iter, "args", ())]
    elif isinstance(node, ast.AugAssign | ast.Return | ast.Assign):
        parts = [node.value] if node.value is not None else []
    elif isinstance(node, ast.IfExp):
        parts = [node.body, node.orelse]
    return [one.operand if isinstance(one, ast.UnaryOp) else one for one in parts]


def _passed(now: Operation, was: Operation, nodes: list[ast.AST]) -> list[Evidence]:
    """The constants with which a function is called, which Triton spells into its name."""
    ours, theirs = leaves_of(now.given), leaves_of(was.given)
    if len(ours) != len(theirs):
        return []
    call = next((node for node in nodes if isinstance(node, ast.Call)), None)
    given = _flat([*call.args, *(one.value for one in call.keywords)]) if call else []
    if call is not None and isinstance(call.func, ast.Attribute) and len(ours) == len(given) + 1:
        given = [call.func.value, *given]  # x.sum(0): the part before the dot is passed as well
    found = []
    for at, (x, y) in enumerate(zip(theirs, ours, strict=True)):
        if x is None or y is None:
            continue
        expression = given[at] if at < len(given) and len(given) <= len(ours) else None
        if isinstance(expression, ast.Constant) and x == y:
            continue
        found.append(Evidence(now.place, plain(x), plain(y), expression, now.callee.rsplit(".", 1)[-1]))
    return found


def leaves_of(given: str) -> list[str | None]:
    """The arguments in a mangled name, one each: a constant's value, or None for an argument passed at run time.

    >>> leaves_of("fp32S128S_c0.5"), leaves_of("Tc64_c128T_cfp32"), leaves_of("i32_i32_c_sq_tf32_sq_")
    ([None, '0.5'], ['64', '128', 'fp32'], [None, None, 'tf32'])

    Triton up to 3.6 writes the constants after all other arguments, each with its position:

    >>> leaves_of("i32__(1,)cconstexpr_128_"), leaves_of("fp32S64S__(0, 0)c4_(0, 1)c8_(2,)cconstexpr_1_d_5_")
    ([None, '128'], ['4', '8', None, '1.5'])
    """
    types, _, old = given.partition("__(")
    passed = deque(
        None if leaf["constant"] is None else _plain_text(leaf["constant"]) for leaf in _LEAF.finditer(types)
    )
    constants: dict[int, list[str]] = {}
    for one in _OLD_CONSTANT.finditer(f"_({old}"):
        constants.setdefault(int(one[1]), []).append(_plain_text(one[2]))
    found: list[str | None] = []
    for position in range(len(passed) + len(constants)):
        if position in constants:
            found += constants[position]
        elif passed:
            found.append(passed.popleft())
    return [*found, *passed]


def _plain_text(mangled: str) -> str:
    return mangled.replace("_sq_", "").replace("_d_", ".").strip("_")


def _flat(nodes: list[ast.expr]) -> list[ast.AST]:
    """Arguments with the members of a tuple one by one, as in a mangled name."""
    found: list[ast.AST] = []
    for node in nodes:
        found += _flat(node.elts) if isinstance(node, ast.Tuple | ast.List) else [node]
    return found


def _shapes(new: Function, old: Function, source: Source | None) -> list[Evidence]:
    """Numbers in shapes, where nothing else differs: a size that is only part of a type."""
    found = []
    for now, was in zip(new.operations, old.operations, strict=False):
        for x, y in zip(NUMBER.findall(was.text), NUMBER.findall(now.text), strict=False):
            if x != y:
                nodes = source.nodes_at(now.place) if source else []
                leaves = [leaf for node in nodes for leaf in _leaves(node) if names_in(leaf)]
                found += [Evidence(now.place, plain(x), plain(y), leaf) for leaf in leaves[:1]] or [
                    Evidence(now.place, plain(x), plain(y))
                ]
    return found


def _at(place: Place, line: int) -> Place:
    return Place(place.file, line, 0)
