"""The older compiled graph that a new one is most like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kcachefs.insight.causes import Cause, Kind
from kcachefs.insight.graph_differences import differences
from kcachefs.insight.graphs import Graph
from kcachefs.insight.sketches import GraphSketch, alike, are_strangers, files_of, graph_distance, of_graph

IS_NEW = Cause(Kind.NEW, "new: no graph like it was compiled here before")
_ALIKE_MIN = 0.3
"""A graph with less than this share of operations in common counts as new."""
_STRANGERS_ALIKE_MIN = 0.85
"""The same limit for a graph of another program: small graphs easily look alike."""


def explain_all(new: Sequence[Graph], older: Sequence[Graph]) -> list[tuple[Graph, Graph | None, list[Cause]]]:
    """Explain each new graph. A backward graph gets the cause of its forward graph, if that one is new as well."""
    found = {one.path: explain(one, older) for one in new}
    forward = {one.key: one for one in new if one.kind != "backward" and one.key}
    explained = []
    for one in new:
        leading = forward.get(one.forward_key) if one.kind == "backward" else None
        nearest, causes = found[one.path]
        explained.append((one, nearest, following(causes, found[leading.path][1]) if leading else causes))
    return explained


def following(own: list[Cause], forward: list[Cause]) -> list[Cause]:
    """The causes of a backward graph: first that of its forward graph, from which most of its own causes follow."""
    return [forward[0], *(one for one in own if one.words != forward[0].words)]


def explain(new: Graph, older: Sequence[Graph]) -> tuple[Graph | None, list[Cause]]:
    """The nearest of `older` and what differs, the most telling first; no graph if none is like it."""
    nearest = find_nearest(of_graph(new), [(of_graph(one), one.created) for one in older])
    if nearest is None:
        return None, [IS_NEW]
    return older[nearest], causes(new, older[nearest])


def causes(new: Graph, old: Graph) -> list[Cause]:
    """The differences. They are only guesses if the older graph comes from another program."""
    found = differences(new, old)
    if are_strangers(files_of(new), files_of(old)):
        return [replace(one, certain=False) for one in found]
    return found


def find_nearest(new: GraphSketch, older: Sequence[tuple[GraphSketch, float]]) -> int | None:
    """The index of the nearest older graph; each comes with the time it was made."""
    candidates = [at for at, (one, _) in enumerate(older) if alike(new, one) >= _alike_min(new, one)]
    return min(candidates, key=lambda at: (graph_distance(new, older[at][0]), -older[at][1]), default=None)


def _alike_min(new: GraphSketch, old: GraphSketch) -> float:
    return _STRANGERS_ALIKE_MIN if are_strangers(new.files, old.files) else _ALIKE_MIN
