"""The runtime directory: cleared away, full, or another one than that of the mount; and what status says then."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.cli.scene import KCACHEFS, Scene
from tests.disks import need_root, tmpfs
from tests.waiting import until, until_gone

pytestmark = pytest.mark.mount


def test_a_runtime_directory_that_is_cleared_away_comes_back(scene: Scene) -> None:
    scene.mount()
    [before] = scene.status()
    shutil.rmtree(scene.runtime)
    until(lambda: sorted(path.suffix for path in scene.runtime.glob("*")) == [".json", ".sock"])
    scene.must("set", scene.mountpoint, "--max-size", "1GiB")
    [now] = until(lambda: [one for one in scene.status() if one["reloads"] == 1])
    assert (now["state"], now["supervisor_pid"], now["max_bytes"]) == ("served", before["supervisor_pid"], 1 << 30)
    scene.umount()
    assert os.listdir(scene.runtime) == []


@need_root
def test_a_full_runtime_directory_hides_nothing(scene: Scene) -> None:
    with tmpfs(scene.folder, megabytes=1) as disk:
        scene.runtime = disk.path / "runtime"
        scene.runtime.mkdir(mode=0o700)
        scene.environment["KCACHEFS_RUNTIME_DIR"] = str(scene.runtime)
        disk.fill()
        scene.run("mount", scene.mountpoint).refused_with(4, str(scene.runtime), "No space left", "make room")
        assert (os.listdir(scene.runtime), scene.daemons()) == ([], [])
        disk.make_room()
        scene.mount()
        [record] = scene.runtime.glob("*.json")
        disk.fill()
        told = json.loads(scene.must("reload", scene.mountpoint, "--json"))
        assert [one["worker_pid"] for one in scene.status()] == [told["worker_pid"]] != [told["former_worker_pid"]]
        assert json.loads(record.read_text())["worker_pid"] == told["former_worker_pid"]
        assert list(scene.runtime.glob("*.new")) == []
        disk.make_room()
        until(lambda: json.loads(record.read_text())["worker_pid"] == told["worker_pid"])
        scene.umount()


def test_a_hidden_daemon_leaves_the_record_of_the_next_mount(scene: Scene) -> None:
    folder = scene.mount()
    (folder / "file").write_text("text")
    [hidden] = scene.status()
    with (folder / "file").open():
        scene.umount("--lazy")
        scene.mount("--store", scene.folder / "next")
        [shown] = scene.status()
    until_gone(hidden["supervisor_pid"])
    [now] = scene.status()
    assert now["supervisor_pid"] == shown["supervisor_pid"] != hidden["supervisor_pid"]
    assert now["state"] == "served"
    scene.umount()


def test_a_mount_without_a_record_here_is_shown_and_not_doubled(scene: Scene) -> None:
    scene.mount()
    place = str(scene.mountpoint)
    scene.environment.update(KCACHEFS_RUNTIME_DIR=str(scene.folder / "other"), KCACHEFS_MOUNT=place)
    shown = scene.must("status")
    assert place in shown
    assert "unlisted" in shown
    scene.run("set", place, "--max-size", "1GiB").refused_with(6, "is your mount", str(scene.folder / "other"))
    scene.run("evict", "triton/KEY").refused_with(6, "is your mount")
    scene.run("mount").refused_with(4, place, "is mounted already")
    assert scene.mounted() == [place]
    scene.environment["KCACHEFS_RUNTIME_DIR"] = str(scene.runtime)
    assert "unlisted" not in scene.must("status")


def test_a_frozen_worker_is_said_not_to_answer(scene: Scene) -> None:
    scene.mount()
    worker = os.pidfd_open(scene.status()[0]["worker_pid"])
    signal.pidfd_send_signal(worker, signal.SIGSTOP)
    try:
        assert "the worker does not answer" in scene.must("status")
    finally:
        signal.pidfd_send_signal(worker, signal.SIGCONT)
        os.close(worker)


@need_root
def test_others_reach_a_mount_whose_parents_were_made_for_it(scene: Scene) -> None:
    shared, private = scene.folder / "shared" / "mount", scene.folder / "private" / "mount"
    for place, option in ((shared, "--allow-other"), (private, "--no-allow-other")):
        scene.must(
            *KCACHEFS,
            "mount",
            place,
            option,
            "--store",
            f"{place}.store",
            command=("sh", "-c", 'umask 077; exec "$@"', "sh"),
        )
    assert _mode(shared.parent) == 0o711
    assert _mode(private.parent) == 0o700


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777
