"""Whose entries go when users have quotas: those of users above their quota or, in a full store, above an equal part.

Called by the evictor, in its thread. Only the user's own entries go, in the order of their last use. When entries that
somebody keeps open put a user above the quota, these entries lose their names: otherwise anybody could use up another
user's quota by opening that user's entries. For the same reason entries in use take at most half of a quota.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Protocol

from kcachefs.core.accounts import NOBODYS_ACCOUNT, Accounts
from kcachefs.core.room import Room
from kcachefs.core.walk import Walk

log = logging.getLogger(__name__)

HIGH_WATER, LOW_WATER = 0.95, 0.90
"""Parts of a limit at which eviction begins, and to which it works down."""
DOOMED_PART = 1 / 8
"""The part of the whole store's quota that may go to entries which were evicted while somebody had them open."""
COUNT_SECONDS = 0.05
"""How long a turn counts what users hold, if the mount did not finish counting when it started."""


class EvictionActions(Protocol):
    """What the evictor does for this module."""

    def evict_oldest(self, account: int, over: int, *, is_within: bool) -> bool:
        """Evict the oldest entries of an account that are not in use, to free that many bytes; returns if any went."""

    def in_use_of(self, account: int) -> list[int]:
        """The entries of an account that were found in use when they were to be evicted, least recently used first."""

    def evict(self, entry: int, *, why: str, doom: bool) -> bool:
        """Evict one entry, for this reason; `doom`: even if it is in use, which charges it to nobody's account."""

    def anything_left(self, accounts: set[int]) -> bool:
        """Whether any entry of these accounts can be evicted, now or later."""

    def seal(self, until: float) -> None:
        """Seal waiting files, so that they can be evicted."""

    def has_lasted(self, what: object, seems: bool) -> bool:
        """Note whether something seems so now; returns whether it has seemed so for long enough."""


class UserEviction:
    """Keeps every user of one filesystem within their quota."""

    def __init__(self, accounts: Accounts, room: Room, walk: Walk, evictor: EvictionActions) -> None:
        self._accounts = accounts
        self._room = room
        self._walk = walk
        self._evictor = evictor

    def turn(self, until: float) -> None:
        """Evict entries of users above their quota. A user who has nothing left to lose cannot write."""
        self._accounts.count(COUNT_SECONDS)
        limit = self._room.limits.max_size_per_uid
        exhausted = set()
        for account in self._accounts.totals().keys() - {NOBODYS_ACCOUNT}:
            if self._evict_down_to_quota(account, limit, until):
                over = self._held_and_wanted(account) - int(limit * LOW_WATER)
                if not self._doom(account, over):
                    exhausted.add(account)
        self._room.note_exhausted(exhausted)
        self._room.note_above_fair_share(() if self._room.has_room.is_set() else self.above_fair_share())

    def _evict_down_to_quota(self, account: int, limit: int, until: float) -> bool:
        """Evict entries of one account; returns whether it has stayed above its limit long enough to be certain."""
        evictor, any_went = self._evictor, False
        while (held := self._held_and_wanted(account)) > limit * HIGH_WATER or (any_went and held > limit * LOW_WATER):
            if not evictor.evict_oldest(account, held - int(limit * LOW_WATER), is_within=held <= limit):
                break
            any_went = True
            if time.monotonic() > until:
                break
        if held > limit * HIGH_WATER and (in_use := self._cost(evictor.in_use_of(account))) > limit // 2:
            any_went = self._doom(account, in_use - limit // 2) or any_went
        is_over = held > limit
        if is_over and not any_went and account not in self._room.exhausted:
            evictor.seal(until)
        return evictor.has_lasted(account, is_over and not any_went and not evictor.anything_left({account}))

    def _held_and_wanted(self, account: int) -> int:
        """What an account holds, together with what waits to be written."""
        return self._accounts.total(account) + self._accounts.wanted(account)

    def _doom(self, account: int, over: int) -> bool:
        """Evict entries in use. Their bytes stay on nobody's account, which is bounded, until nobody uses them.

        Returns whether any went.
        """
        pool = int(self._room.limits.max_size * DOOMED_PART) - self._accounts.total(NOBODYS_ACCOUNT)
        went = 0
        for entry in self._evictor.in_use_of(account):
            size = self._cost([entry])
            if went < over and went + size <= pool and self._evictor.evict(entry, why="user quota", doom=True):
                went += size
        if went:
            log.warning(
                "user %d: open entries take too much of this user's quota; some were unlinked, and go once closed",
                account,
            )
        return went > 0

    def _cost(self, entries: list[int]) -> int:
        """What entries cost, unsealed files included."""
        inodes = (ino for entry in entries for ino, _, _ in self._walk.members(entry, self._walk.top_names(entry)))
        return sum(map(self._accounts.cost, inodes))

    # --- a full store -------------------------------------------------------------------------------------------------

    def above_fair_share(self) -> set[int]:
        """The accounts whose entries may go when the whole store is over its limit; empty if nobody holds anything."""
        held = self._accounts.totals()
        held.pop(NOBODYS_ACCOUNT, None)
        return above_equal_part(held, self._room.limits.max_size)

    def others_in_turn(self, above: set[int]) -> set[int]:
        """The accounts that lose entries if those above an equal part have none left: those that wait to write.

        They lose entries for their own sake. Once this has lasted, accounts above an equal part cannot write.
        """
        if self._evictor.has_lasted("those above an equal part", True):
            self._room.bar(above)
        return {self._accounts.of(uid) for _, uid in list(self._room.waiting)}

    def let_all_write(self) -> None:
        """Bar nobody: there is room, or accounts above an equal part can make some."""
        self._evictor.has_lasted("those above an equal part", False)
        self._room.bar(())


def above_equal_part(held: Mapping[int, int], size: int) -> set[int]:
    """Who holds more than an equal part of `size`; what some do not use of their parts is shared among the others.

    >>> above_equal_part({1: 10, 2: 40, 3: 90}, 120)
    {3}
    >>> above_equal_part({1: 10, 2: 20}, 120)  # nobody, so it is the one who holds most
    {2}
    """
    left, part = size, 0
    for users, bytes_held in zip(range(len(held), 0, -1), sorted(held.values()), strict=True):
        part = left // users
        if bytes_held > part:
            break
        left -= bytes_held
    above = {account for account, bytes_held in held.items() if bytes_held > part}
    return above or ({max(held, key=lambda account: held[account])} if held else set())
