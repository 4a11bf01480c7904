"""Reads the entries of a cache as recipes, many at a time, and keeps the short form of each in an index."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from kcachefs.core.insight_info import Artifact, MadeEntry
from kcachefs.errors import ArtefactGarbled
from kcachefs.insight import autograd, driver_cache, graphs, helpers, kernels, library_entries, models, sketches, tuning
from kcachefs.insight.artefacts import Cache, kind_of
from kcachefs.insight.autograd import Autograd
from kcachefs.insight.driver_cache import DriverProgram
from kcachefs.insight.graphs import Graph
from kcachefs.insight.helpers import Helper
from kcachefs.insight.index import Index, Sketch, stamp_of
from kcachefs.insight.kernels import TritonKernel
from kcachefs.insight.library_entries import LibraryEntry
from kcachefs.insight.models import Model
from kcachefs.insight.sketches import HelperSketch
from kcachefs.insight.tuning import Tuning

Recipe = TritonKernel | Helper | Graph
_KERNEL_FILES = ("*.json", "*.source", "*.ttir", "*.ptx", "*.cubin", "*.hsaco")
_GRAPH_FILES = ("*",)
_TUNINGS_MAX = 2000
"""How many autotuning choices are read, newest first."""


class Reader:
    """Recipes of a cache's entries."""

    def __init__(self, cache: Cache, index: Index, patience: float | None = None) -> None:
        self.cache, self._index = cache, index
        self.ran_out_of_time = False
        self._until = None if patience is None else time.monotonic() + patience
        self._recipes: dict[str, Recipe | ArtefactGarbled] = {}
        self._written: dict[str, float] = {}

    def recipe(self, entry: MadeEntry) -> Recipe:
        """The whole recipe; `ArtefactGarbled` if its files cannot be understood."""
        if entry.path not in self._recipes:
            self.read([entry])
        found = self._recipes.get(entry.path)
        if isinstance(found, ArtefactGarbled):
            raise found
        if found is None:
            raise ArtefactGarbled(f"{entry.path}: its files are gone")
        return found

    def written(self, entry: MadeEntry) -> float:
        """The time of the newest file that an entry's recipe was read from."""
        self.recipe(entry)
        return self._written.get(entry.path, 0.0)

    def read(self, entries: Iterable[MadeEntry]) -> None:
        """Read these entries at once; `recipe` returns each one afterwards."""
        wanted = [one for one in entries if one.path not in self._recipes]
        for kind, patterns in (("kernel", _KERNEL_FILES), ("graph", _GRAPH_FILES)):
            chosen = [one for one in wanted if kind_of(one.path) == kind]
            for entry, files in self.files(chosen, patterns):
                self._written[entry.path] = max(one.modified for one in files.values())
                try:
                    self._recipes[entry.path] = (
                        read_kernel(entry, files) if kind == "kernel" else read_graph(entry, files)
                    )
                except ArtefactGarbled as error:
                    self._recipes[entry.path] = ArtefactGarbled(f"{entry.path}: {error}")
        if not self.ran_out_of_time:
            self._read_names([one for one in wanted if one.path not in self._recipes and kind_of(one.path) == "kernel"])

    def _read_names(self, entries: Sequence[MadeEntry]) -> None:
        """Identify the entries without a kernel file by the names of their files."""
        for entry, files in self.files(entries, helpers.FILES, head=1) if entries else ():
            helper = helpers.read(entry.path, files)
            self._recipes[entry.path] = helper or ArtefactGarbled(f"{entry.path}: holds no file of a kernel")

    def files(
        self, entries: Sequence[MadeEntry], patterns: Sequence[str], head: int | None = None
    ) -> Iterator[tuple[MadeEntry, dict[str, Artifact]]]:
        by_number = {one.entry: one for one in entries}
        for number, found in groupby(self.cache.artefacts(entries, patterns, head), key=lambda one: one.entry):
            yield by_number[number], {one.file: one for one in found}
            if self._until is not None and time.monotonic() > self._until:
                self.ran_out_of_time = True
                return

    def sketches(self, entries: Sequence[MadeEntry]) -> dict[str, Sketch]:
        """The short form of each entry, from the index if known; other kinds than kernels and graphs are left out."""
        known = self._index.get(entries)
        missing = [one for one in entries if one.path not in known]
        if missing:
            self.read(missing)
            made: list[tuple[MadeEntry, Sketch]] = []
            for entry in missing:
                recipe = self._recipes.get(entry.path)
                if recipe is not None:
                    made.append((entry, _sketch(recipe)))
            self._index.put(made)
            known |= {entry.path: one for entry, one in made}
        return known

    def kernels_by_name(self, entries: Sequence[MadeEntry]) -> dict[str, list[MadeEntry]]:
        """The kernels among these entries by name; only the names are read."""
        indexed = self._index.names()
        found: dict[str, list[MadeEntry]] = {}
        unknown = []
        for one in entries:
            if kind_of(one.path) == "kernel":
                stamp, name = indexed.get(one.path, ("", ""))
                if stamp == stamp_of(one):
                    found.setdefault(name, []).append(one)
                else:
                    unknown.append(one)
        named = [(entry, kernels.name_of(files) or "") for entry, files in self.files(unknown, ("__grp__*.json",))]
        for entry, name in named:
            found.setdefault(name, []).append(entry)
        self._index.put_names(named)
        return found

    def models(self, entries: Sequence[MadeEntry]) -> dict[str, Model]:
        """The models that vLLM recorded, by the path of the entry; entries that reveal nothing are left out."""
        found = {}
        for path, when, data in self._newest(entries, models.FILES):
            with contextlib.suppress(ArtefactGarbled):
                found[path] = models.read(path, when, data)
        return found

    def driver_programs(self, entries: Sequence[MadeEntry]) -> dict[str, DriverProgram]:
        """The programs that the CUDA driver recorded, in the same way."""
        found = {}
        for path, when, data in self._newest(entries, driver_cache.FILES):
            with contextlib.suppress(ArtefactGarbled):
                found[path] = driver_cache.read(path, when, data)
        return found

    def library_entries(self, entries: Sequence[MadeEntry]) -> dict[str, LibraryEntry]:
        """The entries of library caches, by path: from the index, or from the beginning of each file."""
        known = self._index.get(entries)
        made: list[tuple[MadeEntry, Sketch]] = []
        missing = [one for one in entries if one.path not in known]
        for entry, files in self.files(missing, ("*",), library_entries.HEAD_BYTES) if missing else ():
            for file in files.values():
                try:
                    sketch: Sketch = library_entries.read(entry.path, began(entry), file.content or b"")
                except ArtefactGarbled as error:
                    sketch = str(error)
                made.append((entry, sketch))
        self._index.put(made)
        known |= {entry.path: one for entry, one in made}
        return {path: one for path, one in known.items() if isinstance(one, LibraryEntry)}

    def tunings(self, entries: Sequence[MadeEntry]) -> dict[str, Tuning]:
        """The choices of autotuning, by the path of the entry."""
        found = {}
        chosen = sorted((one for one in entries if kind_of(one.path) == "tuning"), key=began)[-_TUNINGS_MAX:]
        for path, _, data in self._newest(chosen, tuning.FILES) if chosen else ():
            with contextlib.suppress(ArtefactGarbled):
                found[path] = tuning.read(path, data)
        return found

    def _newest(self, entries: Sequence[MadeEntry], patterns: Sequence[str]) -> Iterator[tuple[str, float, bytes]]:
        for entry, files in self.files(entries, patterns):
            newest = max(files.values(), key=lambda one: one.modified)
            yield entry.path, began(entry), newest.content or b""

    def link(self, found: Sequence[Graph], entries: Sequence[MadeEntry]) -> dict[int, float]:
        """Add to graphs what their autograd entries know; returns the cost of those entries beyond the graphs."""
        seconds = {graph.key: graph.seconds for graph in found if graph.key}
        beyond: dict[int, float] = {}
        by_forward: dict[str, Autograd] = {}
        by_backward: dict[str, Autograd] = {}
        chosen = [one for one in entries if kind_of(one.path) == "autograd"]
        for entry, files in self.files(chosen, _GRAPH_FILES):
            for file in sorted(files.values(), key=lambda one: one.modified):
                try:
                    told = autograd.read(entry.path, entry.created, file.content or b"")
                except ArtefactGarbled:
                    continue
                by_forward[told.forward] = by_backward[told.backward] = told
                more = told.beyond(seconds)
                if more is not None:
                    beyond[entry.entry] = more  # the newest wins: read_graph takes the newest graph, too
        for graph in found:
            if graph.key in by_forward:
                graph.input_names = by_forward[graph.key].inputs
            elif graph.key in by_backward:
                graph.forward_key = by_backward[graph.key].forward
        return beyond


def read_kernel(entry: MadeEntry, files: dict[str, Artifact]) -> TritonKernel:
    def content(name: str) -> bytes:
        file = files.get(name)
        return (file.content if file is not None else None) or b""

    return kernels.read(entry.path, _compiled(entry, files), files, content)


def read_graph(entry: MadeEntry, files: dict[str, Artifact]) -> Graph:
    """The newest graph of the entry: there may be several, for different sizes."""
    newest = max(files.values(), key=lambda one: one.modified)
    return graphs.read(entry.path, _compiled(entry, files), newest.content or b"")


def began(entry: MadeEntry) -> float:
    return entry.began if entry.began is not None else entry.created


def _compiled(entry: MadeEntry, files: dict[str, Artifact]) -> float:
    """When an entry was compiled, which may be long before it came into this cache."""
    return min([began(entry), *(one.modified for one in files.values())])


def _sketch(recipe: Recipe | ArtefactGarbled) -> Sketch:
    if isinstance(recipe, TritonKernel):
        return sketches.of_kernel(recipe)
    if isinstance(recipe, Helper):
        return HelperSketch(recipe.name)
    return sketches.of_graph(recipe) if isinstance(recipe, Graph) else str(recipe)
