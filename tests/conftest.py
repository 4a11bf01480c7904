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
    shutil.rmtree(_OWN, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several processes (`-n 2`), one runs all tests that share a fixture of their module; the longest begin."""
    if not hasattr(config, "workerinput"):
        return
    for item in items:
        if (shared := _shared_fixtures(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}-{shared}"))
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def _shared_fixtures(item: pytest.Item) -> str | None:
    """The parameters of an item's fixtures that its module shares, or None when it uses none of those."""
    if not isinstance(item, pytest.Function):
        return None
    found = item._fixtureinfo.name2fixturedefs
    names = [name for name, definitions in found.items() if definitions[-1].scope == "module"]
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return " ".join(f"{name}={parameters.get(name, '')!r:.20}" for name in names) if names else None


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
