"""Fixtures for tests of the store: an open one, repeatable chance, and a guard against unexpected warnings."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcachefs.store import Options, Store, dictionaries, repacking
from tests.disks import tmpfs


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A new store that folds only when told to, with small volumes."""
    with Store(tmp_path / "store", Options(background=False, volume_size=64 << 10)) as opened:
        yield opened


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in which a sync costs nothing, for root: a kill, or damage, leaves what was written, synced or not."""
    if os.geteuid() != 0:
        yield tmp_path
        return
    with tmpfs(tmp_path, megabytes=512) as disk:
        yield disk.path


@pytest.fixture
def chosen(seed: int) -> random.Random:
    """Chance that begins with the run's seed."""
    return random.Random(seed)


@pytest.fixture
def quick_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of a megabyte is enough to learn from."""
    for module in (dictionaries, repacking):
        monkeypatch.setattr(module, "SAMPLES_MIN", 256 << 10)


@pytest.fixture(autouse=True)
def nothing_unexpected_is_reported(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test in which the store logs a warning or an error, unless the test looks at `caplog` itself."""
    yield
    if "caplog" in request.node.function.__code__.co_varnames:
        return
    reports = [r.getMessage() for r in caplog.get_records("call") if r.levelno >= logging.WARNING]
    assert not reports
