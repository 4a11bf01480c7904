"""The Python versions that pyproject.toml names, the interpreters that scripts/test has set up for them, and torch."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"

_PREFIX = "Programming Language :: Python :: 3."


needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
"""To import it takes two seconds, and every process of tests collects them all."""


def supported() -> list[str]:
    """Every version that the project says it supports."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    return [f"3.{one.removeprefix(_PREFIX)}" for one in classifiers if one.startswith(_PREFIX)]


def interpreter(version: str) -> Path:
    """One that can import what kcachefs needs, and pytest; skips the test where there is none."""
    if version == OWN:
        return Path(sys.executable)
    found = Path(sys.prefix, "versions", version, "bin", "python")
    if not found.exists():
        pytest.skip(f"Python {version} was not tested: scripts/test has not set it up")
    return found
