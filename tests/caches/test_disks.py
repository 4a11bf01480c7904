"""Folders that cannot be written: foreign, read-only, full. Mounts are in namespaces that die with the workers."""

from __future__ import annotations

import os
import resource
import shlex
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kcachefs import Cache
from tests.caches.processes import Worker, start

__all__ = ["start"]

Start = Callable[..., Worker]
NOBODY = 65534


def can_mount() -> bool:
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


needs_mount = pytest.mark.skipif(not can_mount(), reason="needs the right to mount")


def in_namespace(*commands: str) -> tuple[str, ...]:
    """Run a worker after commands, in a mount namespace of its own."""
    return ("unshare", "-m", "--propagation", "private", "sh", "-ec", "; ".join(commands) + '; exec "$@"', "sh")


def check_refused(answer: dict[str, object]) -> None:
    assert answer == {
        "stored": "stored",
        "put": False,
        "new": "new",
        "computed": "computed",
        "refused": 2,
        "keys": ["computed", "new", "stored"],
        "fresh": False,
    }


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user to be")
def test_a_folder_of_someone_else_serves_and_is_left_alone(tmp_path: Path, start: Start) -> None:
    folder = tmp_path / "cache"
    Cache(folder)["stored"] = b"stored"
    for path in [*tmp_path.parents, tmp_path]:
        if not path.stat().st_mode & stat.S_IXOTH:
            path.chmod(0o755)
    before = sorted(folder.rglob("*"))
    check_refused(start("refused", folder, NOBODY).hear())
    assert sorted(folder.rglob("*")) == before


@needs_mount
def test_a_read_only_disk_serves(tmp_path: Path, start: Start) -> None:
    folder = tmp_path / "cache"
    Cache(folder)["stored"] = b"stored"
    where = shlex.quote(str(folder))
    before = in_namespace(f"mount --bind {where} {where}", f"mount -o remount,bind,ro {where}")
    check_refused(start("refused", folder, 0, before=before).hear())


@needs_mount
def test_a_full_disk_keeps_what_is_whole_and_goes_on(tmp_path: Path, start: Start) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    before = in_namespace(f"mount -t tmpfs -o size=1m none {shlex.quote(str(folder))}")
    told = start("fill", folder, before=before).hear()
    assert told["stored"] >= 10
    assert told == {
        "stored": told["stored"],
        "whole": told["stored"],
        "left over": [],
        "again": True,
        "computed": 50_000,
        "damaged": 0,
    }
    assert list(folder.iterdir()) == []


def test_a_value_that_the_disk_refuses_takes_the_older_one_with_it(tmp_path: Path) -> None:
    cache, other = Cache(tmp_path), Cache(tmp_path, memory_entries=0)
    cache.put("key", b"old")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
    try:
        assert not cache.put("key", bytes(8192))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert cache.get("key") == bytes(8192)
    assert other.get("key") is None
    assert other.put("key", b"newer")
    assert cache.get("key") == b"newer"
