"""What a filesystem may hold. Kept apart, so that commands that only pass it on need not load the filesystem."""

from __future__ import annotations

import msgspec

from kcachefs import config
from kcachefs.errors import UsageError

GRACE_SECONDS = 30.0
"""How long after its last use an entry is safe, normally."""
LEAST_MAX_SIZE = 1 << 20
"""The smallest quota that makes sense: the catalog alone takes a part of it."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one filesystem. Sizes are stored bytes on disk; `Room.used_bytes` says what counts."""

    max_size: int = 20 << 30
    max_files: int = 0
    """0: as many as fit."""
    max_size_per_uid: int = 0
    """Bytes that everything a user owns may cost, as if nothing were shared; 0: as many as fit. See accounts.py."""
    tenant_ranges: tuple[tuple[int, int], ...] = ()
    """Ranges of uids, as (first, count), that share one account each: the users of one user namespace."""
    min_free: int = 64 << 20
    """Free bytes that the disk beneath keeps."""
    grace: float = GRACE_SECONDS
    """Seconds after its last use during which an entry is safe."""
    floors: dict[str, int] = {}
    """By namespace: while it holds no more than this, nothing is evicted from it."""
    ceilings: dict[str, int] = {}
    """By namespace: when it holds more than this, entries are evicted from it."""

    def account_of(self, uid: int) -> int:
        """Whose account a user is on: their own, or that of the first user of their range.

        >>> Limits(tenant_ranges=((100000, 65536),)).account_of(100033)
        100000
        """
        for first, count in self.tenant_ranges:
            if first <= uid < first + count:
                return first
        return uid


def check(limits: Limits) -> Limits:
    """These limits, if they can hold together; raises UsageError otherwise."""
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
