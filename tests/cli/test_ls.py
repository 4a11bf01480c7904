"""`kcachefs ls`, `stats` and `frameworks` show names letter by letter, whatever they contain."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kcachefs.core import Filesystem
from kcachefs.core.administration import Administration
from tests.cli.scene import Scene, holding
from tests.cli.scene import scene as a_scene
from tests.insight.test_hostile_users import SOUND, put

pytestmark = pytest.mark.mount

PYTHON = sys.executable
HOSTILE = "triton/\x1b]0;owned\x07\x1b[2J\n\u202eend"


def test_control_characters_are_shown_as_escapes(scene: Scene) -> None:
    scene.environment |= {"COLUMNS": "200"}
    scene.mount()
    for name in (HOSTILE, "\x1b[31mred/kernel"):
        (scene.mountpoint / name).parent.mkdir(exist_ok=True)
        (scene.mountpoint / name).write_text("kernel")
    scene.settle()
    for command in ("ls", "stats"):
        shown = scene.must(command)
        assert all(line.isprintable() for line in shown.splitlines()), shown
        assert "\\x1b[31mred" in shown
    assert "\\x1b]0;owned\\x07\\x1b[2J\\n\\u202eend" in scene.must("ls")


def test_what_is_evicted_or_keeps_a_mount_busy_is_shown_the_same_way(scene: Scene) -> None:
    scene.mount()
    (scene.mountpoint / HOSTILE).write_text("kernel")
    scene.settle()
    for command in (
        ("pin", "triton/*"),
        ("evict", "triton/*"),
        ("unpin", "triton/*"),
        ("prune", "--unused", "--dry-run"),
    ):
        shown = scene.run(*command).out
        assert "\\x1b]0;owned\\x07" in shown
        assert all(line.isprintable() for line in shown.splitlines()), shown
    named = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\x1b[2J\\x1b[31m'); print('holding', flush=True); input()"
    (scene.mountpoint / "triton" / "\x1bfolder").mkdir()
    with holding(
        "sh", "-c", 'cd "$1" && exec "$2" -c "$3"', "sh", f"{scene.mountpoint}/triton/\x1bfolder", PYTHON, named
    ):
        outcome = scene.run("umount", scene.mountpoint)
        assert outcome.code != 0
        assert "\\x1b[2J" in outcome.err
        assert all(line.isprintable() for line in outcome.err.splitlines()), outcome.err


def test_what_was_written_a_moment_ago_is_listed_pinned_and_evicted(scene: Scene) -> None:
    folder = scene.mount()
    for verb in (["ls"], ["pin", "triton/KEY2"], ["unpin", "triton/KEY3"], ["evict", "triton/KEY4"]):
        name = f"KEY{len(list(folder.iterdir())) + 1}"
        (folder / name).mkdir()
        (folder / name / "kernel.cubin").write_text(name)
        assert f"triton/{name}" in scene.must(*verb)
    assert not (folder / "KEY4").exists()


ODD = ["[/x]", "[bold]/kernel", ":bug:/kernel", "triton/[red]", "triton/plain"]
"""Names that rich would take for markup or for an emoji."""


def test_names_are_shown_as_they_are(scene: Scene) -> None:
    scene.environment |= {"COLUMNS": "200", "TRITON_CACHE_DIR": "/cache/[/x]/[bold]"}
    scene.mount()
    for name in ODD:
        (scene.mountpoint / name).parent.mkdir(exist_ok=True)
        (scene.mountpoint / name).write_text("kernel")
    scene.settle()
    scene.must("pin", "triton/plain")
    shown = [line.split("  ")[0] for line in scene.must("ls").splitlines()]
    assert sorted(shown) == sorted(["entry", *ODD[:-1], "triton/plain [pinned]"])
    assert {"[", "[bold]", ":bug:", "triton"} <= {line.split(" ")[0] for line in scene.must("stats").splitlines()}
    assert "/cache/[/x]/[bold]" in scene.must("frameworks")


@pytest.fixture(name="kernels", scope="module")
def a_store_of_kernels() -> Iterator[Scene]:
    """A store at rest with ten kernels: five of each name, which differ in an option."""
    with a_scene() as made:
        made.mount()
        for number in range(10):
            told = {**SOUND, "name": f"kernel{number % 2}", "maxnreg": number // 2 or None}
            put(made, f"KEY{number}", json.dumps(told).encode())
        made.settle()
        made.umount()
        yield made


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        ({"names": False}, 0),
        ({"patterns": ["triton/KEY3"]}, 1),
        ({"patterns": ["triton/KEY3/add.json"]}, 1),
        ({"patterns": ["triton/KEY[34]"]}, 2),
        ({"limit": 4}, 4),
        ({"patterns": ["triton"], "limit": 4}, 4),
    ],
    ids=str,
)
def test_names_are_read_of_no_more_entries_than_the_answer_needs(
    kernels: Scene, question: dict[str, Any], answers: int
) -> None:
    with kernels.open_store() as store:
        administration = Administration(Filesystem(store))
        found = administration.ls(**question)
        assert len(found) == (answers or 10)
        assert len(administration._names) == answers


def test_entries_that_are_shown_are_told_apart_by_what_is_set(kernels: Scene) -> None:
    def names(*words: str) -> list[str]:
        told = json.loads(kernels.must("ls", "--json", "--store", kernels.store, *words))
        return sorted(one["name"] for one in told)

    said = "kernel1 sm_90, 4 warps, 3 stages"
    every = [f"{said}, maxnreg {one}" for one in ("1", "2", "3", "4", "unset")]
    assert names("kernel1") == every
    assert names("maxnreg unset") == [f"kernel0{every[-1][7:]}", every[-1]]
    assert names("triton/KEY1") == [said]
    assert names("triton/KEY1", "triton/KEY3") == [every[0], every[-1]]
    assert len(names("--limit", "3")) == 3
    kernels.run("ls", "--limit", "0").refused_with(2, "--limit: must be at least 1")
    kernels.run("ls", "--limit", "1e30").refused_with(2, "--limit: is not a whole number")
