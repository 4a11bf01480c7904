"""Gives tests their own runtime directory, logs and temporary files: they see only their own mounts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.mounting import Mount, temporary_folder

ENGINES = [
    pytest.param(engine, marks=pytest.mark.mount)
    for engine in os.environ.get("KCACHEFS_TEST_ROOTS", "plain,direct,pyfuse3").split(",")
    if engine != "plain"
]


@pytest.fixture(autouse=True, scope="package")
def surroundings() -> Iterator[Path]:
    with temporary_folder() as folder, pytest.MonkeyPatch.context() as patch:
        for variable, name in (("RUNTIME_DIR", "run"), ("LOG_DIR", "log"), ("STORE", "default store")):
            patch.setenv(f"KCACHEFS_{variable}", str(folder / name))
        (folder / "tmp").mkdir()
        patch.setenv("TMPDIR", str(folder / "tmp"))
        patch.setattr(tempfile, "tempdir", None)
        patch.delenv("KCACHEFS_MOUNT", raising=False)
        yield folder


@pytest.fixture
def base(surroundings: Path) -> Iterator[Path]:
    """A folder for one test."""
    with temporary_folder() as folder:
        yield folder


@pytest.fixture
def mount(base: Path) -> Iterator[Mount]:
    """A mount with the default engine for one test."""
    with Mount(base / "mount", base / "store", "direct") as mount:
        yield mount
