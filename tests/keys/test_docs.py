"""What docs/keys.md says is true: its examples run, and every row about what no key can see has a case."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kcachefs import keys
from tests.keys.cases import CASES

PAGE = (Path(__file__).parents[2] / "docs" / "keys.md").read_text()


def test_each_example_runs_by_itself() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        scope: dict[str, Any] = {"__name__": "example"}
        exec(compile(block, "docs/keys.md", "exec"), scope)


def test_every_public_name_is_on_the_page() -> None:
    assert [name for name in keys.__all__ if not re.search(rf"\b{name}\b", PAGE)] == []


def test_the_counts_are_true() -> None:
    changing, kept = map(int, re.findall(r"more than (\d+) changes that must show, and (\d+) that must not", PAGE)[0])
    assert sum(case.expect == "change" for case in CASES) >= changing
    assert sum(case.expect == "same" for case in CASES) >= kept


def test_what_no_key_can_see_is_shown_by_cases() -> None:
    section = PAGE.partition("## What no key can see")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    names = [case.name for case in CASES]
    unseen = {name.partition(":")[0] for name in names if name.startswith("unseen by")}
    # Programs that are installed, and addresses, cannot be changed from a test.
    assert len(rows) == 15
    assert len(unseen) == 17
    for declared in re.findall(r"depends=\[(env|file)\(", section):
        assert any(name.startswith(f"declared [{declared}(") for name in names)
