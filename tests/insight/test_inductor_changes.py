"""A change to a program that torch.compile compiled is named, from the stored graph alone.

All changes are in benchmarks/explain_sets; `python -m benchmarks.explain inductor` tries every one of them.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.explain_sets.grading import grade_graphs, load_graphs
from benchmarks.explain_sets.inductor_changes import CHANGES
from kcachefs.insight.artefacts import FolderCache
from kcachefs.insight.describing import describe, text_of
from kcachefs.insight.explaining import Explainer
from kcachefs.insight.graph_nearest import IS_NEW, explain
from kcachefs.insight.graphs import Graph
from kcachefs.insight.index import Index
from tests.insight.conftest import INDUCTOR_SAMPLE
from tests.pythons import needs_torch

pytestmark = needs_torch


@pytest.mark.parametrize("name", INDUCTOR_SAMPLE)
def test_a_change_is_named(inductor_changes: Path, name: str) -> None:
    change = next(one for one in CHANGES if one.name == name)
    graded = grade_graphs(change, load_graphs(inductor_changes / name), load_graphs(inductor_changes / "base"))
    assert graded.right, graded.said
    assert not graded.wrongly_certain


def test_of_two_graphs_the_one_with_fewer_other_settings_is_nearer(inductor_changes: Path) -> None:
    (base,), (several,), (one,) = (
        [replace(graph, created=at) for graph in load_graphs(inductor_changes / name)]
        for at, name in enumerate(("base", "product_settings", "product_config"))
    )
    for older in ([base, several], [several, base]):
        nearest, causes = explain(one, older)
        assert nearest is base, "though the other one is newer"
        assert [cause.words for cause in causes] == ["torch._inductor.config.size_asserts is False, was True"]


def test_a_graph_of_another_program_explains_nothing_unless_it_is_much_alike(inductor_changes: Path) -> None:
    (base,), (turned,), (setting,) = (
        load_graphs(inductor_changes / name) for name in ("base", "product_turned", "product_config")
    )

    def elsewhere(graph: Graph) -> Graph:
        """The same in a program of its own."""
        places = {name: (replace(place, file="/src/another.py"), text) for name, (place, text) in graph.places.items()}
        return replace(graph, places=places)

    assert explain(turned, [base])[0] is base
    assert explain(elsewhere(turned), [base]) == (None, [IS_NEW])
    nearest, (cause,) = explain(elsewhere(setting), [base])
    assert nearest is base
    assert not cause.certain
    assert explain(setting, [base])[1][0].certain
    older = elsewhere(replace(base, created=base.created + 1))
    assert explain(setting, [base, older])[0] is base, "its own program's, though the other one is newer"


def test_a_graph_tells_where_it_comes_from(inductor_changes: Path) -> None:
    graph = next(one for one in load_graphs(inductor_changes / "base") if "mm" in one.places)
    place, text = graph.places["mm"]
    assert (Path(place.file).name, text) == ("model.py", "return torch.mm(x, y.t())")
    assert graph.seconds is not None
    assert graph.seconds > 0
    assert graph.told_by_torch
    assert sorted(graph.input_names) == ["x", "y"]


def test_without_its_own_list_the_script_tells(inductor_changes: Path) -> None:
    base = load_graphs(inductor_changes / "base", use_debug_lines=False)
    for name in ("product_shape", "product_turned"):
        change = next(one for one in CHANGES if one.name == name)
        graded = grade_graphs(change, load_graphs(inductor_changes / name, use_debug_lines=False), base)
        assert graded.right, graded.said


def test_a_folder_with_graphs_is_explained(inductor_changes: Path, tmp_path: Path) -> None:
    """Graphs, the autograd entries that lead to them, and what `show` prints of them."""
    cache = tmp_path / "cache"
    shutil.copytree(inductor_changes / "base", cache)
    for file in cache.rglob("*"):
        os.utime(file, (1.0e9, 1.0e9))
    shutil.copytree(inductor_changes / "product_turned", cache, dirs_exist_ok=True)
    explainer = Explainer(FolderCache(cache), Index("graphs", tmp_path))
    (one,) = explainer.explain(explainer.made_since(1.5e9), boundary=1.5e9)
    assert (one.kind, one.causes[0].kind) == ("graph", "source")
    assert "model.py:31" in one.causes[0].words
    assert one.seconds is not None
    entry = next(entry for entry in explainer.entries if entry.path == one.path)
    assert "code: return torch.mm(x, y.t()).t()" in text_of(explainer, entry, "graph")
    assert "AOT ID" in text_of(explainer, entry, "source")
    assert describe(explainer, entry)["torch"].startswith(importlib.metadata.version("torch"))
    again = Explainer(FolderCache(cache), Index("graphs", tmp_path))
    assert again.explain(again.made_since(1.5e9), boundary=1.5e9) == [one]
