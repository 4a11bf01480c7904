"""Compiled kernels as rows of a list: what they need, who made them, and the graph and model line they belong to."""

from __future__ import annotations

import os
from collections import defaultdict

import msgspec

from kcachefs.core.insight_info import MadeEntry
from kcachefs.core.readable_names import told_apart
from kcachefs.insight.artefacts import kind_of
from kcachefs.insight.explaining import Explainer
from kcachefs.insight.reading import began
from kcachefs.insight.sketches import GraphSketch, KernelSketch


class KernelRow(msgspec.Struct, frozen=True):
    path: str
    name: str
    differs: str
    """The facts that tell it apart from others of its name."""
    arch: str
    signature: str
    source: str
    """file:line of the kernel."""
    graph: str
    """The graph that it was compiled for, if known."""
    model: str
    """file:line of the model at which that graph begins."""
    warps: int | None
    stages: int | None
    registers: int | None
    stack: int | None
    shared: int | None
    binary_bytes: int
    bytes: int
    """Its size on disk."""
    hits: int
    used: float
    made: float
    uid: int
    run: int
    seconds: float | None


def list_kernels(explainer: Explainer) -> list[KernelRow]:
    entries = [one for one in explainer.entries if kind_of(one.path) in ("kernel", "graph")]
    sketches = explainer.reader.sketches(entries)
    owners: dict[str, tuple[MadeEntry, GraphSketch]] = {}
    by_name: dict[str, list[tuple[MadeEntry, KernelSketch]]] = defaultdict(list)
    for entry in entries:
        sketch = sketches.get(entry.path)
        if isinstance(sketch, GraphSketch):
            owners |= {key.rpartition("/")[2]: (entry, sketch) for key in sketch.kernels}
        elif isinstance(sketch, KernelSketch):
            by_name[sketch.name].append((entry, sketch))
    rows = []
    for ones in by_name.values():
        marks = [""] if len(ones) == 1 else told_apart([_facts(one) for _, one in ones], [_key(e) for e, _ in ones])
        rows += [_row(entry, one, mark, owners) for (entry, one), mark in zip(ones, marks, strict=True)]
    return rows


def _facts(sketch: KernelSketch) -> dict[str, str]:
    """Facts that may tell kernels of one name apart."""
    found = {}
    for name, value in sketch.ingredients.items():
        kind, _, short = name.partition(" ")
        found[short or kind] = value
    found["line"] = str(sketch.line)
    for name in ("shared", "registers"):
        if sketch.facts.get(name) is not None:
            found[name] = str(sketch.facts[name])
    return found


def _key(entry: MadeEntry) -> str:
    return entry.path.rpartition("/")[2]


def _row(entry: MadeEntry, one: KernelSketch, mark: str, owners: dict[str, tuple[MadeEntry, GraphSketch]]) -> KernelRow:
    facts = one.facts
    owner = owners.get(_key(entry))
    return KernelRow(
        path=entry.path,
        name=one.name,
        differs=mark,
        arch=str(facts.get("target", "")),
        signature=str(facts.get("signature", "")),
        source=f"{os.path.basename(one.file)}:{one.line}" if one.line else "",
        graph=owner[0].path if owner else "",
        model=str(owner[1].facts.get("model", "")) if owner else "",
        warps=_number(facts.get("warps")),
        stages=_number(facts.get("stages")),
        registers=_number(facts.get("registers")),
        stack=_number(facts.get("stack")),
        shared=_number(facts.get("shared")),
        binary_bytes=int(facts.get("binary_bytes") or 0),
        bytes=entry.stored_bytes,
        hits=entry.hits,
        used=entry.used,
        made=began(entry),
        uid=entry.uid,
        run=entry.run,
        seconds=entry.cost,
    )


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
