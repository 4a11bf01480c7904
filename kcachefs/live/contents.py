"""The entries of a watched mount and their groups, kept until something changes. May be used from any thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kcachefs.core.insight_info import MadeEntry
from kcachefs.insight.artefacts import kind_of
from kcachefs.insight.explaining import Explainer
from kcachefs.insight.sketches import GraphSketch, HelperSketch

_REST_FACTOR = 20.0
"""Listing all entries takes at most this fraction of the time: one part in 20."""
_REST_MIN = 3.0
_NAMED_AT_ONCE = 2_000
"""Kernels whose names are read in one look; the next look gets further."""

GroupKey = tuple[str, str]
"""The kind of a group, as in `view.Group.what`, and its name."""
_HELPERS: GroupKey = ("folder", "launchers and driver helpers")


@dataclass(slots=True)
class Grouped:
    """Entries by namespace and group."""

    complete: bool
    groups: dict[str, dict[GroupKey, list[MadeEntry]]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """The names of kernels and graphs, by path."""
    helpers: set[str] = field(default_factory=set)
    """Paths of the entries that Triton compiled for the host."""


class Contents:
    """What is known about the entries of one mount."""

    def __init__(self, ask: Callable[[], list[MadeEntry]], change: Callable[[], object]) -> None:
        self._ask, self._change = ask, change
        self._lock = threading.Lock()
        self._entries: list[MadeEntry] = []
        self._asked, self._took, self._known = 0.0, 0.0, object()
        self._grouped: Grouped | None = None
        self._tried: set[str] = set()
        """Kernels whose names were read, or could not be."""

    def entries(self) -> list[MadeEntry]:
        """All entries, as of the last change, or as of shortly before it where there are very many."""
        with self._lock:
            now, change = time.monotonic(), self._change()
            rest = max(_REST_MIN, _REST_FACTOR * self._took)
            if not self._asked or (change != self._known and now - self._asked > rest):
                self._entries, self._grouped = self._ask(), None
                self._asked, self._known = time.monotonic(), change
                self._took = self._asked - now
            return self._entries

    def forget(self) -> None:
        """Drop the list, so that the next look lists the entries again."""
        with self._lock:
            self._asked = 0.0

    def grouped(self, explainer: Explainer) -> Grouped:
        """The entries in groups; unknown names are read first, as many as one look allows."""
        with self._lock:
            if self._grouped is None or not self._grouped.complete:
                self._grouped = self._group(explainer)
            return self._grouped

    def _group(self, explainer: Explainer) -> Grouped:
        graphs = [one for one in explainer.entries if kind_of(one.path) == "graph"]
        sketches = explainer.reader.sketches(graphs)
        models: dict[str, str] = {}
        found = Grouped(complete=True)
        for entry in graphs:
            sketch = sketches.get(entry.path)
            if isinstance(sketch, GraphSketch):
                found.names[entry.path] = sketch.name
                if model := short_place(str(sketch.facts.get("model") or "")):
                    models[entry.path] = model
                    models |= {key.rpartition("/")[2]: model for key in sketch.kernels}
        self._name_kernels(explainer, found)
        for entry in explainer.entries:
            is_helper = entry.path in found.helpers
            key = _HELPERS if is_helper else _group_of(entry, found.names.get(entry.path, ""), models)
            found.groups.setdefault(entry.namespace or "/", {}).setdefault(key, []).append(entry)
        return found

    def _name_kernels(self, explainer: Explainer, found: Grouped) -> None:
        kernels = [one for one in explainer.entries if kind_of(one.path) == "kernel"]
        self._tried &= {one.path for one in kernels}
        new = sorted((one for one in kernels if one.path not in self._tried), key=lambda one: -one.used)
        chosen = {one.path for one in new[:_NAMED_AT_ONCE]} | self._tried
        named = explainer.reader.kernels_by_name([one for one in kernels if one.path in chosen])
        for name, ones in named.items():
            found.names |= {one.path: name for one in ones if name}
        in_time = not explainer.reader.ran_out_of_time
        self._tried |= chosen if in_time else {one.path for ones in named.values() for one in ones}
        unnamed = [one for one in kernels if one.path in chosen and one.path not in found.names]
        sketches = explainer.reader.sketches(unnamed)
        found.helpers |= {path for path, one in sketches.items() if isinstance(one, HelperSketch)}
        found.complete = in_time and len(new) <= _NAMED_AT_ONCE


def short_place(place: str) -> str:
    """A line of a source file as people call it.

    >>> short_place("/home/me/nets/model.py:12"), short_place("")
    ('model.py:12', '')
    """
    return os.path.basename(place)


def _group_of(entry: MadeEntry, name: str, models: dict[str, str]) -> GroupKey:
    kind, parts = kind_of(entry.path), entry.path.split("/")
    if model := models.get(entry.path) or models.get(parts[-1]):
        return "model", model
    if kind == "kernel":
        return ("kernel", name) if name else ("folder", "kernels without a name")
    if kind in ("graph", "autograd"):
        return "folder", "graphs" if kind == "graph" else "autograd graphs"
    return "folder", parts[1] if len(parts) > 2 else "files"
