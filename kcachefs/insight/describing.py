"""One entry in detail, the texts that it holds, and the comparison of two entries ingredient by ingredient."""

from __future__ import annotations

import time

from kcachefs.config import format_size
from kcachefs.core.insight_info import MadeEntry
from kcachefs.errors import ArtefactGarbled, UsageError
from kcachefs.insight import library_entries, pickle_walk
from kcachefs.insight.artefacts import kind_of
from kcachefs.insight.causes import Kind, clipped
from kcachefs.insight.explaining import Explainer, Told
from kcachefs.insight.graph_differences import differences as graph_differences
from kcachefs.insight.graphs import Graph
from kcachefs.insight.helpers import Helper
from kcachefs.insight.kernel_differences import differences as kernel_differences
from kcachefs.insight.kernel_differences import type_in_words
from kcachefs.insight.kernels import TritonKernel
from kcachefs.insight.library_entries import LibraryEntry
from kcachefs.insight.pickle_walk import Described
from kcachefs.insight.reading import Recipe, began
from kcachefs.insight.sketches import GraphSketch
from kcachefs.insight.sources import reader_for

_KERNEL_TEXTS = {"source": ("*.source", "*.ttir"), "ptx": ("*.ptx",), "ttir": ("*.ttir",)}


def describe(explainer: Explainer, entry: MadeEntry) -> dict[str, str]:
    """Facts by name, in the order in which people want them."""
    facts = {"entry": entry.path, **_facts(explainer, entry)}
    facts["made"] = (
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began(entry)))
        + f" by user {entry.uid}"
        + (f" in run {entry.run}" if entry.run else "")
    )
    facts["cost"] = "unknown" if entry.cost is None else f"{entry.cost:.2f} s"
    facts["hits"] = f"{entry.hits}, last used {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(entry.used))}"
    facts["size"] = (
        f"{format_size(entry.plain_bytes)} in {entry.files} files, {format_size(entry.stored_bytes)} on disk"
    )
    return {name: value for name, value in facts.items() if value}


def _facts(explainer: Explainer, entry: MadeEntry) -> dict[str, str]:
    kind = kind_of(entry.path)
    if kind == "library":
        return library_entries.facts(_library_entry(explainer, entry))
    if kind == "tuning":
        found = next(iter(explainer.reader.tunings([entry]).values()), None)
        return {"autotuning chose": found.words, "kernel": found.kernel} if found is not None else {}
    recipe = _recipe(explainer, entry)
    if isinstance(recipe, Helper):
        return {"holds": f"{recipe.words} ({recipe.name})"}
    return _of_kernel(recipe, explainer, entry) if isinstance(recipe, TritonKernel) else _of_graph(recipe)


def _library_entry(explainer: Explainer, entry: MadeEntry) -> LibraryEntry:
    found = explainer.reader.library_entries([entry]).get(entry.path)
    if found is None:
        raise ArtefactGarbled(f"{entry.path}: is not an entry of a library cache")
    return found


def text_of(explainer: Explainer, entry: MadeEntry, which: str) -> str:
    """A text that the entry holds."""
    if kind_of(entry.path) == "graph":
        return _graph_text(explainer, entry, which)
    if which == "graph":
        owner = _owner(explainer, entry)
        if owner is None:
            raise UsageError(f"{entry.path}: no graph that is stored here runs it")
        return _graph_text(explainer, owner, which)
    for _, files in explainer.reader.files([entry], _KERNEL_TEXTS[which]):
        for file in sorted(files.values(), key=lambda one: not one.file.endswith(".source")):
            return (file.content or b"").decode("utf-8", "replace")
    raise UsageError(f"{entry.path}: holds no {which}")


def compare(explainer: Explainer, old: MadeEntry, new: MadeEntry) -> list[Told]:
    """Everything in which two entries differ."""
    if kind_of(old.path) == kind_of(new.path) == "library":
        made = library_entries.differences(_library_entry(explainer, new), _library_entry(explainer, old))
        return [Told(one.kind.value, one.words, one.certain) for one in made if one.kind is not Kind.UNKNOWN]
    theirs, ours = _recipe(explainer, old), _recipe(explainer, new)
    for one in (theirs, ours):
        if isinstance(one, Helper):
            raise UsageError(f"{one.path}: is {one.words}; it holds nothing to compare")
    if isinstance(ours, TritonKernel) and isinstance(theirs, TritonKernel):
        found = kernel_differences(ours, theirs, reader_for(new.uid, old.uid))
    elif isinstance(ours, Graph) and isinstance(theirs, Graph):
        found = graph_differences(ours, theirs)
    else:
        raise UsageError(f"{old.path} and {new.path}: one is a kernel and the other a graph")
    if old.path == new.path:
        return []
    return [Told(one.kind.value, one.words, one.certain) for one in found if one.kind is not Kind.UNKNOWN]


def _recipe(explainer: Explainer, entry: MadeEntry) -> Recipe:
    if kind_of(entry.path) not in ("kernel", "graph"):
        raise UsageError(f"{entry.path}: is neither a kernel nor a graph nor a library's entry that can be read")
    return explainer.reader.recipe(entry)


def _of_kernel(kernel: TritonKernel, explainer: Explainer, entry: MadeEntry) -> dict[str, str]:
    binary = kernel.binary
    arguments = [
        f"{name}: {type_in_words(one.type)}" + (f" divisible by {one.divisible}" if one.divisible else "")
        for name, one in kernel.arguments.items()
    ]
    owner = _owner(explainer, entry)
    facts = {
        "kernel": kernel.name,
        "source": f"{kernel.place.file}:{kernel.place.line}" if kernel.place.line else "",
        "arguments": "; ".join(arguments),
        "compiled for": kernel.target,
        "Triton": kernel.version,
        "options": ", ".join(f"{name}={clipped(value, 40)}" for name, value in kernel.options.items()),
        "environment": ", ".join(f"{name}={clipped(value, 40)}" for name, value in kernel.environment.items()),
        "shared memory": "" if kernel.shared is None else f"{kernel.shared} bytes",
        "graph": owner.path if owner is not None else "",
    }
    tuned = explainer.tunings().get(entry.path.rpartition("/")[2])
    facts["autotuning chose"] = tuned.words if tuned is not None else ""
    if binary is not None:
        facts["registers"] = "" if binary.registers is None else str(binary.registers)
        spills = " (registers are spilled there)" if binary.stack else ""
        facts["stack"] = "" if binary.stack is None else f"{binary.stack} bytes{spills}"
        facts["code"] = f"{binary.code_bytes} bytes"
        facts["ptxas"] = " ".join(filter(None, (binary.ptxas, binary.ptxas_flags)))
    if kernel.missing:
        facts["missing files"] = ", ".join(kernel.missing)
    return facts


def _of_graph(graph: Graph) -> dict[str, str]:
    place, text = next(iter(graph.places.values()), (None, ""))
    named = zip(graph.inputs, graph.input_names or [""] * len(graph.inputs), strict=False)
    return {
        "graph": graph.name,
        "torch": " ".join(filter(None, (graph.version, graph.build[:10]))),
        "CUDA": graph.cuda,
        "GPU": graph.gpu,
        "operations": str(len(graph.nodes)),
        "model": f"{place.file}:{place.line} `{text}`" if place is not None else "",
        "inputs": "; ".join(clipped(f"{name} {one}".strip(), 100) for one, name in list(named)[:20]),
        "guards": graph.guards,
        "kernels": ", ".join(graph.kernels[:20]),
        "compiled in": "" if graph.seconds is None else f"{graph.seconds:.2f} s, as torch measured it",
        "ingredients": f"{len(graph.ingredients)}" + ("" if graph.told_by_torch else " (from the reproducing script)"),
    }


def _owner(explainer: Explainer, entry: MadeEntry) -> MadeEntry | None:
    """The graph that a kernel was compiled for."""
    key = entry.path.rpartition("/")[2]
    graphs = [one for one in explainer.entries if kind_of(one.path) == "graph"]
    sketches = explainer.reader.sketches(graphs)
    for one in graphs:
        sketch = sketches.get(one.path)
        if isinstance(sketch, GraphSketch) and any(name.rpartition("/")[2] == key for name in sketch.kernels):
            return one
    return None


def _graph_text(explainer: Explainer, entry: MadeEntry, which: str) -> str:
    names = {"source": ("source_code",), "graph": ("inductor_post_grad_graph_str", "runnable_graph_str")}.get(which)
    if names is None:
        raise UsageError(f"{entry.path}: is a graph, which has no {which}; use --source or --graph")
    for _, files in explainer.reader.files([entry], ("*",)):
        newest = max(files.values(), key=lambda one: one.modified)
        made = pickle_walk.read(newest.content or b"")
        state = made.state if isinstance(made, Described) else {}
        for name in names:
            if isinstance(state.get(name), str) and state[name]:
                return str(state[name])
    raise ArtefactGarbled(f"{entry.path}: holds no {which}")
