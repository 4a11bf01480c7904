"""Launchers and driver helpers, which Triton compiles for the host beside its kernels: told by name, and no kernels."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from kcachefs.insight.explaining import Explanation, Told
from kcachefs.insight.telling import grouped
from tests.cli.scene import Scene, scene
from tests.insight.test_hostile_users import SOUND, put

SUFFIX = ".cpython-312-x86_64-linux-gnu.so"
FOLDERS = {"LAUNCHER1": "__triton_launcher", "LAUNCHER2": "__triton_launcher", "UTILS": "cuda_utils"}
pytestmark = pytest.mark.mount


@pytest.fixture(name="place", scope="module")
def a_place() -> Iterator[Scene]:
    """A mount with a kernel, launchers, a helper, and what is none of these."""
    with scene() as made:
        made.mount()
        put(made, "KERNEL", json.dumps(SOUND).encode())
        for key, name in FOLDERS.items():
            folder = made.mountpoint / "triton" / key
            folder.mkdir()
            (folder / (name + SUFFIX)).write_bytes(b"\x7fELF" + key.encode())
        strange = made.mountpoint / "triton" / "STRANGE"
        strange.mkdir()
        (strange / "notes.txt").write_text("?")
        made.settle()
        yield made


def test_they_are_explained_in_one_line(place: Scene) -> None:
    for _ in range(2):  # the second answer is the one that was kept
        said = place.must("explain", "--since", "1h").splitlines()
        assert "compiled: 2 kernels, 3 helpers" in said[0]
        (line,) = [one for one in said if "launcher" in one]
        assert "3 helpers  new: launchers and driver helpers" in line
        assert "[__triton_launcher, cuda_utils]" in line
        (strange,) = [one for one in said if "STRANGE" in one]
        assert "holds no file of a kernel" in strange
        assert "gone" not in "".join(said)


def test_show_says_what_they_are(place: Scene) -> None:
    assert "a launcher, which Triton compiled for the host" in place.must("show", "triton/LAUNCHER1")
    assert "Triton's helper for the GPU's driver" in place.must("show", "triton/UTILS")
    place.run("show", "--ptx", "triton/UTILS").refused_with(2, "triton/UTILS: holds no ptx")
    place.run("diff", "triton/UTILS", "triton/KERNEL").refused_with(2, "triton/UTILS: is Triton's helper", "compare")


def test_they_are_no_kernels(place: Scene) -> None:
    assert [one["path"] for one in json.loads(place.must("kernels", "--json"))] == ["triton/KERNEL"]
    kernels = json.loads(place.must("top", "--once", "--json"))["kernels"]
    assert {one["path"] for one in kernels["rows"]} == {"triton/KERNEL"}
    assert kernels["total"] == 2, "the kernel, and what nobody knows"
    place.run("show", "cuda_utils").refused_with(2, "no entry is called that")


def test_one_that_is_written_again_is_told_so(place: Scene) -> None:
    folder = place.mountpoint / "triton" / "LAUNCHER1"
    shutil.copy(folder / ("__triton_launcher" + SUFFIX), folder / "new.so")
    (folder / "new.so").replace(folder / ("__triton_launcher" + SUFFIX))
    place.settle()
    assert "gone" not in place.must("explain", "--since", "1h")


def test_their_line_comes_last() -> None:
    why, common = Told("source", "a line changed", True), Told("new", "new: launchers", True)
    every = [Explanation(str(number), "helper", "", [common]) for number in range(9)]
    groups = grouped([*every, Explanation("k", "kernel", "add", [why])])
    assert [one.counts for one in groups] == ["1 kernel", "9 helpers"]


def test_what_is_said_of_nothing_and_of_what_cannot_be_read_is_true() -> None:
    with scene() as made:
        made.mount()
        assert made.must("explain", "--since", "1h") == "compiled: nothing\n"
        (made.mountpoint / "unknown" / "KEY").mkdir(parents=True)
        (made.mountpoint / "unknown" / "KEY" / "file").write_text("?")
        made.settle()
        first, second = made.must("explain", "--since", "1h").splitlines()
        assert first == "compiled: 1 entry"
        assert second == "None can be read: there is no kernel, graph, model or driver program among them."
