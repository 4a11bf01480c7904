"""The limits of a filesystem. A module of its own: commands that only pass limits on need not load the filesystem."""

from __future__ import annotations

import msgspec

from kcachefs import config
from kcachefs.errors import UsageError

GRACE_SECONDS = 30.0
"""How long after its last use an entry is safe, normally."""
LEAST_MAX_SIZE = 1 << 20
"""The smallest quota that makes sense, given that the catalog alone takes a part of it."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one filesystem. Sizes are stored bytes on disk; `Room.used_bytes` says what counts."""

    max_size: int = 20 << 30
    max_files: int = 0
    """0: as many as fit."""
    max_size_per_uid: int = 0
    """Bytes that a user's inodes together may cost, as if nothing were shared; 0: as many as fit. See accounts.py."""
    tenant_ranges: tuple[tuple[int, int], ...] = ()
    """Ranges of uids, as (first, count), each for one user namespace: the users of a range share one account."""
    min_free: int = 64 << 20
    """Bytes that must stay free on the store's disk."""
    grace: float = GRACE_SECONDS
    """For how many seconds after its last use an entry is safe."""
    floors: dict[str, int] = {}
    """By namespace: nothing is evicted from it while it holds no more than this many bytes."""
    ceilings: dict[str, int] = {}
    """By namespace: entries are evicted from it when it holds more than this many bytes."""

    def account_of(self, uid: int) -> int:
        """The account of a user: their own, or that of the first user of their range.

        >>> Limits(tenant_ranges=((100000, 65536),)).account_of(100033)
        100000
        """
        for first, count in self.tenant_ranges:
            if first <= uid < first + count:
                return first
        return uid


def check(limits: Limits) -> Limits:
    """Return the limits if they do not contradict each other; raises UsageError otherwise."""
    for name, floor in limits.floors.items():
        if name in limits.ceilings and floor > limits.ceilings[name]:
            raise UsageError(f"--floor {name}: is above its --ceiling, so they cannot both hold; lower it")
    floors = sum(limits.floors.values())
    if floors > limits.max_size:
        raise UsageError(
            f"--floor: together the floors ({config.format_size(floors)}) are above --max-size "
            f"({config.format_size(limits.max_size)}), so nothing could be evicted; lower them"
        )
    return limits
