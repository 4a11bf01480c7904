"""`kcachefs status`: the mounts, for people and for programs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.scene import Scene, kill_and_wait
from tests.waiting import until

pytestmark = pytest.mark.mount


def test_without_mounts_it_says_how_to_make_one(scene: Scene) -> None:
    assert scene.must("status") == "no mounts; make one with: kcachefs mount\n"
    assert json.loads(scene.must("status", "--json")) == {"mounts": []}


def test_a_mount_is_shown_with_everything_that_a_program_may_ask_for(scene: Scene) -> None:
    folder = scene.mount()
    [mount] = scene.status()
    assert list(mount) == [
        "mountpoint",
        "store",
        "engine",
        "supervisor_pid",
        "worker_pid",
        "restarts",
        "uptime_s",
        "log",
        "last_exit",
        "reloads",
        "version",
        "metrics",
        "policy",
        "state",
        "used_bytes",
        "max_bytes",
        "bytes_saved",
        "fleet",
    ]
    assert (mount["mountpoint"], mount["store"], mount["engine"], mount["restarts"]) == (
        str(scene.mountpoint),
        str(scene.store),
        "direct",
        0,
    )
    # There may also be a standby.
    assert {mount["supervisor_pid"], mount["worker_pid"]} <= set(scene.daemons())
    assert 0 <= mount["uptime_s"] < 1000
    assert Path(mount["log"]).parent == scene.folder / "log"

    kill_and_wait(mount["worker_pid"])
    (folder / "file").write_text("served by the next")
    until(lambda: scene.status()[0]["restarts"] == 1)
    assert scene.status()[0]["worker_pid"] != mount["worker_pid"]
    text = scene.must("status")
    for word in (mount["mountpoint"], mount["store"], "direct", mount["log"], "signal SIGKILL"):
        assert word in text
    assert "the worker ended (signal SIGKILL); replacing it" in Path(mount["log"]).read_text()


@pytest.mark.parametrize(
    ("options", "policy"), [("", "shared"), ("--policy publish", "publish"), ("--read-only", "read-only")]
)
def test_how_a_mount_is_shared_is_shown(scene: Scene, options: str, policy: str) -> None:
    scene.mount(*options.split())
    assert scene.status()[0]["policy"] == policy
    assert f"  policy    {policy}\n" in scene.must("status")


def test_what_a_crash_left_is_forgotten_once_it_is_unmounted(scene: Scene) -> None:
    scene.mount()
    for pid in scene.daemons():
        kill_and_wait(pid)
    subprocess.run(["umount", scene.mountpoint], check=True)
    assert scene.status() == []
    assert os.listdir(scene.runtime) == []


def test_a_list_of_mounts_that_someone_else_could_write_to_is_not_believed(scene: Scene) -> None:
    scene.runtime.mkdir()
    scene.runtime.chmod(0o777)
    scene.run("status").refused_with(6, str(scene.runtime), "yours alone", "KCACHEFS_RUNTIME_DIR")
    scene.run("mount", scene.mountpoint).refused_with(6, str(scene.runtime), "yours alone")
    assert not scene.mountpoint.exists()


def test_a_dead_supervisor_and_a_dead_mount_are_shown(scene: Scene) -> None:
    scene.mount()
    [mount] = scene.status()
    assert mount["state"] == "served"
    kill_and_wait(mount["supervisor_pid"])
    assert [one["state"] for one in scene.status()] == ["unsupervised"]
    assert "the supervisor is dead" in scene.must("status")
    for pid in scene.daemons():
        kill_and_wait(pid)
    assert [(one["mountpoint"], one["state"]) for one in scene.status()] == [(str(scene.mountpoint), "dead")]
    assert [(one["supervisor_pid"], one["worker_pid"]) for one in scene.status()] == [(None, None)]
    assert f"kcachefs mount {scene.mountpoint} --store {scene.store}" in scene.must("status")
    for words in (("config", "--mount"), ("stats", "--mount"), ("reload",)):
        scene.run(*words, scene.mountpoint).refused_with(4, f"{scene.mountpoint}: the mount does not answer")
    scene.umount()
    assert scene.status() == []
