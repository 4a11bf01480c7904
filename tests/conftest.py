"""Fixtures for every level of tests."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import command_server
from tests.disks import Disk, ext4, tmpfs

# Mounts of the tests are listed apart from those of the machine, and their logs go with them. Set here and not in a
# fixture, because modules of tests read the environment when they are imported.
_OWN = Path(tempfile.mkdtemp(prefix="kcachefs-test-run-"))
os.environ["KCACHEFS_RUNTIME_DIR"] = str(_OWN / "run")
os.environ["KCACHEFS_LOG_DIR"] = str(_OWN / "log")
for _name in ("KCACHEFS_MOUNT", "KCACHEFS_STORE"):
    os.environ.pop(_name, None)

# Whoever is started in the background of a shell has it ignored, and so would every command under test.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    command_server.stop()
    shutil.rmtree(_OWN, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several processes (`-n 2`) none should be at a long test while the others are done: the longest begin."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(params=["ext4", "tmpfs"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A disk of 24 MiB, once as a real ext4 and once as a tmpfs."""
    with ext4(tmp_path) if request.param == "ext4" else tmpfs(tmp_path) as disk:
        yield disk


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads take turns every microsecond instead of every five milliseconds: races are lost more often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
