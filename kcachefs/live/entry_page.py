"""One entry in full: facts, why it was compiled, source and PTX with the lines matched, its graph and its siblings."""

from __future__ import annotations

from kcachefs.core.insight_info import MadeEntry
from kcachefs.errors import ArtefactGarbled, UsageError
from kcachefs.insight.artefacts import kind_of
from kcachefs.insight.describing import compare, describe, text_of
from kcachefs.insight.explaining import Explainer
from kcachefs.insight.helpers import Helper
from kcachefs.insight.kernels import TritonKernel
from kcachefs.insight.sketches import GraphSketch
from kcachefs.live.listings import code_of, source_of
from kcachefs.live.view import EntryPage, Sibling

_SIBLINGS_SHOWN = 8
_GRAPH_TEXT_MAX = 60_000
_READABLE = ("kernel", "graph")


def describe_entry(explainer: Explainer, entry: MadeEntry, mount: str) -> EntryPage:
    """Everything about an entry; `ArtefactGarbled` if its files cannot be understood."""
    kind = kind_of(entry.path)
    if kind not in _READABLE:
        return EntryPage(path=entry.path, name=entry.name, kind=kind, facts=_plain_facts(entry), pinned=entry.pinned)
    facts = describe(explainer, entry)
    why = next(iter(explainer.explain([entry])), None)
    name = facts.get("kernel") or facts.get("graph") or entry.name
    made = EntryPage(path=entry.path, name=name, kind=kind, facts=facts, pinned=entry.pinned, why=why)
    recipe = explainer.reader.recipe(entry)
    if isinstance(recipe, Helper):
        return _with(made, kind="helper", name=recipe.name)
    if not isinstance(recipe, TritonKernel):
        return _with(made, model=facts.get("model", ""), graph_text=_text(explainer, entry, "graph"))
    ptx = _text(explainer, entry, "ptx")
    code = code_of(ptx, recipe.place.file) if ptx else None
    source = source_of(explainer, recipe, entry, mount, code)
    graph = facts.get("graph", "")
    return _with(
        made,
        source=source,
        code=code,
        graph=graph,
        graph_text=_text(explainer, entry, "graph") if graph else "",
        model=_model(explainer, graph),
        siblings=_siblings(explainer, entry, recipe.name),
    )


def _with(page: EntryPage, **fields: object) -> EntryPage:
    import msgspec

    return msgspec.structs.replace(page, **fields)


def _plain_facts(entry: MadeEntry) -> dict[str, str]:
    return {"entry": entry.path, "files": str(entry.files), "hits": str(entry.hits)}


def _text(explainer: Explainer, entry: MadeEntry, which: str) -> str:
    try:
        return text_of(explainer, entry, which)[: _GRAPH_TEXT_MAX if which == "graph" else None]
    except (UsageError, ArtefactGarbled):
        return ""


def _model(explainer: Explainer, graph: str) -> str:
    found = [one for one in explainer.entries if one.path == graph]
    sketch = explainer.reader.sketches(found).get(graph)
    return str(sketch.facts.get("model") or "") if isinstance(sketch, GraphSketch) else ""


def _siblings(explainer: Explainer, entry: MadeEntry, name: str) -> list[Sibling]:
    """Kernels of the same name, most recently used first."""
    others = [
        one for one in explainer.reader.kernels_by_name(explainer.entries).get(name, []) if one.path != entry.path
    ]
    found = []
    for one in sorted(others, key=lambda one: -one.used)[:_SIBLINGS_SHOWN]:
        try:
            differs = compare(explainer, one, entry)
        except (ArtefactGarbled, UsageError):
            continue
        found.append(Sibling(path=one.path, differs=differs, hits=one.hits, used=one.used))
    return found
