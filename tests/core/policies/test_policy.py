"""The table in the docstring of `Policy` lists every question that a policy is asked."""

from __future__ import annotations

import re

from kcachefs.core.policies.policy import Policy


def test_every_question_is_in_the_table() -> None:
    rows = [line.split("|")[1] for line in (Policy.__doc__ or "").splitlines() if line.strip().startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert listed == {name for name in vars(Policy) if not name.startswith("_")}
