"""A mount appears in containers that were started before it, comes back there, and may be made by a container."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kcachefs
from tests.cli.scene import runs
from tests.deploy.containers import DAEMON, Container, Share, Start, containers
from tests.engines.mounting import Mount, temporary_folder
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.mount

PACKAGE = Path(kcachefs.__file__).parent


@contextmanager
def shared_folder(base: Path) -> Iterator[Path]:
    """A folder that propagates mounts, like the whole tree of a host that systemd booted."""
    folder = base / "mount"  # where the clean-up of a killed test looks
    folder.mkdir()
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "--make-rshared", folder], check=True)
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def host() -> Iterator[tuple[Path, Path, Start]]:
    with temporary_folder() as base, shared_folder(base) as shared, containers(base / "containers") as start:
        yield shared, base / "store", start


def sees(container: Container, file: Path) -> str:
    return container.run("/bin/cat", file).stdout


def test_a_container_that_was_there_first_sees_the_mount_come_go_and_come_back() -> None:
    with host() as (shared, store, start):
        early = start("early", uid=1001, shared=[Share(shared, propagation="rslave")])
        file = shared / "cache" / "triton" / "file"
        with Mount(shared / "cache", store, "direct") as mount:
            early.sh(f"echo text > {file}")
            assert file.read_text() == "text\n"
            mount.umount()
            assert early.sh(f"ls {shared}/cache") == ""
            mount.start()
            assert sees(early, file) == "text\n"
            mount.kill()  # the whole daemon: it leaves a dead mount, which the next one removes
            assert sees(early, file) == "text\n"
        assert early.sh(f"ls {shared}/cache") == ""


def test_a_container_that_is_kept_private_sees_nothing_of_a_later_mount() -> None:
    """The counterpart of the first test: without propagation nothing appears."""
    with host() as (shared, store, start):
        early = start("early", uid=1001, shared=[Share(shared, propagation="rprivate")])
        with Mount(shared / "cache", store, "direct"):
            assert early.sh(f"ls {shared}/cache") == ""


@pytest.mark.parametrize("uid", [0, DAEMON])
def test_a_daemon_in_a_container_serves_the_host_and_other_containers_and_is_replaced(uid: int) -> None:
    """As with Docker and Kubernetes: the daemon's container propagates its mount in both directions."""
    with host() as (shared, store, start):
        for folder in (store, shared / "cache"):
            folder.mkdir(mode=0o700)
            os.chown(folder, uid, uid)
        user = start("user", uid=1001, shared=[Share(shared, propagation="rslave")])
        file = shared / "cache" / "triton" / "file"
        first = daemon(start, "first", shared, store, uid)
        with serving(first, shared, store) as process:
            until(lambda: sees(user, shared / "cache" / ".kcachefs" / "stats.json"))
            user.sh(f"echo text > {file}")
            assert file.read_text() == "text\n"
            assert file.stat().st_uid == 1001, "the policy knows who is who"
            first.remove()
            start.running.remove(first)
            process.wait(PATIENCE)
        assert sees(user, file) == ""
        with serving(daemon(start, "second", shared, store, uid), shared, store):
            until(lambda: sees(user, file) == "text\n")
            assert json.loads(sees(user, shared / "cache" / ".kcachefs" / "stats.json"))["total"]["files"] >= 0


def daemon(start: Start, name: str, shared: Path, store: Path, uid: int) -> Container:
    places = [Share(shared, propagation="rshared"), Share(store), Share(PACKAGE, Path("/opt/code/kcachefs"))]
    return start(name, uid=uid, programs=True, privileged=True, shared=places)


@contextmanager
def serving(container: Container, shared: Path, store: Path) -> Iterator[subprocess.Popen[str]]:
    command = (sys.executable, "-B", "-m", "kcachefs", "mount", "-f", shared / "cache", "--store", store)
    places = {"KCACHEFS_RUNTIME_DIR": "/tmp/run", "PYTHONPATH": "/opt/code"}
    with container.start(*command, **places) as process:
        try:
            yield process
        finally:
            subprocess.run(["umount", "-l", shared / "cache"], check=False)
            if process.poll() is None:
                process.wait(PATIENCE)


def fail_beside_a_container(folder: Path, pids: list[int]) -> None:
    with containers(folder) as start:
        pids.append(start("doomed", uid=1001).pid())
        raise ZeroDivisionError


def test_nothing_of_a_container_is_left_when_a_test_fails() -> None:
    with temporary_folder() as base:
        pids: list[int] = []
        with pytest.raises(ZeroDivisionError):
            fail_beside_a_container(base / "containers", pids)
        until(lambda: not runs(*pids))
        assert not (base / "containers").exists()
        assert str(base) not in Path("/proc/self/mountinfo").read_text()
