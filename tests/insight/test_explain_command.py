"""`explain`, `kernels`, `show` and `diff` on a real mount: what a run made is compared with what was there before."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcachefs.core.insight_info import RunInfo
from kcachefs.daemon import control
from kcachefs.insight.explaining import Explainer, Explanation
from kcachefs.insight.index import Index
from kcachefs.insight.mounted import MountedCache
from kcachefs.mounts.insight_reports import Ask, InsightReports
from tests.cli.scene import Scene, scene
from tests.forked_programs import Program
from tests.waiting import PATIENCE

pytest.importorskip("triton")
PROGRAM = Path(__file__).parent.parent / "triton_kernel.py"


@pytest.fixture(name="place")
def a_place(triton_changes: Path) -> Iterator[Scene]:
    """A mount on which one run made the kernels before any change."""
    with scene() as made:
        made.mount()
        bring(made, triton_changes / "base")
        yield made


def bring(place: Scene, folder: Path) -> None:
    """A run of its own that makes these entries, as a compiler would."""
    target = place.mountpoint / "triton"
    subprocess.run(["cp", "-r", *map(str, sorted(folder.iterdir())), str(target)], check=True, timeout=PATIENCE)


def explained(place: Scene, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.must("explain", "--json", *words))
    return found


def key_of(folder: Path, name: str) -> str:
    return next(one.name for one in sorted(folder.iterdir()) if (one / f"__grp__{name}.json").exists())


def test_the_last_run_is_explained(place: Scene, triton_changes: Path) -> None:
    bring(place, triton_changes / "bins")
    found = explained(place)
    assert found["run"]["argv"].startswith("cp -r")
    (cause,) = found["causes"]
    assert (cause["kind"], cause["entries"]) == ("constant", 1)
    assert re.search(r"tiles\.py:\d+ is 32, was 64", cause["words"])
    said = place.must("explain")
    assert "1 kernel  a constant at tiles.py:" in said
    assert "[tally]" in said
    every = place.must("explain", "--all")
    assert f"compared with triton/{key_of(triton_changes / 'base', 'tally')}" in every


def test_what_was_explained_before_needs_only_the_entries_of_its_run(place: Scene, triton_changes: Path) -> None:
    bring(place, triton_changes / "bins")
    ask, told = asking_socket(place), []

    def counted(verb: str, arguments: dict[str, Any]) -> bytes:
        answer = ask(verb, arguments)
        told.append((verb, len(json.loads(answer)) if verb == "entries" else 0))
        return answer

    def explain_last() -> tuple[RunInfo, list[Explanation]]:
        cache = MountedCache(InsightReports(counted), str(place.mountpoint))
        explainer = Explainer(cache, Index(cache.place, place.folder / "index"))
        run = explainer.last_run()
        assert run is not None
        return run, explainer.explain(explainer.made_by(run))

    run, first = explain_last()
    everything = InsightReports(ask).entries()
    assert ("entries", len(everything)) in told, "the first time, all are compared"
    told.clear()
    assert explain_last()[1] == first
    # The start of a process is known to a hundredth of a second: what ended just before it may be told as well.
    of_run = [one for one in everything if one.run == run.run or (one.ended or 0.0) >= run.started]
    assert len(of_run) < len(everything)
    assert sorted(told) == [("entries", len(of_run)), ("runs", 0)], "no artefacts, and none but the run's entries"


def asking_socket(place: Scene) -> Ask:
    socket = next(place.runtime.rglob("*.sock*"))
    return lambda verb, arguments: control.ask(socket, verb, arguments)


def test_siblings_of_the_same_run_are_not_compared(place: Scene, triton_changes: Path) -> None:
    """Both kernels of a run differ from what was there, although they are more like each other."""
    both = place.folder / "both"
    for name in ("overflow", "older_triton"):
        shutil.copytree(triton_changes / name, both, dirs_exist_ok=True)
    bring(place, both)
    kinds = {one["causes"][0]["kind"] for one in explained(place)["entries"] if one["name"] == "pool"}
    assert kinds == {"option", "version"}


def test_a_run_a_time_or_an_entry_is_chosen(place: Scene, triton_changes: Path) -> None:
    bring(place, triton_changes / "bins")
    bring(place, triton_changes / "odd_n")
    runs = json.loads(place.must("runs", "--json"))
    first = next(one["run"] for one in runs if "/bins/" in one["argv"])
    assert explained(place, "--run", str(first))["entries"][0]["name"] == "tally"
    path = f"triton/{key_of(triton_changes / 'odd_n', 'drop')}"
    (one,) = explained(place, path)["entries"]
    assert one["causes"][0]["words"] == "argument n is not divisible by 16, was divisible by 16"
    assert len(explained(place, "--since", "1h")["entries"]) > 5
    place.run("explain", "--run", "999").refused_with(2, "999", "kcachefs runs")
    place.run("explain", "--since", "soon").refused_with(2, "soon")
    place.run("explain", "nonsense").refused_with(2, "nonsense")
    place.run("explain", path, "--since", "1h").refused_with(2, "only one")


def test_looking_uses_nothing(place: Scene, triton_changes: Path) -> None:
    bring(place, triton_changes / "bins")
    before = json.loads(place.must("stats", "--json"))["total"]
    order = [(one["path"], one["used"]) for one in json.loads(place.must("ls", "--json"))]
    explained(place)
    place.must("kernels")
    assert json.loads(place.must("stats", "--json"))["total"] == before
    assert [(one["path"], one["used"]) for one in json.loads(place.must("ls", "--json"))] == order


@pytest.mark.parametrize("verb", ["evict", "prune"])
def test_what_was_evicted_is_called_that(place: Scene, triton_changes: Path, verb: str) -> None:
    path = f"triton/{key_of(triton_changes / 'base', 'tally')}"
    place.must("stats")
    place.must(*(("evict", path) if verb == "evict" else ("prune", "--max-size", "1")))
    only = place.folder / "only"
    shutil.copytree(triton_changes / "base" / path.partition("/")[2], only / path.partition("/")[2])
    bring(place, only)
    (one,) = explained(place)["entries"]
    assert one["causes"][0]["kind"] == "evicted"
    assert re.search(rf"evicted: somebody asked for it \({verb}", one["causes"][0]["words"])


def test_a_cache_that_moved_is_noticed() -> None:
    """Triton finds a kernel's files by the paths in its list: at another mountpoint it compiles again."""
    with scene() as place:
        environment = {**place.environment, "TRITON_DEFAULT_FP_FUSION": "1"}

        def compile_at(mountpoint: Path, *blocks: str) -> None:
            assert place.run("mount", mountpoint, "--store", place.store).code == 0
            cache = {"TRITON_CACHE_DIR": str(mountpoint / "triton")}
            Program(PROGRAM, *blocks, env={**environment, **cache}).finish(PATIENCE)

        compile_at(place.mountpoint, "128", "256")
        place.umount()
        moved = place.folder / "moved"
        compile_at(moved, "128")
        found = explained(place, "--mount", str(moved))
        (one,) = found["entries"]
        assert (one["run"], found["run"]["misses"]) == (found["run"]["run"], 1)
        assert one["causes"][0]["kind"] == "path"
        assert str(place.mountpoint) in one["causes"][0]["words"]
        assert str(moved) in one["causes"][0]["words"]


def test_kernels_are_listed_and_told_apart(place: Scene) -> None:
    rows = json.loads(place.must("kernels", "--json", "--sort", "registers"))
    assert [one["registers"] for one in rows] == sorted((one["registers"] for one in rows), reverse=True)
    norms = [one for one in rows if one["name"] == "layer_norm"]
    assert len({one["differs"] for one in norms}) == len(norms) == 2
    assert {one["source"] for one in norms} == {"rows.py:12"}
    assert json.loads(place.must("kernels", "--json", "--arch", "80")) == []
    assert "layer_norm" in place.must("kernels", "layer")
    place.run("kernels", "--sort", "beauty").refused_with(2, "beauty", "registers")


def test_one_entry_is_shown(place: Scene, triton_changes: Path) -> None:
    said = place.must("show", "tally")
    assert re.search(r"^compiled for +sm_90$", said, re.M)
    assert re.search(r"^registers +\d+$", said, re.M)
    assert "tt.func public @tally" in place.must("show", "tally", "--source")
    assert ".visible .entry tally" in place.must("show", "tally", "--ptx")
    assert "tt.func public @tally" in place.must("show", "tally", "--ttir")
    place.run("show", "tally", "--graph").refused_with(2, "no graph")
    place.run("show", "tally", "--ptx", "--ttir").refused_with(2, "only one")
    place.run("show", "layer_norm").refused_with(2, "2 entries")


def test_two_entries_are_compared(place: Scene, triton_changes: Path) -> None:
    bring(place, triton_changes / "overflow")
    old, new = (f"triton/{key_of(triton_changes / folder, 'pool')}" for folder in ("base", "overflow"))
    outcome = place.run("diff", old, new)
    assert (outcome.code, outcome.out.splitlines()[0]) == (
        1,
        "option: sanitize_overflow=False, was sanitize_overflow=True",
    )
    assert place.run("diff", old, old).code == 0


def test_what_is_there_twice_is_named(place: Scene, triton_changes: Path) -> None:
    assert place.must("explain", "--waste") == "there are no duplicates\n"
    bring(place, triton_changes / "comment")
    assert "rotate for sm_90: 2 kernels have the same PTX" in place.must("explain", "--waste")


def test_the_index_may_be_deleted_or_damaged(place: Scene, triton_changes: Path) -> None:
    bring(place, triton_changes / "bins")
    first = explained(place)["causes"]
    (index,) = (place.folder / "cache" / "kcachefs-insight").iterdir()
    index.write_bytes(b"not SQLite at all" * 100)
    assert explained(place)["causes"] == first
    index.unlink()
    assert explained(place)["causes"] == first


def test_a_plain_folder_is_explained(triton_changes: Path, tmp_path: Path) -> None:
    with scene() as place:
        shutil.copytree(triton_changes / "base", tmp_path / "triton")
        for folder in (tmp_path / "triton").iterdir():
            for file in folder.iterdir():
                os.utime(file, (1.0e9, 1.0e9))
        shutil.copytree(triton_changes / "operator", tmp_path / "triton", dirs_exist_ok=True, copy_function=shutil.copy)
        found = explained(place, "--folder", str(tmp_path), "--since", "1h")
        assert [one["kind"] for one in found["causes"]] == ["source"]
        place.run("explain", "--folder", tmp_path).refused_with(2, "--since")


def test_entries_that_cannot_be_understood_say_so(place: Scene, triton_changes: Path) -> None:
    broken = place.folder / "broken" / ("A" * 52)
    shutil.copytree(triton_changes / "bins" / key_of(triton_changes / "bins", "tally"), broken)
    (broken / "tally.json").write_bytes(b"{")
    bring(place, broken.parent)
    (one,) = explained(place)["entries"]
    assert one["causes"][0]["kind"] == "unknown"
    assert "tally.json is not JSON" in one["causes"][0]["words"]
    place.run("diff", one["path"], one["path"]).refused_with(2, "tally.json is not JSON")
