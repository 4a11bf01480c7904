"""What differs between the bodies of two Triton kernels whose key has the same versions, options and argument types."""

from __future__ import annotations

import ast
import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kcachefs.insight.causes import Cause, Kind
from kcachefs.insight.constants import NUMBER, differing_constants, evidence_of
from kcachefs.insight.kernels import TritonKernel, base, shown
from kcachefs.insight.sources import Source, Sources, State, constants_of, is_literal, names_in, plain
from kcachefs.insight.triton_ir import Function, Operation, Place

_COMPARED_MAX = 4000
"""Operations per function: finding the first difference in longer bodies would take too long."""
_AGREED_MIN = 3
_LIBRARY = "triton.language."


def body_causes(new: TritonKernel, old: TritonKernel, sources: Sources, *, alone: bool) -> list[Cause]:
    """The cause that the bodies show, if any. `alone`: nothing else was found, so there must be one."""
    if new.main is None or old.main is None:
        return [_nothing_stored(new)] if alone else []
    ours, theirs = (one.operations for one in (new.main, old.main))
    if _shapes(ours) != _shapes(theirs):
        return [_structure(new, new.main, old.main, sources, is_kernel=True)]
    constants = differing_constants(new, old, sources)
    if constants:
        return constants
    for ours_too, theirs_too in _pairs(new, old):
        if [one.text for one in ours_too.operations] != [one.text for one in theirs_too.operations]:
            return [_helper(new, ours_too, theirs_too, sources)]
    if not alone:
        return []
    return [_only_text(new, old, sources)]


def _nothing_stored(new: TritonKernel) -> Cause:
    return Cause(Kind.UNKNOWN, f"no IR is stored for {new.name}: a constant or the source differs", certain=False)


def _shapes(operations: Sequence[Operation]) -> list[str]:
    """The operations without their numbers."""
    return [NUMBER.sub("#", one.text) for one in operations]


def _pairs(new: TritonKernel, old: TritonKernel) -> list[tuple[Function, Function]]:
    """Functions that both kernels call, with the same types and constants, and that are not Triton's own."""
    theirs = {(one.name, one.given): one for one in old.functions if not one.public}
    return [
        (one, theirs[one.name, one.given])
        for one in new.functions
        if (one.name, one.given) in theirs and not one.name.startswith(_LIBRARY)
    ]


# --- other code ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _First:
    """The first place at which two bodies differ."""

    now: Operation | None
    was: Operation | None
    edited: bool
    """The code after it moved relative to the code before it, so the text in between was changed."""

    @property
    def place(self) -> Place:
        one = self.now or self.was
        return one.place if one else Place()


def _first_difference(new: Function, old: Function) -> _First:
    ours, theirs = new.operations[:_COMPARED_MAX], old.operations[:_COMPARED_MAX]
    matcher = difflib.SequenceMatcher(None, _shapes(theirs), _shapes(ours), autojunk=False)
    blocks = matcher.get_opcodes()
    at = next((at for at, block in enumerate(blocks) if block[0] != "equal"), None)
    if at is None:
        return _First(None, None, edited=False)
    _, o1, o2, n1, n2 = blocks[at]
    before = _shift(new, ours, theirs, blocks[at - 1]) if at else (new.place.line - old.place.line, 0)
    after = _shift(new, ours, theirs, blocks[at + 1]) if at + 1 < len(blocks) else before
    edited = before is not None and after is not None and before != after
    return _First(ours[n1] if n1 < n2 else None, theirs[o1] if o1 < o2 else None, edited)


def _shift(
    new: Function, ours: Sequence[Operation], theirs: Sequence[Operation], block: tuple[str, int, int, int, int]
) -> tuple[int, int] | None:
    """How far the places in a block of equal operations moved, in lines and columns; None if they do not agree.

    Equal operations occur on many lines, so a few of them may be paired with the wrong counterpart.
    """
    _, o1, o2, n1, n2 = block
    found = Counter(
        (x.place.line - y.place.line, x.place.column - y.place.column)
        for x, y in zip(ours[n1:n2], theirs[o1:o2], strict=True)
        if x.place.file == new.place.file and x.place.line
    )
    if not found:
        return None
    shift, count = found.most_common(1)[0]
    return shift if count >= _AGREED_MIN and count == found.total() else None


def _structure(kernel: TritonKernel, new: Function, old: Function, sources: Sources, *, is_kernel: bool) -> Cause:
    """The cause if the bodies have different operations: a constant switches some, or the source was edited."""
    first = _first_difference(new, old)
    source = sources.find(first.place.file)
    if source is not None and is_kernel:
        function = source.function_at(new.place.line)
        names = constants_of(function, set(kernel.arguments)) if function else set()
        if function is not None and (source.state is State.UNTOUCHED or not first.edited):
            switched = _switch(first, function, names, source)
            if switched is not None:
                return switched
    return _edit(new, first, source, is_kernel=is_kernel)


def _edit(new: Function, first: _First, source: Source | None, *, is_kernel: bool) -> Cause:
    where = shown(first.place)
    if first.now is None:
        where = f"what was {where}"
    through = "" if is_kernel else f" in {new.name.rsplit('.', 1)[-1]}, which it calls"
    line = source.line(first.place.line) if source is not None and first.now is not None else ""
    reads = f": `{line}`" if line else ""
    if source is not None and source.state is State.UNTOUCHED:
        words = (
            f"{where}{through} compiled to other code although the file is unchanged: a constexpr or a global differs"
        )
        return Cause(Kind.CONSTANT, words, certain=False)
    if first.edited or source is not None:
        return Cause(Kind.SOURCE, f"the source changed at {where}{through}{reads}", certain=first.edited)
    if not is_kernel:
        return Cause(Kind.SOURCE, f"the source changed at {where}{through}", certain=False)
    words = f"{where} compiled to other code: it was edited, or a constexpr switches it"
    return Cause(Kind.SOURCE, words, certain=False)


def _switch(first: _First, function: ast.FunctionDef, names: set[str], source: Source) -> Cause | None:
    """The constant that decides whether, or how, the line of the first difference is compiled."""
    untouched = source.state is State.UNTOUCHED
    for test, node in source.guards(function, first.place.line):
        decided = sorted(names_in(test) & names)
        if not decided or not _is_switched(node, first, untouched=untouched):
            continue
        if isinstance(node, ast.For):
            loop = f"{base(first.place.file)}:{node.lineno}"
            words = f"constexpr {' or '.join(decided)} differs: the loop at {loop} is a different one"
        else:
            words = _branch(test, node, decided, first)
        return Cause(Kind.CONSTANT, words, certain=untouched and len(decided) == 1)
    if not untouched:
        return None
    used: set[str] = set()
    for node in source.nodes_at(first.place):
        used |= names_in(node) & names
    if len(used) == 1:
        return Cause(Kind.CONSTANT, f"constexpr {used.pop()} differs: {shown(first.place)} compiled to other code")
    if used:
        words = f"constexpr {' or '.join(sorted(used))} differs: {shown(first.place)} compiled to other code"
        return Cause(Kind.CONSTANT, words, certain=False)
    return None


def _is_switched(node: ast.AST, first: _First, *, untouched: bool) -> bool:
    """Whether the difference came or went with this branch or unrolled loop, rather than being different code in it."""
    if isinstance(node, ast.For):
        unrolled = "static_range" in ast.unparse(node.iter)
        if untouched:
            return unrolled or node.lineno == first.place.line
        return unrolled and len({one.place.line for one in (first.now, first.was) if one is not None}) > 1
    if isinstance(node, ast.IfExp):
        return True
    lines = [one.place.line for one in (first.now, first.was) if one is not None]
    branches = [getattr(node, "body", []), getattr(node, "orelse", [])]
    within = [
        tuple(any(one.lineno <= line <= (one.end_lineno or one.lineno) for one in branch) for branch in branches)
        for line in lines
    ]
    return len(within) == 1 or within[0] != within[1]


def _branch(test: ast.expr, node: ast.AST, decided: list[str], first: _First) -> str:
    line, where = first.place.line, shown(first.place)
    body = node.body if isinstance(node, ast.If) else []
    inside = any(one.lineno <= line <= (one.end_lineno or one.lineno) for one in body) if body else True
    come = first.now is not None
    said = f"{where} is compiled now and was not" if come else f"{where} is not compiled any more"
    value = _decided(test, taken=come == inside)
    return f"constexpr {value}: {said}" if value else f"constexpr {' or '.join(decided)} differs: {said}"


def _decided(test: ast.expr, *, taken: bool) -> str:
    """The value that a name must have for a branch to be taken, or not to be."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _decided(test.operand, taken=not taken)
    if isinstance(test, ast.Name):
        return f"{test.id} is {taken}, was {not taken}"
    match test:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.Eq()], comparators=[ast.Constant(value=value)]):
            return f"{name} is {value!r}, was another" if taken else f"{name} is not {value!r} any more"
    return ""


# --- functions that the kernel calls ---------------------------------------------------------------------------------


def _helper(kernel: TritonKernel, new: Function, old: Function, sources: Sources) -> Cause:
    """A function with the same types and constants has another body: its source differs, or a global that it reads."""
    if _shapes(new.operations) != _shapes(old.operations):
        return _structure(kernel, new, old, sources, is_kernel=False)
    source = sources.find(new.place.file)
    changed = [one for one in evidence_of(new, old, source) if one.was != one.now]
    short = new.name.rsplit(".", 1)[-1]
    if not changed:
        return Cause(Kind.SOURCE, f"{short}, which it calls, differs ({shown(new.place)})", certain=False)
    for one in changed if source is not None else ():
        values = f"{one.now}, was {one.was}"
        for name in sorted(names_in(one.expression)) if one.expression is not None else ():
            found = source.constant(name) if source is not None else None
            if found is not None and plain(found.value) == one.now:
                place = f"{base(one.place.file)}:{found.line}"
                words = f"the global {name} is {values} ({place}; {short}, which it calls, reads it)"
                return Cause(Kind.CONSTANT, words)
        if source is not None and one.expression is not None and is_literal(one.expression, one.now):
            words = f"{shown(one.place)} in {short}, which it calls, has {values}: `{source.line(one.place.line)}`"
            return Cause(Kind.SOURCE, words)
    first = changed[0]
    words = f"a constant at {shown(first.place)} in {short}, which it calls, is {first.now}, was {first.was}"
    return Cause(Kind.CONSTANT, words)


# --- the same code ---------------------------------------------------------------------------------------------------


def _only_text(new: TritonKernel, old: TritonKernel, sources: Sources) -> Cause:
    """The cause when the code is the same: only text differs, or something that the artefacts do not show."""
    no_effect = "with no effect on the code"
    moved = new.place.line - old.place.line
    pairs = _placed(new.main, old.main)
    inner = next((x for x, y in pairs if x.place.line - y.place.line != moved), None)
    if inner is not None:
        also = f" (the kernel itself moved from line {old.place.line} to {new.place.line})" if moved else ""
        return Cause(Kind.TEXT, f"lines were added or removed before {shown(inner.place)}{also}, {no_effect}")
    if moved:
        words = f"the kernel moved from line {old.place.line} to {shown(new.place)}; Triton hashes its line number"
        return Cause(Kind.TEXT, f"{words}, and the code is the same")
    for function, theirs in _pairs(new, old):
        for x, y in _placed(function, theirs):
            if x.place.line != y.place.line:
                short = function.name.rsplit(".", 1)[-1]
                words = f"{short}, which it calls, moved in {base(x.place.file)}: line {y.place.line} → {x.place.line}"
                return Cause(Kind.TEXT, f"{words}, {no_effect}")
    every: list[tuple[Function | None, Function | None]] = [(new.main, old.main), *_pairs(new, old)]
    for ours, theirs_too in every:
        for x, y in _placed(ours, theirs_too):
            if x.name != y.name and x.name and y.name:
                return Cause(Kind.TEXT, f"{y.name} is called {x.name} now ({shown(x.place)}), {no_effect}")
            if x.place.column != y.place.column:
                return Cause(Kind.TEXT, f"{shown(x.place)} was reformatted, {no_effect}")
    return _not_seen(new, sources)


def _placed(new: Function | None, old: Function | None) -> list[tuple[Operation, Operation]]:
    if new is None or old is None:
        return []
    both = zip(new.operations, old.operations, strict=False)
    return [(x, y) for x, y in both if x.place.file == new.place.file and x.place.line and y.place.line]


def _not_seen(new: TritonKernel, sources: Sources) -> Cause:
    files = list(dict.fromkeys(one.place.file for _, one in new.operations() if one.place.line))
    own = [file for file in files if "/triton/language/" not in file]
    edited = [base(file) for file in own if sources.state(file) is State.EDITED]
    if edited:
        words = f"the same code came out: only the text of {edited[0]} differs, a comment or formatting"
        return Cause(Kind.TEXT, words, certain=False)
    if own and all(sources.state(file) is State.UNTOUCHED for file in own):
        words = (
            f"nothing in it differs and {base(new.place.file)} is unchanged: another build of Triton {new.version} "
            "or of ptxas, or a constant that it does not use"
        )
        return Cause(Kind.VERSION, words, certain=False)
    words = (
        f"the same code came out: only the text of {base(new.place.file)} differs (a comment, or something that it "
        f"names), or it is another build of Triton {new.version}"
    )
    return Cause(Kind.TEXT, words, certain=False)
