"""The table in the docstring of `Policy` lists every question that a policy is asked."""

from __future__ import annotations

import re

import pytest

from kcachefs.core.policies import policy_class
from kcachefs.core.policies.policy import Policy
from kcachefs.core.sharing import POLICIES, Sharing


def test_every_question_is_in_the_table() -> None:
    rows = [line.split("|")[1] for line in (Policy.__doc__ or "").splitlines() if line.strip().startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert listed == {name for name in vars(Policy) if not name.startswith("_")}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_that_answers_a_question_otherwise_says_that_it_is_to_be_asked(name: str) -> None:
    policy = policy_class(Sharing(policy=name))
    other = {
        name for name in vars(Policy) if not name.startswith("_") and getattr(policy, name) != getattr(Policy, name)
    }
    assert policy.is_asked == bool(other)
    assert policy.allows_kept_listings == ("listing" not in other)
