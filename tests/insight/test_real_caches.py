"""Caches that real workloads left on an H200: all of it is read, and every kernel of a graph is found to be one."""

from __future__ import annotations

import dataclasses
import re
import tarfile
from pathlib import Path

import pytest

from kcachefs.errors import ArtefactGarbled
from kcachefs.insight import driver_cache, tuning
from kcachefs.insight.artefacts import FolderCache, kind_of
from kcachefs.insight.causes import Kind
from kcachefs.insight.describing import describe
from kcachefs.insight.explaining import Explainer
from kcachefs.insight.index import Index
from kcachefs.insight.listing import list_kernels
from kcachefs.insight.telling import in_full

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
