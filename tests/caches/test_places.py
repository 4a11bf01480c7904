"""Where caches lie without a path: on the mount, in the chosen directory, or in the user's cache directory."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.caches.processes import ROOT
from tests.caches.test_disks import in_namespace, needs_mount
from tests.engines.mounting import Mount, temporary_folder

SCRIPT = """
import json, os, sys
from kcachefs import Cache
cache = Cache(name="tuned", memory_entries=0)
cache["key"] = b"value"
os.utime(next(cache.path.glob("entries/*/*/*")), ns=(1, 1))
found = cache["key"]
mtime = next(cache.path.glob("entries/*/*/*")).stat().st_mtime_ns
loaded = [name for name in ("torch", "triton", "cuda", "numpy") if name in sys.modules]
print(json.dumps({"path": str(cache.path), "found": found.decode(), "touched": mtime != 1, "loaded": loaded}))
"""


def ask(home: Path, before: tuple[str, ...] = (), **environment: str) -> dict[str, Any]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("KCACHEFS_", "XDG_"))}
    ran = subprocess.run(
        [*before, sys.executable, "-c", SCRIPT],
        env={**clean, "HOME": str(home), "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


def test_without_a_mount_it_is_the_users_cache(tmp_path: Path) -> None:
    folder = tmp_path / ".cache" / "kcachefs-library" / "tuned"
    assert ask(tmp_path) == {"path": str(folder), "found": "value", "touched": True, "loaded": []}


def test_a_mount_point_with_nothing_on_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    assert "kcachefs-library" in ask(tmp_path, KCACHEFS_MOUNT=str(tmp_path / "mount"))["path"]
    assert list((tmp_path / "mount").iterdir()) == []


@needs_mount
def test_another_filesystem_is_not_used(tmp_path: Path) -> None:
    """Nothing bounds what is written to it."""
    mount = tmp_path / "mount"
    mount.mkdir()
    before = in_namespace(f"mount -t tmpfs none {shlex.quote(str(mount))}")
    assert "kcachefs-library" in ask(tmp_path, before, KCACHEFS_MOUNT=str(mount))["path"]


@pytest.mark.mount
def test_a_mount_is_used_and_keeps_its_own_order() -> None:
    with temporary_folder() as base, Mount(base / "mount", base / "store", "direct") as mount:
        told = ask(base, KCACHEFS_MOUNT=str(mount.mountpoint))
        folder = str(mount.mountpoint / "library" / "tuned")
        assert told == {"path": folder, "found": "value", "touched": False, "loaded": []}


def test_a_chosen_directory_comes_first(tmp_path: Path) -> None:
    assert ask(tmp_path, KCACHEFS_CACHE_DIR=str(tmp_path / "here"))["path"] == str(tmp_path / "here" / "tuned")
