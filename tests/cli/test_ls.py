"""`kcachefs ls`, `stats` and `frameworks` show names letter by letter, whatever they contain."""

from __future__ import annotations

import sys

import pytest

from tests.cli.scene import Scene, holding

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
