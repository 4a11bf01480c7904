"""Policies: what the users of a mount may do to each other. `policy.py` lists the questions that a policy answers."""

from __future__ import annotations

from kcachefs.core.parts import Parts
from kcachefs.core.policies.policy import Policy
from kcachefs.core.policies.private import Private
from kcachefs.core.policies.publish import Publish
from kcachefs.core.policies.read_only import ReadOnly

_POLICIES: dict[str, type[Policy]] = {
    "shared": Policy,
    "publish": Publish,
    "private": Private,
    "read-only": ReadOnly,
}


def make_policy(parts: Parts) -> Policy:
    """The policy that the mount's options name."""
    return _POLICIES[parts.options.sharing.policy](parts)
