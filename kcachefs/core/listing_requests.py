"""The requests about whole folders: what they contain, and who lists them.

Called by the engine's thread only. Errors carry an errno.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from kcachefs.core.caller import Caller
from kcachefs.core.parts import Parts
from kcachefs.core.policies.policy import Policy
from kcachefs.core.report_folder import ReportFolder
from kcachefs.core.tree import DOTDOT, Row
from kcachefs.errors import FsError
from kcachefs.store.inode_numbers import GROUP_BASE, REPORT_INO, ROOT_INO, VIRTUAL_BASE
from kcachefs.store.records import Inode


class ListingRequests:
    """The requests of an engine about whole folders."""

    def __init__(self, parts: Parts, policy: Policy, report: ReportFolder) -> None:
        self.policy = policy
        self.report = report
        self.nodes = parts.nodes
        self.lists_afresh = policy.lists_afresh
        """Whether a listing depends on more than its folder, so that the kernel must not keep it."""
        numbers = policy.numbers
        self.hide_number: Callable[[int], int] | None = numbers.hide if numbers is not None else None
        """Returns the number to show for an inode; None: inodes are shown by their own numbers."""
        self.real_number: Callable[[int], int] | None = numbers.real if numbers is not None else None
        """Returns the inode for which a number is shown."""
        self._uses = parts.uses
        self._leaving = parts.lifetimes.leaving
        self._kept_listings = parts.kept_listings
        self._shows_kept = policy.allows_kept_listings

    def listing(self, ino: int, cookie: int, limit: int) -> list[Row]:
        """At most `limit` names after `cookie`; 0 starts from the top."""
        if ino == REPORT_INO:
            return self.report.listing(cookie)
        rows = self.policy.listing(ino, cookie, limit)
        return [row for row in rows if row[0] <= DOTDOT] if self._leaving and self._is_leaving(ino) else rows

    def kept_listing(self, ino: int, cookie: int, size: int) -> bytes | None:
        """A part of a folder's listing in the kernel's layout, in at most `size` bytes; None if none was kept."""
        if not self._shows_kept or ino == ROOT_INO or ino >= VIRTUAL_BASE or (self._leaving and self._is_leaving(ino)):
            return None
        return self._kept_listings.part(ino, cookie, size)

    def _is_leaving(self, folder: int) -> bool:
        """Whether a folder, or the entry that contains it, is being removed: nobody may see it half gone."""
        real = folder if folder < VIRTUAL_BASE else self.policy.real_inode(folder)
        if real is None:
            return False
        with contextlib.suppress(FsError):
            return real in self._leaving or self.nodes.get(real).entry in self._leaving
        return True

    def note_listing(self, caller: Caller, ino: int) -> None:
        """Note that the caller lists a folder: when they then look at its contents, that does not count as use."""
        if ino < VIRTUAL_BASE:
            self._uses.list_folder(ino, self.nodes.get(ino).entry, caller)

    def is_listed_whole(self, ino: int) -> bool:
        """Whether a listing may give the kernel this inode's attributes, with which it trusts the name for a while."""
        if ino >= VIRTUAL_BASE or not self.policy.lists_attributes or not self.nodes.exists(ino):
            return False
        return not _is_heartbeat(ino, self.nodes.get(ino))

    def hold_all(self, inos: Iterable[int]) -> None:
        """Note that a listing gives the kernel all these inodes, so that it holds one more reference to each."""
        self.nodes.hold_all(ino for ino in inos if ino < VIRTUAL_BASE)

    def prefetch(self, inos: Iterable[int]) -> None:
        """Read all these inodes at once, because they are about to be asked for."""
        self.nodes.prefetch(ino for ino in inos if ino < VIRTUAL_BASE)


def _is_heartbeat(ino: int, node: Inode) -> bool:
    """Whether looking up this inode's name is a use of its entry."""
    entry = node.entry
    return entry != 0 and (entry == ino or entry >= GROUP_BASE)
