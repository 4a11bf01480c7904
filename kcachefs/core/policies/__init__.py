"""Policies: what the users of a mount may do to each other. Each is the filesystem, answering some requests otherwise.

`shared` is the filesystem itself and costs nothing; the policy is chosen once, when the filesystem is made. The kernel
checks modes and owners by itself (default_permissions) before it asks, and asks nothing at all for a flock or what it
has cached, nor for an open unless the policy `judges_opens`. So a policy works in two places: in the attributes that it
shows, which the kernel then enforces, and in the requests that do come, each of which says who makes it; but for pages
of a map, which come later: who opened the file for writing has been judged then. Requests that another thread finishes
are judged in the engine's thread, before they are handed on: a write in `is_quick_to_write`, all else in `may_change`.
"""

from __future__ import annotations

from kcachefs.core.filesystem import Filesystem, FsOptions
from kcachefs.core.policies.private import Private
from kcachefs.core.policies.publish import Publish
from kcachefs.core.policies.quotas import Quotas
from kcachefs.core.policies.read_only import ReadOnly
from kcachefs.core.policies.squash import Squash
from kcachefs.store import Store

_POLICIES: dict[str, type[Filesystem]] = {
    "shared": Filesystem,
    "publish": Publish,
    "private": Private,
    "read-only": ReadOnly,
}


def make_filesystem(store: Store, options: FsOptions) -> Filesystem:
    """The filesystem as it is to be shared."""
    layers: list[type[Filesystem]] = [_POLICIES[options.sharing.policy]]
    if options.limits.max_size_per_uid:
        layers.insert(0, Quotas)
    if options.sharing.squashes:
        layers.insert(0, Squash)
    kind = layers[0] if len(layers) == 1 else type("Layered", tuple(layers), {})
    made: Filesystem = kind(store, options)
    return made
