"""Policies: what the users of a mount may do to each other. `policy.py` lists the questions that a policy answers."""

from __future__ import annotations

from kcachefs.core.policies.policy import Policy
from kcachefs.core.policies.private import Private
from kcachefs.core.policies.publish import Publish
from kcachefs.core.policies.read_only import ReadOnly
from kcachefs.core.sharing import Sharing

_POLICIES: dict[str, type[Policy]] = {
    "shared": Policy,
    "publish": Publish,
    "private": Private,
    "read-only": ReadOnly,
}


def policy_class(sharing: Sharing) -> type[Policy]:
    """The class of the policy that the mount's options name. `Parts` needs its answers before an object exists."""
    return _POLICIES[sharing.policy]
