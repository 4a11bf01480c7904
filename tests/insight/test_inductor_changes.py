"""A change to a program that torch.compile compiled is named, from the stored graph alone.

All changes are in benchmarks/explain_sets; `python -m benchmarks.explain inductor` tries every one of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.explain_sets.grading import grade_graphs, load_graphs
from benchmarks.explain_sets.inductor_changes import CHANGES
from tests.insight.conftest import INDUCTOR_SAMPLE

pytest.importorskip("torch")


@pytest.mark.parametrize("name", INDUCTOR_SAMPLE)
def test_a_change_is_named(inductor_changes: Path, name: str) -> None:
    change = next(one for one in CHANGES if one.name == name)
    graded = grade_graphs(change, load_graphs(inductor_changes / name), load_graphs(inductor_changes / "base"))
    assert graded.right, graded.said
    assert not graded.wrongly_certain


def test_a_graph_tells_where_it_comes_from(inductor_changes: Path) -> None:
    graph = next(one for one in load_graphs(inductor_changes / "base") if "sqrt" in one.places)
    place, text = graph.places["sqrt"]
    assert (Path(place.file).name, text) == ("model.py", "return (weight * apart**power).sum(-1).sqrt()")
    assert graph.seconds is not None
    assert graph.seconds > 0
    assert graph.told_by_torch
    assert graph.input_names == ["x", "y"]


def test_without_its_own_list_the_script_tells(inductor_changes: Path) -> None:
    base = load_graphs(inductor_changes / "base", use_debug_lines=False)
    for name in ("score_shape", "dimension"):
        change = next(one for one in CHANGES if one.name == name)
        graded = grade_graphs(change, load_graphs(inductor_changes / name, use_debug_lines=False), base)
        assert graded.right, graded.said
