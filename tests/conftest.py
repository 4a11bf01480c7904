"""Fixtures for every level of tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.disks import Disk, ext4, tmpfs

# Mounts of the tests are listed apart from those of the machine, and their logs go with them. Set here and not in a
# fixture, because modules of tests read the environment when they are imported.
_OWN = Path(tempfile.mkdtemp(prefix="kcachefs-test-run-"))
os.environ["KCACHEFS_RUNTIME_DIR"] = str(_OWN / "run")
os.environ["KCACHEFS_LOG_DIR"] = str(_OWN / "log")
for _name in ("KCACHEFS_MOUNT", "KCACHEFS_STORE"):
    os.environ.pop(_name, None)


def pytest_unconfigure() -> None:
    shutil.rmtree(_OWN, ignore_errors=True)


@pytest.fixture(params=["ext4", "tmpfs"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A disk of 24 MiB, once as a real ext4 and once as a tmpfs."""
    with ext4(tmp_path) if request.param == "ext4" else tmpfs(tmp_path) as disk:
        yield disk
