"""Fixtures for every level of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.disks import Disk, ext4, tmpfs


@pytest.fixture(params=["ext4", "tmpfs"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A disk of 24 MiB, once as a real ext4 and once as a tmpfs."""
    with ext4(tmp_path) if request.param == "ext4" else tmpfs(tmp_path) as disk:
        yield disk
