"""A change to a Triton kernel is named: from the artefacts alone, and better with the source at hand.

All changes are in benchmarks/explain_sets; `python -m benchmarks.explain triton` tries every one of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.explain_sets.grading import grade, load
from benchmarks.explain_sets.triton_runner import CHANGES
from kcachefs.insight.causes import Kind
from kcachefs.insight.kernel_differences import differences
from kcachefs.insight.kernel_nearest import explain
from kcachefs.insight.kernels import TritonKernel
from kcachefs.insight.sources import read_file, read_for
from tests.insight.conftest import TRITON_SAMPLE

pytest.importorskip("triton")
NOBODY = 65534


@pytest.fixture(scope="module")
def base(triton_changes: Path) -> list[TritonKernel]:
    return load(triton_changes / "base")


@pytest.mark.parametrize("with_source", [True, False], ids=["source", "artefacts"])
@pytest.mark.parametrize("name", TRITON_SAMPLE)
def test_a_change_is_named(triton_changes: Path, base: list[TritonKernel], name: str, with_source: bool) -> None:
    change = next(one for one in CHANGES if one.name == name)
    graded = grade(change, load(triton_changes / name), base, with_source=with_source)
    assert graded.right, graded.said
    assert not graded.wrongly_certain


def test_a_kernel_tells_what_it_needs_of_a_gpu(base: list[TritonKernel]) -> None:
    norm = next(one for one in base if one.name == "layer_norm" and one.options["num_warps"] == 8)
    assert norm.binary is not None
    assert norm.binary.registers is not None
    assert 16 <= norm.binary.registers <= 255
    assert norm.binary.stack == 0
    assert norm.shared is not None
    assert norm.shared > 0
    assert (norm.target, norm.place.line, norm.missing) == ("sm_90", 12, ())
    assert list(norm.arguments) == ["x", "weight", "y", "width"]
    assert (norm.arguments["x"].divisible, norm.arguments["x"].type) == (16, "!tt.ptr<f16>")


def test_a_kernel_does_not_differ_from_itself(base: list[TritonKernel]) -> None:
    for kernel in base:
        kinds = [one.kind for one in differences(kernel, kernel, lambda path: None)]
        assert kinds == [Kind.TEXT], kernel.name  # nothing but what no artefact shows


def test_a_file_that_was_touched_later_does_not_explain(
    triton_changes: Path, base: list[TritonKernel], tmp_path: Path
) -> None:
    """Who edits a file after compiling must not be told that its lines were compiled."""
    new = next(one for one in load(triton_changes / "bins"))
    path = Path(new.place.file)
    now = read_file(str(path))
    assert now is not None
    _, causes = explain(new, base, lambda path: (now[0].replace("BINS", "SLOTS"), new.created + 60))
    assert "SLOTS" not in causes[0].words
    assert "is 32, was 64" in causes[0].words


def test_only_regular_python_files_are_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    large = tmp_path / "large.py"
    large.write_bytes(b"#" * (2 << 20))
    for path in (pipe, secret, large, tmp_path / "none.py", tmp_path):
        assert read_file(str(path)) is None
    assert read_file("\0.py") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can read the files of others")
def test_a_file_is_read_for_those_users_who_could_read_it_themselves(tmp_path: Path) -> None:
    """By the file that was opened: a link that somebody turns round meanwhile does not help them."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for one in (folder, *(one for one in folder.parents if one.stat().st_uid == 0 and one != Path("/"))):
        one.chmod(one.stat().st_mode | 0o011)
    file, link = folder / "secret.py", tmp_path / "link.py"
    file.write_text("SECRET = 1\n")
    link.symlink_to(file)
    for path in (str(file), str(link)):
        file.chmod(0o644)
        folder.chmod(0o755)
        assert read_for((NOBODY,), path) is not None
        folder.chmod(0o700)
        assert read_for((NOBODY,), path) is None
        assert read_for((0,), path) is not None
        assert read_for((0, NOBODY), path) is None
        folder.chmod(0o755)
        file.chmod(0o600)
        assert read_for((NOBODY,), path) is None
        os.chown(file, NOBODY, NOBODY)
        assert read_for((0, NOBODY), path) is not None
        os.chown(file, 0, 0)
