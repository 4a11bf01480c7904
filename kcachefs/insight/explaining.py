"""Explains the misses of a run, or since some time: compares each with the nearest entry that the run did not make."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kcachefs.core.insight_info import MadeEntry, RunInfo, Tombstone, is_cost, path_hash
from kcachefs.errors import ArtefactGarbled
from kcachefs.insight import graph_nearest, helpers, kernel_nearest, others
from kcachefs.insight.artefacts import Cache, kind_of, tree_of
from kcachefs.insight.causes import Cause, Kind
from kcachefs.insight.graphs import Graph
from kcachefs.insight.helpers import Helper
from kcachefs.insight.index import Index, Sketch
from kcachefs.insight.kernels import TritonKernel
from kcachefs.insight.library_entries import LibraryEntry
from kcachefs.insight.others import Other
from kcachefs.insight.reading import Reader, began
from kcachefs.insight.rewriting import with_rewriting
from kcachefs.insight.sketches import GraphSketch, KernelSketch
from kcachefs.insight.sources import reader_for
from kcachefs.insight.tuning import Tuning

_ASKED_TO = ("evicted", "pruned")
_WRITTEN_LATE_SECONDS = 5.0
"""The recorded last use of a run may lag behind the true one by this much."""
_RUNS_SEARCHED = 20
"""How many of the newest runs are searched for the maker of an entry whose maker is unknown."""
_OTHERS = ("model", "driver", "library")
_READ_LIBRARY_MAX = 5000
"""How many entries of library caches are read, newest first."""
_READ_UNNAMED_MAX = 300
"""How many entries are read only to see whether a kernel was renamed."""


class Told(msgspec.Struct, frozen=True):
    """A cause, in its JSON form."""

    kind: str
    words: str
    certain: bool


class Explanation(msgspec.Struct, frozen=True):
    """Why one entry had to be compiled."""

    path: str
    kind: str
    """model, program, call, value, graph, kernel or helper."""
    name: str
    causes: list[Told]
    """The most telling cause first."""
    nearest: str | None = None
    """The entry that it is compared with."""
    graph: str | None = None
    """For a kernel: the new graph that it was compiled for, whose cause is reported first."""
    run: int = 0
    seconds: float | None = None
    """How long it took to make; None if unknown."""
    tuned: str | None = None
    """For an Inductor kernel: what autotuning chose, if it chose this one."""


_DECODER = msgspec.msgpack.Decoder(Explanation)


class Explainer:
    """Explains entries of one cache."""

    def __init__(self, cache: Cache, index: Index, patience: float | None = None) -> None:
        """With `patience`, reading stops after that many seconds: an unread entry is treated as if it did not exist."""
        self.cache, self._index = cache, index
        self.reader = Reader(cache, index, patience)
        self._tombstones: dict[bytes, Tombstone] | None = None
        self._rewritten: set[str] = set()

    @functools.cached_property
    def entries(self) -> list[MadeEntry]:
        """All entries. Not read if all explanations are known: a mount returns only the chosen entries much sooner."""
        found = self.cache.entries()
        self._index.forget_all_but({one.path for one in found})
        return found

    def made_by(self, run: RunInfo) -> list[MadeEntry]:
        """What a run compiled: entries that it made, and those that it wrote again."""
        written = self.cache.entries(run=run.run, since=run.started)
        again = [one for one in written if one.rewriter == run.run or _is_written_within(one, run)]
        self._rewritten |= {one.path for one in again}
        return [one for one in written if one.run == run.run or one.path in self._rewritten]

    def made_since(self, when: float) -> list[MadeEntry]:
        written = self.cache.entries(since=when)
        again = [one for one in written if began(one) < when <= max(one.rewritten or 0.0, one.ended or 0.0)]
        self._rewritten |= {one.path for one in again}
        return [one for one in written if began(one) >= when or one.path in self._rewritten]

    def last_run(self) -> RunInfo | None:
        """The newest run that compiled something; else the newest run."""
        runs = self.cache.runs(settle=True)
        if runs and runs[-1].misses:
            return runs[-1]
        missed = next((run for run in reversed(runs) if run.misses), runs[0] if runs else None)
        # A run that only wrote into entries that others had begun, or copied entries, has no misses.
        written = self.cache.entries(run=missed.run, since=missed.started) if missed is not None else []
        makers = {number for one in written for number in (one.run, one.rewriter)}
        unknown = [one for one in written if not one.run and not one.rewriter]
        for age, run in enumerate(reversed(runs)):
            if run.misses or run.run in makers:
                return run
            if age < _RUNS_SEARCHED and any(_is_written_within(one, run) for one in unknown):
                return run
        return runs[-1] if runs else None

    def explain(self, chosen: Sequence[MadeEntry], boundary: float | None = None) -> list[Explanation]:
        """Graphs first, then kernels. Older are entries made before the boundary; without one, those of other runs."""
        graphs = [one for one in chosen if kind_of(one.path) == "graph"]
        kernels = [one for one in chosen if kind_of(one.path) == "kernel"]
        beside = [one for one in chosen if kind_of(one.path) in _OTHERS]
        every = [*beside, *graphs, *kernels]
        known = self._index.explanations(every)
        if len(known) == len(every):
            return [one for entry in every if (one := _DECODER.decode(known[entry.path])).causes]
        self.reader.sketches([*graphs, *kernels])
        explained = self._graphs(graphs, boundary)
        explained += self._kernels(kernels, boundary, explained)
        explained = self._others(beside, boundary) + explained
        if not self.reader.ran_out_of_time:
            by_path = {one.path: one for one in explained}
            nothing = Explanation("", "", "", [])
            rows = [(one, msgspec.msgpack.encode(by_path.get(one.path, nothing))) for one in every]
            self._index.put_explanations(rows)
        return explained

    # --- models and the driver's programs -----------------------------------------------------------------------------

    def _others(self, chosen: Sequence[MadeEntry], boundary: float | None) -> list[Explanation]:
        """Explains entries of vLLM, the CUDA driver and library caches; entries that reveal nothing are left out."""
        explained = []
        for kind in _OTHERS:
            wanted = [one for one in chosen if kind_of(one.path) == kind]
            every = [one for one in self.entries if kind_of(one.path) == kind] if wanted else []
            found = self._read_others(kind, every)
            for entry in wanted:
                if entry.path in found:
                    older = {one.path: one for one in self._older(entry, every, boundary) if one.path in found}
                    nearest, causes = others.explain(found[entry.path], [found[path] for path in older])
                    near = older[nearest] if nearest is not None else None
                    causes = self._with_past(entry, causes)
                    one = found[entry.path]
                    word = one.kind if isinstance(one, LibraryEntry) else "model" if kind == "model" else "program"
                    explained.append(_explanation(entry, word, one.name, near, causes, entry.cost))
        return explained

    def _read_others(self, kind: str, entries: Sequence[MadeEntry]) -> Mapping[str, Other]:
        if not entries:
            return {}
        if kind == "library":
            return self.reader.library_entries(sorted(entries, key=began)[-_READ_LIBRARY_MAX:])
        return self.reader.models(entries) if kind == "model" else self.reader.driver_programs(entries)

    # --- graphs -------------------------------------------------------------------------------------------------------

    def _graphs(self, chosen: Sequence[MadeEntry], boundary: float | None) -> list[Explanation]:
        if not chosen:
            return []
        every = [one for one in self.entries if kind_of(one.path) == "graph"]
        sketches = self.reader.sketches(every)
        self.reader.read(chosen)
        found: dict[str, tuple[MadeEntry | None, list[Cause]]] = {}
        recipes: dict[str, Graph] = {}
        for entry in chosen:
            try:
                recipe = self.reader.recipe(entry)
            except ArtefactGarbled as error:
                found[entry.path] = None, [_garbled(error)]
                continue
            if isinstance(recipe, Graph):
                recipes[entry.path] = recipe
        beside = [one for one in self.entries if self._is_of(one, chosen, boundary)]
        parts = self.reader.link(list(recipes.values()), beside)
        for entry in chosen:
            if entry.path in recipes:
                older = [
                    (one, sketch)
                    for one in self._older(entry, every, boundary)
                    if isinstance(sketch := sketches.get(one.path), GraphSketch)
                ]
                found[entry.path] = self._graph(entry, recipes[entry.path], older, sketches)
        measured = {
            entry.entry: recipes[entry.path].seconds
            for entry in chosen
            if entry.path in recipes and entry.basis != "artefact"
        }
        costs = {entry: seconds for entry, seconds in measured.items() if is_cost(seconds)}
        parts = {one.entry: parts[one.entry] for one in beside if not one.basis and is_cost(parts.get(one.entry))}
        if costs or parts:
            self.cache.note_costs(costs, parts)
        forward = {one.key: path for path, one in recipes.items() if one.kind != "backward" and one.key}
        explained = []
        for entry in chosen:
            nearest, causes = found[entry.path]
            graph = recipes.get(entry.path)
            leading = forward.get(graph.forward_key) if graph is not None and graph.kind == "backward" else None
            if leading is not None:
                causes = graph_nearest.following(causes, found[leading][1])
            name = graph.name if graph is not None else entry.name
            seconds = costs.get(entry.entry, entry.cost)
            explained.append(_explanation(entry, "graph", name, nearest, self._with_past(entry, causes), seconds))
        return explained

    def _graph(
        self,
        entry: MadeEntry,
        graph: Graph,
        older: Sequence[tuple[MadeEntry, GraphSketch]],
        sketches: Mapping[str, Sketch],
    ) -> tuple[MadeEntry | None, list[Cause]]:
        own = sketches.get(entry.path)
        if not isinstance(own, GraphSketch):
            return None, [graph_nearest.IS_NEW]
        at = graph_nearest.find_nearest(own, [(sketch, began(one)) for one, sketch in older])
        if at is None:
            return None, [graph_nearest.IS_NEW]
        nearest = older[at][0]
        try:
            recipe = self.reader.recipe(nearest)
        except ArtefactGarbled as error:
            return nearest, [_garbled(error)]
        return nearest, graph_nearest.causes(graph, recipe) if isinstance(recipe, Graph) else [graph_nearest.IS_NEW]

    # --- kernels ------------------------------------------------------------------------------------------------------

    def _kernels(
        self, chosen: Sequence[MadeEntry], boundary: float | None, graphs: Sequence[Explanation]
    ) -> list[Explanation]:
        if not chosen:
            return []
        by_name = self.reader.kernels_by_name(self.entries)
        owners = self._owners(graphs)
        tunings = self.tunings()
        self._note_tunings()
        self.reader.read(chosen)
        nearest: dict[str, MadeEntry | None] = {}
        for entry in chosen:
            nearest[entry.path] = self._nearest_kernel(entry, by_name, boundary)
        self.reader.read([one for one in nearest.values() if one is not None])
        explained = []
        for entry in chosen:
            kind, causes, name = self._kernel(entry, nearest[entry.path])
            owner = owners.get(entry.path.rpartition("/")[2])
            if owner is not None:
                first = owner.causes[0]
                causes = [Cause(Kind(first.kind), first.words, first.certain), *causes]
            causes = self._with_past(entry, causes)
            one = _explanation(entry, kind, name, nearest[entry.path], causes, entry.cost)
            tuned = tunings.get(entry.path.rpartition("/")[2])
            extra = {"graph": owner.path if owner else None, "tuned": tuned.words if tuned else None}
            explained.append(msgspec.structs.replace(one, **extra))
        return explained

    def _kernel(self, entry: MadeEntry, nearest: MadeEntry | None) -> tuple[str, list[Cause], str]:
        """The kernel's kind, why it is new, and its name."""
        try:
            kernel = self.reader.recipe(entry)
        except ArtefactGarbled as error:
            return "kernel", [_garbled(error)], entry.name
        if isinstance(kernel, Helper):
            return "helper", [helpers.IS_NEW], kernel.name
        if not isinstance(kernel, TritonKernel):
            return "kernel", [], entry.name
        if nearest is None:
            return "kernel", [kernel_nearest.IS_NEW], kernel.name
        try:
            old = self.reader.recipe(nearest)
        except ArtefactGarbled as error:
            return "kernel", [_garbled(error)], kernel.name
        if not isinstance(old, TritonKernel):
            return "kernel", [], kernel.name
        return "kernel", kernel_nearest.causes(kernel, old, reader_for(entry.uid, nearest.uid)), kernel.name

    def _nearest_kernel(
        self, entry: MadeEntry, by_name: dict[str, list[MadeEntry]], boundary: float | None
    ) -> MadeEntry | None:
        own = self.reader.sketches([entry]).get(entry.path)
        if not isinstance(own, KernelSketch):
            return None
        candidates = self._older(entry, by_name.get(own.name, ()), boundary)
        if not candidates:
            others = [one for ones in by_name.values() for one in ones]
            candidates = sorted(self._older(entry, others, boundary), key=began)[-_READ_UNNAMED_MAX:]
        sketches = self.reader.sketches(candidates)
        older = [(one, sketch) for one in candidates if isinstance(sketch := sketches.get(one.path), KernelSketch)]
        at = kernel_nearest.find_nearest(own, [(sketch, began(one)) for one, sketch in older])
        return older[at][0] if at is not None else None

    def _owners(self, graphs: Sequence[Explanation]) -> dict[str, Explanation]:
        """For each kernel key, the new graph that the kernel was compiled for."""
        known = {one.path: one for one in self.entries}
        sketches = self.reader.sketches([known[one.path] for one in graphs if one.path in known])
        return {
            key.rpartition("/")[2]: graph
            for graph in graphs
            if isinstance(sketch := sketches.get(graph.path), GraphSketch)
            for key in sketch.kernels
        }

    # --- what is older, and the past ----------------------------------------------------------------------------------

    def _older(self, entry: MadeEntry, others: Iterable[MadeEntry], boundary: float | None) -> list[MadeEntry]:
        """The entries that could have been hit, without autotuning's siblings, which would hide the cause."""
        trees = ("", tree_of(entry.path))
        others = [one for one in others if tree_of(one.path) in trees]
        if boundary is not None:
            return [one for one in others if began(one) < boundary and one.path != entry.path]
        start = began(entry)
        return [
            one
            for one in others
            if (began(one) < start or one.created < entry.created)  # a copied entry may be older than it says
            and one.path != entry.path
            and (one.run != entry.run or not entry.run)
        ]

    @functools.cached_property
    def _tuned(self) -> dict[str, Tuning]:
        return self.reader.tunings(self.entries)

    def tunings(self) -> dict[str, Tuning]:
        """What autotuning chose, by the key of the chosen kernel."""
        return {one.kernel: one for one in self._tuned.values() if one.kernel}

    def _note_tunings(self) -> None:
        unknown = [(one, self._tuned[one.path].seconds) for one in self.entries if one.path in self._tuned]
        took = {one.entry: seconds for one, seconds in unknown if not one.basis and is_cost(seconds)}
        if took:
            self.cache.note_costs({}, took)

    def _is_of(self, one: MadeEntry, chosen: Sequence[MadeEntry], boundary: float | None) -> bool:
        """Whether an autograd entry was made along with the chosen ones."""
        if kind_of(one.path) != "autograd":
            return False
        runs = {entry.run for entry in chosen} - {0}
        first = min(began(entry) for entry in chosen)
        return one.run in runs or began(one) >= (boundary if boundary is not None else first)

    @functools.cached_property
    def _started(self) -> dict[int, float]:
        """When each run began."""
        return {run.run: run.started for run in self.cache.runs()}

    def _with_past(self, entry: MadeEntry, causes: list[Cause]) -> list[Cause]:
        """The causes, with what happened to an entry at the same path: evicted, damaged, or written again."""
        if self._tombstones is None:
            self._tombstones = {one.path_hash: one for one in self.cache.tombstones()}
        stone = self._tombstones.get(path_hash(entry.path))
        is_rewritten = entry.path in self._rewritten or (entry.rewritten is not None and entry.rewriter != entry.run)
        if is_rewritten and kind_of(entry.path) in ("kernel", "graph"):
            # A damaged entry loses only the damaged file, and is then written into again.
            if stone is None or stone.why != "damaged" or stone.when < began(entry):
                started = self._started.get(entry.rewriter)
                return with_rewriting(entry, causes, started, self.reader, self.entries)
        elif stone is None or stone.when > max(began(entry), entry.created) + 1.0:
            return causes
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stone.when))
        if stone.why == "power cut":
            return [
                Cause(Kind.DAMAGED, f"it was here until {when}, and had not reached the disk at a power cut"),
                *causes,
            ]
        if stone.why == "damaged":
            return [Cause(Kind.DAMAGED, f"it was here until {when}, when its bytes were found damaged"), *causes]
        why = f"somebody asked for it ({stone.why})" if stone.why in _ASKED_TO else f"to make room ({stone.why})"
        return [Cause(Kind.EVICTED, f"it was here until {when}, when it was evicted: {why}"), *causes]


def _is_written_within(entry: MadeEntry, run: RunInfo) -> bool:
    """Whether an old entry with an unknown maker was last written while a run used the cache."""
    if entry.run or entry.rewriter or entry.ended is None:
        return False
    return began(entry) < run.started <= entry.ended <= run.last_used + _WRITTEN_LATE_SECONDS


def _garbled(error: ArtefactGarbled) -> Cause:
    return Cause(Kind.UNKNOWN, f"its files cannot be understood: {error}", certain=False)


def _explanation(
    entry: MadeEntry, kind: str, name: str, nearest: MadeEntry | None, causes: list[Cause], seconds: float | None
) -> Explanation:
    told = [Told(one.kind.value, one.words, one.certain) for one in causes]
    run = entry.rewriter if entry.rewritten is not None else entry.run
    return Explanation(entry.path, kind, name, told, nearest.path if nearest else None, None, run, seconds)
