"""Where a store is mounted when nobody says where: every way in agrees, and a store remembers its place."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from kcachefs import config
from kcachefs.mounts.places import place_for
from tests.cli.scene import Scene

pytestmark = pytest.mark.mount

WHERE = ("sh", "-c", 'echo "$KCACHEFS_MOUNT"')
INIT = "import kcachefs; print(kcachefs.init(mount=True))"


def asked_of_every_way(scene: Scene, *options: str | Path) -> set[str]:
    """Where `run`, `init()` and `mount` put the mount."""
    found = {scene.must("run", "-q", *options, "--", *WHERE).strip()}
    if not options:
        found.add(scene.run("-c", INIT, command=(sys.executable,)).out.strip())
    found.add(json.loads(scene.must("mount", "--json", *options))["mountpoint"])
    scene.must("umount")
    return found


def test_every_way_to_a_mount_leads_to_the_same_path(scene: Scene) -> None:
    assert asked_of_every_way(scene) == {f"{scene.store}.mount"}
    assert asked_of_every_way(scene, "--store", scene.folder / "other") == {str(scene.folder / "other.mount")}
    assert "last mounted at, or unpacked for, " in scene.run("mount", scene.mountpoint).err
    scene.umount()
    assert asked_of_every_way(scene) == {str(scene.mountpoint)}, "where the store was mounted last"
    scene.environment["KCACHEFS_MOUNT"] = str(scene.folder / "named")
    assert asked_of_every_way_with_a_move(scene) == str(scene.folder / "named")


def asked_of_every_way_with_a_move(scene: Scene) -> str:
    outcome = scene.run("run", "-q", "--", *WHERE)
    assert f"last mounted at, or unpacked for, {scene.mountpoint}: " in outcome.err
    assert asked_of_every_way(scene) == {outcome.out.strip()}
    return outcome.out.strip()


def test_a_store_says_in_one_line_that_it_was_mounted_elsewhere_before(scene: Scene) -> None:
    scene.mount()
    scene.umount()
    elsewhere = scene.folder / "elsewhere"
    outcome = scene.run("mount", elsewhere)
    assert (outcome.code, outcome.err.count("\n")) == (0, 1)
    assert outcome.err.startswith(f"kcachefs: this store was last mounted at, or unpacked for, {scene.mountpoint}: ")
    scene.must("umount")
    scene.must("mount", elsewhere)  # silent: it is where it was


def test_success_is_two_lines_and_quiet_is_none(scene: Scene) -> None:
    where, what_next = scene.must("mount", scene.mountpoint, "--max-size", "5GiB").splitlines()
    assert where == f"mounted at {scene.mountpoint}; it may grow to 5.0 GiB in {scene.store}"
    assert what_next == ('next: eval "$(kcachefs env)" and start your program, or: kcachefs run -- python train.py')
    other = scene.folder / "the other"
    assert f"kcachefs env --mount '{other}'" in scene.must("mount", other, "--store", scene.folder / "b")
    third = scene.folder / "third"
    assert scene.must("mount", "-q", third, "--store", scene.folder / "c") == ""


def test_a_remembered_place_that_cannot_be_used_any_more_is_left(scene: Scene) -> None:
    scene.mount()
    scene.umount()
    scene.mountpoint.rmdir()
    scene.mountpoint.write_text("in the way")
    outcome = scene.run("mount", "--json")
    assert json.loads(outcome.out)["mountpoint"] == f"{scene.store}.mount"
    assert "last mounted at, or unpacked for, " in outcome.err


@pytest.mark.parametrize("content", [b"", b"relative", b"/not\xffutf8", b"/nul\0"])
def test_a_damaged_memory_is_no_memory(scene: Scene, content: bytes) -> None:
    scene.store.mkdir()
    (scene.store / "mountpoint").write_bytes(content)
    assert place_for(scene.store) == Path(f"{scene.store}.mount")


def test_the_default_store_has_a_place_of_the_system_or_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KCACHEFS_STORE", raising=False)
    monkeypatch.delenv("KCACHEFS_MOUNT", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/ada/.cache")
    expected = "/mnt/kcache" if os.geteuid() == 0 else "/home/ada/.cache/kcache"
    assert place_for() == config.default_mount() == Path(expected)
