"""The list of mounts across PID namespaces, and after a number of a process has gone to another.

A container that shares the runtime directory has numbers of its own for processes, and sees few of them.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.scene import KCACHEFS, Scene, kill_and_wait
from tests.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces here"),
]

CONTAINER = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")


def in_container(scene: Scene, *words: str | Path, before: str = ":") -> str:
    """What a command prints in namespaces of its own, after this line of the shell."""
    command = shlex.join([*KCACHEFS, *map(str, words)])
    return scene.must("-c", f"{before} && exec {command}", command=(*CONTAINER, "sh"))


def record_of(scene: Scene) -> Path:
    [path] = scene.runtime.glob("*.json")
    return path


def change(record: Path, **fields: Any) -> None:
    """Put another record in its place, as if its supervisor had written that and were gone."""
    new = record.with_suffix(".changed")
    new.write_text(json.dumps({**json.loads(record.read_text()), **fields}))
    new.replace(record)


def test_a_container_leaves_the_record_of_a_mount_that_it_cannot_see(scene: Scene) -> None:
    scene.mount()
    before = sorted(os.listdir(scene.runtime))
    hidden = f"umount {shlex.quote(str(scene.mountpoint))}"
    for line in (hidden, ":"):
        [shown] = json.loads(in_container(scene, "status", "--json", before=line))["mounts"]
        assert (shown["state"], shown["supervisor_pid"], shown["worker_pid"]) == ("served", None, None)
        assert "another PID namespace" in in_container(scene, "status", before=line)
    assert sorted(os.listdir(scene.runtime)) == before
    assert [one["state"] for one in scene.status()] == ["served"]
    scene.must("set", scene.mountpoint, "--max-size", "1GiB")
    scene.umount()
    assert scene.is_over()


@contextmanager
def first_of_container(scene: Scene) -> Iterator[int]:
    """A daemon that is process 1 of its container, until the scope ends; its number here."""
    command = [*CONTAINER, *KCACHEFS, "mount", "-f", str(scene.mountpoint)]
    with subprocess.Popen(command, env=scene.environment, stderr=subprocess.PIPE, text=True) as container:
        try:
            assert container.stderr is not None
            assert "mounted" in container.stderr.readline()
            children = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()
            yield int(children[0])
        finally:
            container.kill()


def test_a_daemon_does_not_take_itself_for_the_one_that_had_its_number(scene: Scene) -> None:
    with first_of_container(scene) as pid:
        assert json.loads(record_of(scene).read_text())["supervisor_pid"] == 1
        kill_and_wait(pid)
    assert record_of(scene).exists()
    with first_of_container(scene) as pid:
        [shown] = scene.status()
        assert (shown["state"], shown["supervisor_pid"]) == ("served", pid)
        refused = scene.run("mount", scene.folder / "other")
        refused.refused_with(3, "still in use", f"process {shown['worker_pid']} serves it")


def test_a_reload_reaches_a_daemon_in_a_container(scene: Scene) -> None:
    with first_of_container(scene) as pid:
        told = json.loads(scene.must("reload", scene.mountpoint, "--json"))
        [shown] = scene.status()
        assert (shown["reloads"], shown["supervisor_pid"]) == (1, pid)
        assert told["mountpoint"] == str(scene.mountpoint)


@pytest.mark.parametrize("is_older", [True, False])
def test_umount_ends_no_process_that_has_got_the_number(scene: Scene, is_older: bool) -> None:
    scene.mount()
    record = record_of(scene)
    for pid in scene.daemons():
        kill_and_wait(pid)
    with subprocess.Popen(["python --cache=/srv/kcachefs", "600"], executable="/bin/sleep") as bystander:
        try:
            taken = {"supervisor_pid": bystander.pid, "worker_pid": bystander.pid}
            change(record, **taken, **({"locked": False, "namespace": 0} if is_older else {}))
            scene.umount()
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_a_record_of_an_older_daemon_is_as_good_as_ever(scene: Scene) -> None:
    scene.mount()
    [now] = scene.status()
    os.kill(now["supervisor_pid"], signal.SIGSTOP)  # it would write its own again
    change(record_of(scene), locked=False, namespace=0, supervisor_ticks=0, worker_ticks=0)
    [shown] = scene.status()
    for name in ("state", "supervisor_pid", "worker_pid"):
        assert shown[name] == now[name]
    in_container(scene, "status", before=f"umount {shlex.quote(str(scene.mountpoint))}")
    assert [one["state"] for one in scene.status()] == ["served"]
    os.kill(now["supervisor_pid"], signal.SIGCONT)
    scene.umount()
    until(scene.is_over)


def test_a_store_in_use_in_another_namespace_says_so(scene: Scene) -> None:
    scene.mount()
    environment = {**scene.environment, "KCACHEFS_RUNTIME_DIR": str(scene.folder / "other")}
    command = [*CONTAINER, *KCACHEFS, "ls", "--store", str(scene.store)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 3
    assert "another PID namespace" in done.stderr
