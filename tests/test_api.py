"""The API reference is current and complete, and public names have types."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

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


@pytest.mark.parametrize("module", [kcachefs, kcachefs.keys], ids=lambda module: module.__name__)
def test_the_examples_of_a_section_run_after_the_import_at_its_top(module: ModuleType) -> None:
    section = PAGE.read_text().partition(f"\n## {module.__name__}\n")[2].partition("\n## ")[0]
    beginning, *examples = re.findall(r"^```python\n((?:from|>>>).*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert len(examples) > 2
    for number, example in enumerate(examples):
        scope: dict[str, Any] = {}
        exec(beginning, scope)
        test = doctest.DocTestParser().get_doctest(example, scope, f"{module.__name__} {number}", str(PAGE), 0)
        assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.skipif(shutil.which("pyright") is None, reason="needs pyright: pip install 'pyright[nodejs]'")
def test_every_public_name_has_a_type_that_type_checkers_agree_on() -> None:
    ran = subprocess.run([sys.executable, "scripts/type_completeness.py"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
