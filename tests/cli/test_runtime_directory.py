"""The runtime directory: cleared away, full, or another one than that of the mount; and what status says then."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from kcachefs.daemon.registry import name_of
from kcachefs.daemon.serving import listener_at
from tests.cli.scene import KCACHEFS, Scene, kill_and_wait
from tests.disks import need_root, tmpfs
from tests.waiting import until, until_gone

pytestmark = pytest.mark.mount

_PROCESSES = ("supervisor_pid", "worker_pid")


def test_a_runtime_directory_that_is_cleared_away_comes_back(scene: Scene) -> None:
    scene.mount()
    [before] = scene.status()
    for gigabytes in (1, 2):
        shutil.rmtree(scene.runtime)
        until(lambda: [one for one in scene.runtime.glob("*.sock") if listener_at(one) == before["worker_pid"]])
        scene.must("set", scene.mountpoint, "--max-size", f"{gigabytes}GiB")
        [now] = scene.status()
        assert (now["state"], now["reloads"], now["max_bytes"]) == ("served", 0, gigabytes << 30)
        assert [now[who] for who in _PROCESSES] == [before[who] for who in _PROCESSES]
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
        assert json.loads(record.read_text())["worker_pid"] == told["worker_pid"]
        away = scene.store.rename(scene.folder / "away")
        scene.run("reload", scene.mountpoint).refused_with(4, "the old one keeps serving", str(scene.store), "gone")
        away.rename(scene.store)
        assert list(scene.runtime.glob("*.new")) == []
        disk.make_room()
        scene.umount()


def test_who_cannot_write_the_record_is_told_why(scene: Scene) -> None:
    in_the_way = scene.runtime / f"{name_of(str(scene.mountpoint))}.new"
    scene.runtime.mkdir(mode=0o700)
    in_the_way.mkdir()
    outcome = scene.run("mount", scene.mountpoint)
    outcome.refused_with(4, f"{in_the_way}: Is a directory; set KCACHEFS_RUNTIME_DIR")
    assert scene.daemons() == []


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


def test_a_hidden_daemon_whose_worker_dies_leaves_the_socket_of_the_next_mount(scene: Scene) -> None:
    folder = scene.mount()
    [hidden] = scene.status()
    file = (folder / "file").open("w")
    scene.umount("--lazy")
    scene.mount("--store", scene.folder / "next")
    [shown] = scene.status()
    [control] = scene.runtime.glob("*.sock")
    kill_and_wait(hidden["worker_pid"])
    file.write("text")
    file.flush()  # by the next worker
    assert listener_at(control) == shown["worker_pid"]
    file.close()
    until_gone(hidden["supervisor_pid"])
    assert listener_at(control) == shown["worker_pid"]
    scene.must("set", scene.mountpoint, "--max-size", "1GiB")
    assert [one["max_bytes"] for one in scene.status()] == [1 << 30]
    scene.umount()


@pytest.mark.parametrize("how", ["shared", "replaced"])
def test_an_unusable_runtime_directory_does_not_end_the_mount(scene: Scene, how: str) -> None:
    folder = scene.mount()
    (folder / "file").write_text("text")
    [before] = scene.status()
    aside = scene.folder / "aside"
    if how == "shared":
        scene.runtime.chmod(0o770)
    else:
        scene.runtime.rename(aside)
        scene.runtime.touch()
    kill_and_wait(before["worker_pid"])
    assert (folder / "file").read_text() == "text"
    if how == "shared":
        scene.runtime.chmod(0o700)
    else:
        scene.runtime.unlink()
    until(lambda: [one for one in scene.runtime.glob("*.sock") if listener_at(one)])
    [now] = until(lambda: [one for one in scene.status() if one["restarts"] == 1])
    assert (now["state"], now["reloads"]) == ("served", 0)
    assert now["worker_pid"] not in (None, before["worker_pid"])
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
