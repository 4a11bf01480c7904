"""What two graphs compute differently, and on which line of the model."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from kcachefs.insight.causes import Cause, Kind, clipped
from kcachefs.insight.graphs import Graph, Node
from kcachefs.insight.kernels import shown

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"[\w.+-]+|'[^']*'")
_COMPARED_MAX = 5000
_PART_MIN = 3
"""A graph counts as a part of another one only if it, and the rest of the other, have this many operations."""


def code_causes(new: Graph, old: Graph, *, resized: bool) -> list[Cause]:
    """The first operation that differs. `resized`: the inputs differ too, and other sizes follow from them."""
    ours, theirs = new.nodes[:_COMPARED_MAX], old.nodes[:_COMPARED_MAX]
    if [node.operation for node in ours] == [node.operation for node in theirs]:
        return _arguments(new, ours, theirs, resized=resized)
    if _is_part(ours, theirs):
        return [_part(new, old, ours, theirs)]
    matcher = difflib.SequenceMatcher(
        None, [node.operation for node in theirs], [node.operation for node in ours], autojunk=False
    )
    for tag, o1, o2, n1, n2 in matcher.get_opcodes():
        if tag != "equal":
            now = _first_named(ours[n1:n2])
            was = _first_named(theirs[o1:o2])
            return [_operation(new, old, now, was)]
    return []


def _first_named(nodes: Sequence[Node]) -> Node | None:
    return next((node for node in nodes if node.operation != "return"), None)


def _operation(new: Graph, old: Graph, now: Node | None, was: Node | None) -> Cause:
    if now is not None and was is not None:
        return Cause(Kind.SOURCE, f"the model differs{_where(new, now)}: {now.operation}, was {was.operation}")
    if now is not None:
        return Cause(Kind.SOURCE, f"the model differs{_where(new, now)}: {now.operation} is new")
    if was is not None:
        return Cause(Kind.SOURCE, f"the model differs{_where(old, was, 'what was ')}: {was.operation} is gone")
    return Cause(Kind.SOURCE, "the graph returns other values", certain=False)


def _where(graph: Graph, node: Node, before: str = "") -> str:
    if node.name not in graph.places:
        return ""
    place, text = graph.places[node.name]
    return f" at {before}{shown(place)} `{clipped(text, 70)}`"


def _arguments(new: Graph, ours: list[Node], theirs: list[Node], *, resized: bool) -> list[Cause]:
    for now, was in zip(ours, theirs, strict=True):
        if now.arguments == was.arguments:
            continue
        if now.operation == "return":
            return [_returned(new, was.arguments, now.arguments)]
        if resized and _NUMBER.sub("#", now.arguments) == _NUMBER.sub("#", was.arguments):
            continue  # sizes that follow from the inputs
        x, y = _first_pair(was.arguments, now.arguments)
        return [Cause(Kind.SOURCE, f"the model differs{_where(new, now)}: {now.operation} with {y}, was {x}")]
    return []


def _returned(new: Graph, was: str, now: str) -> Cause:
    """The cause when the operations are the same, but other values leave the graph."""
    x, y = set(_WORD.findall(was)), set(_WORD.findall(now))
    come, gone = clipped(", ".join(sorted(y - x)), 40), clipped(", ".join(sorted(x - y)), 40)
    what = (
        " and ".join(filter(None, (come and f"also {come}", gone and f"no longer {gone}"))) or "them in another order"
    )
    if new.kind == "forward":
        words = f"the forward graph keeps {what} for the backward pass: other inputs need a gradient"
        return Cause(Kind.TYPE, words, certain=False)
    return Cause(Kind.SOURCE, f"the graph returns {what}")


def _first_pair(was: str, now: str) -> tuple[str, str]:
    """The first part of the arguments that differs, numbers before names of other values."""
    x, y = _WORD.findall(was), _WORD.findall(now)
    pairs = [(u, v) for u, v in zip(x, y, strict=False) if u != v]
    numbers = [(u, v) for u, v in pairs if _NUMBER.fullmatch(v) or _NUMBER.fullmatch(u)]
    if len(x) != len(y) and not numbers:
        return clipped(was, 60), clipped(now, 60)
    return (numbers or pairs or [(clipped(was, 60), clipped(now, 60))])[0]


def _is_part(ours: Sequence[Node], theirs: Sequence[Node]) -> bool:
    """Whether one graph is the beginning or the end of the other: a graph break came or went."""
    x = [node.operation for node in ours if node.operation != "return"]
    y = [node.operation for node in theirs if node.operation != "return"]
    short, long = (x, y) if len(x) < len(y) else (y, x)
    if len(short) < _PART_MIN or len(long) - len(short) < _PART_MIN:
        return False
    return long[: len(short)] == short or long[-len(short) :] == short


def _part(new: Graph, old: Graph, ours: Sequence[Node], theirs: Sequence[Node]) -> Cause:
    fewer = len(ours) < len(theirs)
    whole, part, graph = (theirs, ours, old) if fewer else (ours, theirs, new)
    operations = [node.operation for node in part if node.operation != "return"]
    begins = [node.operation for node in whole[: len(operations)]] == operations
    edge = whole[len(operations)] if begins else whole[len(whole) - len(operations) - 2]
    side = "ends before" if begins else "begins after"
    where = _where(graph, edge) or f" {edge.operation}"
    if fewer:
        words = f"it is a part of a graph that was compiled whole: it {side} what is{where} (a graph break?)"
    else:
        words = (
            f"it goes on where another graph {side.replace('begins', 'began').replace('ends', 'ended')} what is{where}"
        )
    return Cause(Kind.SOURCE, words, certain=False)
