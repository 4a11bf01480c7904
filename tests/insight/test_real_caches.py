"""Caches that real workloads left on an H200: all of it is read, and every kernel of a graph is found to be one."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from kcachefs.core.insight_info import MadeEntry
from kcachefs.errors import ArtefactGarbled
from kcachefs.insight import autograd, driver_cache, pickle_walk, tuning
from kcachefs.insight.artefacts import FolderCache, kind_of
from kcachefs.insight.causes import Kind
from kcachefs.insight.describing import describe
from kcachefs.insight.explaining import Explainer
from kcachefs.insight.index import Index
from kcachefs.insight.listing import list_kernels
from kcachefs.insight.pickle_walk import Described
from kcachefs.insight.telling import in_full
from tests.forked_programs import Program
from tests.pythons import needs_torch
from tests.waiting import PATIENCE

DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_caches.tar.xz"


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("h200")
    with tarfile.open(DATA) as archive:
        # Python 3.11 to 3.11.3 have no filters yet.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize(("name", "kernels", "graphs"), [("gpt2_train", 33, 4), ("resnet50", 44, 1), ("triton", 18, 0)])
def test_everything_is_read_and_linked(caches: Path, tmp_path: Path, name: str, kernels: int, graphs: int) -> None:
    explainer = Explainer(FolderCache(caches / name), Index(name, tmp_path))
    sketches = explainer.reader.sketches(explainer.entries)
    assert [one for one in sketches.values() if isinstance(one, str)] == []
    assert len(sketches) == kernels + graphs
    rows = list_kernels(explainer)
    assert len(rows) == kernels
    assert all(row.registers and row.arch == "sm_90" and row.source for row in rows)
    assert sum(bool(row.graph) for row in rows) == (kernels if graphs else 0)


class Noting(FolderCache):
    """Remembers what was noted."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.costs: dict[int, float] = {}
        self.parts: dict[int, float] = {}

    def note_costs(self, seconds: Mapping[int, float], parts: Mapping[int, float]) -> None:
        self.costs |= seconds
        self.parts |= parts


def test_what_graphs_autograd_and_tunings_cost_is_noted(caches: Path, tmp_path: Path) -> None:
    cache = Noting(caches / "gpt2_train")
    explainer = Explainer(cache, Index("gpt2", tmp_path))
    explainer.explain(explainer.entries, boundary=0.0)
    kinds: dict[str, list[MadeEntry]] = {}
    for one in explainer.entries:
        kinds.setdefault(kind_of(one.path), []).append(one)
    assert cache.costs.keys() == {one.entry for one in kinds["graph"]}
    assert cache.parts.keys() == {one.entry for kind in ("autograd", "tuning") for one in kinds[kind]}
    for one in kinds["tuning"]:
        [found] = (caches / "gpt2_train").rglob(
            f"{one.path.rpartition('/')[2].removesuffix('.best_config')}.best_config"
        )
        assert cache.parts[one.entry] == json.loads(found.read_text())["time_taken_ms"] / 1000
    for one in kinds["autograd"]:
        [found] = [path for path in (caches / "gpt2_train").rglob(f"{one.path.rpartition('/')[2]}/*") if path.is_file()]
        made = pickle_walk.read(found.read_bytes())
        assert isinstance(made, Described)
        whole, part = made.state["forward_time_taken_ns"] / 1e9, cache.parts[one.entry]
        assert 0 < part < whole
        assert min(abs(whole - part - seconds) for seconds in cache.costs.values()) < 1e-6, "less its forward graph"


@dataclasses.dataclass
class Backward:
    num_symints_saved_for_bw_: int
    fx_graph_cache_info: tuple[str, list[str]] = ("backward", [])


@dataclasses.dataclass
class Forward:
    fx_graph_cache_info: tuple[str, list[str]] = ("forward", [])


@dataclasses.dataclass
class AOTAutogradResult:
    """What torch calls its entries, as far as it matters here."""

    compiled_bw: Backward | None
    compiled_fw: Forward = dataclasses.field(default_factory=Forward)
    forward_time_taken_ns: int = 5_000_000_000
    backward_time_taken_ns: int = 1_500_000_000


@pytest.mark.parametrize(
    ("backward", "beyond"), [(None, 2.0), (Backward(0), 2.0), (Backward(3), 0.5)], ids=["none", "later", "at once"]
)
def test_a_backward_graph_is_taken_off_where_it_was_compiled_along(backward: Backward | None, beyond: float) -> None:
    read = autograd.read("inductor/aotautograd/x", 0.0, pickle.dumps(AOTAutogradResult(backward)))
    assert read.forward == "forward"
    assert read.beyond({"forward": 3.0, "backward": 1.5}) == pytest.approx(beyond)


@needs_torch
def test_torch_calls_these_fields_so(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("""
import dataclasses, inspect, json
from torch._functorch._aot_autograd import aot_autograd_result as result
names = [field.name for field in dataclasses.fields(result.GenericAOTAutogradResult)]
print(json.dumps([names, inspect.getsource(result)]))
""")
    names, source = json.loads(Program(tmp_path / "program.py", env=os.environ).finish(PATIENCE))
    assert {field.name for field in dataclasses.fields(AOTAutogradResult)} <= set(names)
    assert "num_symints_saved_for_bw_" in source


def test_what_autotuning_chose_is_told_of_its_kernel(caches: Path, tmp_path: Path) -> None:
    explainer = Explainer(FolderCache(caches / "gpt2_train"), Index("gpt2", tmp_path))
    kernels = {one.path.rpartition("/")[2]: one for one in explainer.entries if kind_of(one.path) == "kernel"}
    tunings = explainer.tunings()
    assert tunings
    assert tunings.keys() <= kernels.keys(), "each names a kernel that is here"
    key, tuned = next(iter(sorted(tunings.items())))
    assert re.fullmatch(r"[XYR]\d?_?BLOCK=\d+.*num_warps=\d+.* \(tuned in \d+ ms\)", tuned.words)
    assert describe(explainer, kernels[key])["autotuning chose"] == tuned.words
    alone = next(one for one in explainer.entries if one.path == tuned.path)
    assert describe(explainer, alone)["kernel"] == key
    explained = {one.path: one for one in explainer.explain(list(kernels.values()), boundary=0.0)}
    assert explained[kernels[key].path].tuned == tuned.words
    assert f"    autotuning chose {tuned.words}" in in_full(explained[kernels[key].path])


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"{" + b'"x":' * 9999, b'{"time_taken_ms": "x"}', b'{"a": 1}' * 9999]
)
def test_a_garbled_choice_of_autotuning_is_left_out(data: bytes) -> None:
    try:
        found = tuning.read("inductor/ab/x", data)
    except ArtefactGarbled:
        return
    assert (found.kernel, found.milliseconds) == ("", None)


def test_a_program_of_the_driver_is_read(caches: Path) -> None:
    (file,) = (one for one in (caches / "resnet50" / "cuda" / "a").rglob("*") if one.is_file())
    data = file.read_bytes()
    program = driver_cache.read("cuda/a/2/x", 1.0, data)
    assert (program.build, program.arch) == ("Apr 29 2026 17:12:06", "sm_90")
    assert program.kernels == ("nopCudnnHardwareDetection",)
    other = driver_cache.read("cuda/a/2/y", 2.0, data.replace(b"Apr 29", b"May 12").replace(b"ret;", b"bra;"))
    nearest, causes = driver_cache.explain(other, [program])
    assert nearest is program
    assert [one.kind for one in causes] == [Kind.VERSION, Kind.SOURCE]
    assert "Apr 29 2026 17:12:06" in causes[0].words
    moved = dataclasses.replace(program, arch="sm_80")
    assert driver_cache.explain(moved, [program])[1][0].kind is Kind.ARCHITECTURE
    with pytest.raises(ArtefactGarbled):
        driver_cache.read("cuda/a/2/z", 1.0, data[40:])
