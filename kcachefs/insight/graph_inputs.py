"""How the inputs of two compiled graphs differ: types, shapes, strides, devices, and sizes that are symbols."""

from __future__ import annotations

import re

from kcachefs.insight.causes import Cause, Kind, clipped
from kcachefs.insight.graphs import Graph

_TENSOR = re.compile(
    r"dtype=torch\.(?P<dtype>\w+), shape=torch\.Size\(\[(?P<shape>[^\]]*)\]\), stride=\((?P<stride>[^)]*)\), "
    r"device=device\(type='(?P<device>\w+)'(?:, index=(?P<index>\d+))?\)"
)
_PARAMETER = re.compile(r"weight|bias|param|buffer")
_NUMBER_OF_INPUTS = re.compile(r"the graph has \d+ inputs")
_SYMBOL = re.compile(r"\b[a-z]+\d+\b")


def input_causes(new: Graph, old: Graph) -> list[Cause]:
    """The differences in the inputs, the most telling first."""
    ours, theirs = new.inputs, old.inputs
    symbols = [[one for one in side if "dtype=" not in one] for side in (ours, theirs)]
    if len(symbols[0]) != len(symbols[1]):
        now, was = (_sizes(side) for side in symbols)
        return [Cause(Kind.TYPE, f"the graph has {now}; the old one had {was}{_symbolic_tensor([*ours, *theirs])}")]
    if len(ours) != len(theirs):
        return [Cause(Kind.TYPE, f"the graph has {len(ours)} inputs; the old one had {len(theirs)}{_added(new, old)}")]
    found: dict[str, list[tuple[int, str, str]]] = {}
    for number, (was, now) in enumerate(zip(theirs, ours, strict=True)):
        if was != now:
            what, x, y = _difference(was, now)
            found.setdefault(what, []).append((number, x, y))
    causes = []
    for what in ("device", "dtype", "shape", "stride", "other"):
        if rows := found.get(what):
            # A difference in the caller's arguments says more than one in the parameters, of which there are many.
            number, was, now = min(rows, key=lambda row: (_is_parameter(new, row[0]), row[0]))
            more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
            causes.append(Cause(Kind.TYPE, f"{_name(new, number)} is {now}{more}, was {was}"))
    return causes


def is_about_number(cause: Cause) -> bool:
    """Whether a cause says that there are more or fewer inputs."""
    return _NUMBER_OF_INPUTS.match(cause.words) is not None


def _difference(was: str, now: str) -> tuple[str, str, str]:
    """The aspect in which two inputs differ, and both values."""
    x, y = _TENSOR.search(was), _TENSOR.search(now)
    if x is None or y is None:
        return "other", clipped(was), clipped(now)
    if (x["device"], x["index"]) != (y["device"], y["index"]):
        old, new = (one["device"] + (f":{one['index']}" if one["index"] else "") for one in (x, y))
        return "device", f"on {old}", f"on {new}"
    if x["dtype"] != y["dtype"]:
        return "dtype", x["dtype"], y["dtype"]
    if x["shape"] != y["shape"]:
        return "shape", f"[{x['shape']}]", f"[{y['shape']}]"
    if x["stride"] != y["stride"]:
        return "stride", f"[{x['shape']}] with strides ({x['stride']})", f"[{y['shape']}] with strides ({y['stride']})"
    parts = [(u, v) for u, v in zip(was.split(", "), now.split(", "), strict=False) if u != v]
    return "other", clipped(parts[0][0] if parts else was), clipped(parts[0][1] if parts else now)


def _sizes(symbols: list[str]) -> str:
    if not symbols:
        return "fixed sizes"
    names = ", ".join(one.strip("(),'") for one in symbols)
    return f"symbolic sizes ({clipped(names, 40)})"


def _symbolic_tensor(inputs: list[str]) -> str:
    for text in inputs:
        tensor = _TENSOR.search(text)
        if tensor is not None and _SYMBOL.search(tensor["shape"]):
            return f" (a tensor is [{tensor['shape']}])"
    return ""


def _added(new: Graph, old: Graph) -> str:
    """The first input that only one of the graphs has, by its shape."""
    ours, theirs = list(new.inputs), list(old.inputs)
    longer, shorter = (ours, theirs) if len(ours) > len(theirs) else (theirs, ours)
    for text in longer:
        if text in shorter:
            shorter.remove(text)
        elif tensor := _TENSOR.search(text):
            word = "new" if longer is ours else "gone"
            return f"; {tensor['dtype']} [{tensor['shape']}] is {word}"
    return ""


def _is_parameter(graph: Graph, number: int) -> bool:
    return number < len(graph.input_names) and _PARAMETER.search(graph.input_names[number]) is not None


def _name(graph: Graph, number: int) -> str:
    known = graph.input_names[number] if number < len(graph.input_names) else ""
    return f"input {clipped(known, 60)}" if known else f"input {number}"
