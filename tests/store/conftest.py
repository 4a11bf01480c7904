"""Fixtures for the store: an open one, and a guard against reports that a test did not ask for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcachefs.store import Options, Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A new store that folds only when it is told to, with small volumes."""
    with Store(tmp_path / "store", Options(background=False, volume_size=64 << 10)) as opened:
        yield opened


@pytest.fixture(autouse=True)
def nothing_unexpected_is_reported(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A test in which the store warns or complains fails, unless it looks at `caplog` itself."""
    yield
    if "caplog" in request.node.function.__code__.co_varnames:
        return
    reports = [r.getMessage() for r in caplog.get_records("call") if r.levelno >= logging.WARNING]
    assert not reports
