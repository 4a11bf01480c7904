"""The API reference is current and complete, and public names have types."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kcachefs
import kcachefs.caches
import kcachefs.keys

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"


def test_the_page_is_made_of_the_docstrings_as_they_are() -> None:
    ran = subprocess.run([sys.executable, "scripts/api_reference.py", "--check"], cwd=ROOT, capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()


@pytest.mark.parametrize("module", [kcachefs, kcachefs.caches, kcachefs.keys], ids=lambda module: module.__name__)
def test_every_public_name_is_on_the_page(module: object) -> None:
    headings = {line.removeprefix("### ") for line in PAGE.read_text().splitlines() if line.startswith("### ")}
    names = {name for name in module.__all__ if not name.startswith("_")}  # type: ignore[attr-defined]
    assert names - headings - {"keys"} == set()


@pytest.mark.skipif(shutil.which("pyright") is None, reason="needs pyright: pip install 'pyright[nodejs]'")
def test_every_public_name_has_a_type_that_type_checkers_agree_on() -> None:
    ran = subprocess.run([sys.executable, "scripts/type_completeness.py"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
