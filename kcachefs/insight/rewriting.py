"""Why an entry was written again: the program did not accept it, or several programs compiled it at the same time."""

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

AT_ONCE = Cause(Kind.NEW, "several processes compiled it at once: none could find it yet")
_COMPARED = 50
_KERNEL_SECONDS = 60.0
"""The longest that a kernel takes to compile: kernels do not record when their compilation began."""
_SAVED_SECONDS = 1.0
"""The longest time between compiling a graph and writing it."""


def with_rewriting(
    entry: MadeEntry, own: list[Cause], started: float | None, reader: Reader, entries: Sequence[MadeEntry]
) -> list[Cause]:
    """The causes of an entry that the run begun at `started` wrote again; `own` are the causes of its first making.

    If the second copy was begun before the first was finished, only the causes of the first apply.
    """
    if started is not None and _is_begun_before_its_end(entry, started, reader):
        return [*own, AT_ONCE]
    return [_cause(entry, reader, entries), *own]


def _is_begun_before_its_end(entry: MadeEntry, started: float, reader: Reader) -> bool:
    """Whether a run began to compile an entry before another run had finished it."""
    try:
        recipe, written = reader.recipe(entry), reader.written(entry)
    except ArtefactGarbled:
        return False
    longest = recipe.seconds if isinstance(recipe, Graph) else _KERNEL_SECONDS
    begun = max(started, written - (longest or 0.0) - _SAVED_SECONDS)
    return entry.rewritten is not None and entry.ended is not None and begun <= entry.ended


def _cause(entry: MadeEntry, reader: Reader, entries: Sequence[MadeEntry]) -> Cause:
    """Why a program did not accept the existing entry, as far as the present files show it."""
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
    """Triton finds a kernel's files by the paths that it recorded, so it finds none in a cache that was moved."""
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
