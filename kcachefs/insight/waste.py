"""Needless duplicates among compiled entries: the same code by two versions of ptxas, the same graph twice."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from kcachefs.core.insight_info import MadeEntry
from kcachefs.insight.artefacts import kind_of
from kcachefs.insight.explaining import Explainer
from kcachefs.insight.kernels import base
from kcachefs.insight.sketches import GraphSketch, KernelSketch


class Duplicate(msgspec.Struct, frozen=True):
    """Several entries where one would do."""

    words: str
    entries: list[str]
    bytes: int
    """The size on disk of all of them but the largest."""


def find_waste(explainer: Explainer) -> list[Duplicate]:
    """Duplicates, the largest first."""
    known = [one for one in explainer.entries if kind_of(one.path) in ("kernel", "graph")]
    sketches = explainer.reader.sketches(known)
    kernels: dict[tuple[str, ...], list[tuple[MadeEntry, KernelSketch]]] = defaultdict(list)
    graphs: dict[tuple[str, ...], list[tuple[MadeEntry, GraphSketch]]] = defaultdict(list)
    for entry in known:
        sketch = sketches.get(entry.path)
        if isinstance(sketch, KernelSketch) and sketch.facts.get("ptx"):
            kernels[sketch.name, str(sketch.facts["target"]), str(sketch.facts["ptx"])].append((entry, sketch))
        elif isinstance(sketch, GraphSketch) and sketch.code:
            graphs[sketch.code, sketch.kind, *sketch.inputs].append((entry, sketch))
    found = [_kernels(ones) for ones in kernels.values() if len(ones) > 1]
    found += [_graphs(ones) for ones in graphs.values() if len(ones) > 1]
    return sorted(found, key=lambda one: -one.bytes)


def _kernels(ones: list[tuple[MadeEntry, KernelSketch]]) -> Duplicate:
    name, target = ones[0][1].name, ones[0][1].facts["target"]
    assemblers = sorted({str(one.facts.get("ptxas") or "an older one") for _, one in ones})
    places = sorted({f"{base(one.file)}:{one.line}" for _, one in ones})
    if len(assemblers) > 1:
        why = f"by ptxas {' and '.join(assemblers)}"
    elif len(places) > 1:
        why = f"from {' and '.join(places[:3])}"
    else:
        why = "with differences that do not reach the code"
    return _duplicate(
        f"{name} for {target}: {len(ones)} kernels have the same PTX, compiled {why}", [e for e, _ in ones]
    )


def _graphs(ones: list[tuple[MadeEntry, GraphSketch]]) -> Duplicate:
    versions = sorted({str(one.facts.get("version")) for _, one in ones})
    if len(versions) > 1:
        why = f"by torch {' and '.join(versions)}"
    else:
        why = "with other settings"
    return _duplicate(f"{ones[0][1].name}: {len(ones)} graphs compute the same, compiled {why}", [e for e, _ in ones])


def _duplicate(words: str, entries: list[MadeEntry]) -> Duplicate:
    sizes = sorted(one.stored_bytes for one in entries)
    return Duplicate(words, [one.path for one in entries], sum(sizes[:-1]))
