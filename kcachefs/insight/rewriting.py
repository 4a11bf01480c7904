"""Why an entry that was there was written again: the program did not take it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kcachefs.core.insight_info import MadeEntry
from kcachefs.errors import ArtefactGarbled
from kcachefs.insight.artefacts import kind_of
from kcachefs.insight.causes import Cause, Kind
from kcachefs.insight.graphs import Graph
from kcachefs.insight.kernels import TritonKernel
from kcachefs.insight.reading import Reader, began
from kcachefs.insight.sketches import KernelSketch

_COMPARED = 50


def rewritten_cause(entry: MadeEntry, reader: Reader, entries: Sequence[MadeEntry]) -> Cause:
    """The cause, as far as what is there now tells it."""
    try:
        recipe = reader.recipe(entry)
    except ArtefactGarbled as error:
        return Cause(Kind.DAMAGED, f"it was there and was written again; {error}", certain=False)
    if isinstance(recipe, TritonKernel):
        return _kernel(entry, recipe, reader, entries)
    if isinstance(recipe, Graph):
        return _graph(recipe)
    return Cause(Kind.DAMAGED, "it was there and was written again, as some programs always do", certain=False)


def _kernel(entry: MadeEntry, kernel: TritonKernel, reader: Reader, entries: Sequence[MadeEntry]) -> Cause:
    """Triton finds a kernel's files by the paths that it wrote down, so that a cache that moved is not found."""
    here = os.path.dirname(kernel.lists_folder)
    older = [one for one in entries if kind_of(one.path) == "kernel" and one.path != entry.path]
    older.sort(key=began)
    for sketch in reader.sketches(older[-_COMPARED:]).values():
        if isinstance(sketch, KernelSketch) and here and os.path.dirname(sketch.lists_folder) not in ("", here):
            there = os.path.dirname(sketch.lists_folder)
            words = f"it was there, but kernels made before name their files in {there}, and the cache is at {here} now"
            return Cause(Kind.PATH, words, certain=False)
    words = "it was there and was written again: a file was missing, or the program always compiles"
    return Cause(Kind.DAMAGED, words, certain=False)


def _graph(graph: Graph) -> Cause:
    if graph.guards:
        words = f"the graph was there for other sizes; this one holds for `{graph.guards[:120]}`"
        return Cause(Kind.TYPE, words, certain=False)
    words = "it was there and was written again: a file that it needs was missing, or its guards did not hold"
    return Cause(Kind.DAMAGED, words, certain=False)
