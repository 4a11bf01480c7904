"""Room: how far the store is over its limits, and whether writes have to wait or fail.

Between two turns of the evictor the total can overshoot the quota by what is written in that time. So while the quota
is exceeded, or the disk has less than `min_free` left, each write waits for the evictor, off the thread that answers
requests. It waits long enough even for a slow machine, and is refused only when the evictor is certain that nothing can
be evicted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable

from kcachefs import config
from kcachefs.core.limits import Limits
from kcachefs.core.namespaces import Namespaces
from kcachefs.errors import or_gone
from kcachefs.store import Store

log = logging.getLogger(__name__)

WAIT_SECONDS = 0.05
WAIT_WHEN_FULL_SECONDS = 30.0
"""How long a write waits for room at most."""
HARDLY_FREE = 0.5
"""When less than this part of `min_free` is left, the disk is nearly full: the evictor then frees space before it seals
more files, and seals no rewritten ones. The rest is for names and the journal."""

ENOUGH_FREE = 1.1
"""A shortage is over at this many times `min_free`: eviction stops near that, and each turn would log a change."""

FREE_PAGES_PART = 8
"""Free pages of the catalog count up to this part of the quota. Evicting cannot shrink the catalog's file: if they all
counted, a quota near the size of that file would evict every entry and still be exceeded."""

UNSEALED_LEAST, UNSEALED_PART = 32 << 20, 16
"""Sealing hurries once unsealed files take this many bytes, or this fraction of a limit, whichever is more."""


class Room:
    """What is left of one filesystem's limits. Any thread."""

    def __init__(self, store: Store, namespaces: Namespaces, limits: Limits) -> None:
        self._store = store
        self._namespaces = namespaces
        self.limits = limits
        self._is_short = False
        self.has_room = threading.Event()
        self.has_room.set()
        """Cleared while the quota is exceeded, or less than `min_free` is left: writes then wait for eviction."""
        self.is_full = False
        """The quota is exceeded and nothing can be evicted: writing has to fail."""
        self.exhausted: frozenset[int] = frozenset()
        """Accounts above their own quota, with nothing left that can be evicted."""
        self.above_fair_share: frozenset[int] = frozenset()
        """Accounts that held more than an equal part at the evictor's last turn, if the store was over its limit."""
        self.barred: frozenset[int] = frozenset()
        """Accounts above an equal part of a full store, with nothing left that can be evicted."""
        self.waiting: list[tuple[int, int]] = []
        """The file and its owner, for every write that waits for room."""

    # --- what happened ------------------------------------------------------------------------------------------------

    def set_limits(self, limits: Limits) -> None:
        """Apply these limits from now on."""
        self.limits = limits

    def note_full(self, is_full: bool) -> None:
        """Note whether the evictor is certain that the quota is exceeded and nothing can be evicted."""
        self.is_full = is_full

    def note_exhausted(self, accounts: Iterable[int]) -> None:
        """These accounts are above their own quota, and have nothing left that can be evicted."""
        self.exhausted = frozenset(accounts)

    def note_above_fair_share(self, accounts: Iterable[int]) -> None:
        """These accounts hold more than an equal part of a store that is over its limit."""
        self.above_fair_share = frozenset(accounts)

    def bar(self, accounts: Iterable[int]) -> None:
        """Bar these accounts, and no others, from writing: they hold more than an equal part of a full store."""
        self.barred = frozenset(accounts)

    # --- what is left -------------------------------------------------------------------------------------------------

    def used_bytes(self) -> int:
        """Stored bytes on disk that count for the quota: all of them, but not all free pages of the catalog."""
        free = self._store.catalog.statistics()["free_bytes"]
        return self._store.used_bytes() - max(0, free - self.limits.max_size // FREE_PAGES_PART)

    def excess(self, mark: float) -> int:
        """Bytes by which the strictest limit on size is exceeded at that mark; negative below it."""
        over = self.used_bytes() - int(self.limits.max_size * mark)
        return max(over, int(self.limits.min_free * (2.0 - mark)) - self._free_bytes())

    def excess_files(self, mark: float) -> int:
        if not self.limits.max_files:
            return 0
        files = sum(record.files for _, _, record in self._namespaces.rows())
        return files - int(self.limits.max_files * mark)

    def below_ceilings(self) -> dict[str, int]:
        """Bytes that are left below each ceiling, by namespace."""
        rows = self._namespaces.rows() if self.limits.ceilings else []
        return {
            name: ceiling - max((record.stored for _, label, record in rows if label == name), default=0)
            for name, ceiling in self.limits.ceilings.items()
        }

    def check(self) -> bool:
        """Check whether there is room; if there is none, writes wait from now on."""
        self._note_shortage()
        has_room = self.excess(1.0) <= 0
        if has_room:
            self.has_room.set()
        else:
            self.has_room.clear()
        return has_room

    def _note_shortage(self) -> None:
        """Log when the disk has less free space than it should keep, and when it has enough again."""
        free, wanted = self._free_bytes(), self.limits.min_free
        if free < wanted and not self._is_short:
            self._is_short = True
            log.warning(
                "%s: its disk has %s free, less than --min-free %s: new entries replace old ones, or writes fail; "
                "free some space or lower --min-free",
                self._store.path,
                config.format_size(free),
                config.format_size(wanted),
            )
        elif self._is_short and free > wanted * ENOUGH_FREE:
            self._is_short = False
            log.info("%s: its disk has %s free again", self._store.path, config.format_size(free))

    @property
    def patience_seconds(self) -> float:
        """The longest that a write waits for room."""
        return WAIT_WHEN_FULL_SECONDS

    def wait(self, ino: int, uid: int, until: float) -> None:
        """Have a write to a user's file wait until there is room, until nothing can be evicted, or until `until`."""
        one = ino, uid
        self.waiting.append(one)
        try:
            while not self.has_room.wait(WAIT_SECONDS) and not self.is_full and time.monotonic() < until:
                pass
        finally:
            self.waiting.remove(one)

    def is_awaited(self, ino: int) -> bool:
        """Whether a write to that file waits."""
        return any(ino == one for one, _ in list(self.waiting))

    def wait_long(self) -> bool:
        """Wait until there is room; returns whether there is."""
        return self.has_room.is_set() or (not self.is_full and self.has_room.wait(WAIT_WHEN_FULL_SECONDS))

    def holds_much_unsealed(self) -> bool:
        """Whether small files that wait to be compressed take so much of a limit that entries would be evicted."""
        limits = self.limits
        least = min(limits.max_size, limits.max_size_per_uid or limits.max_size)
        return self._store.slots.allocated_bytes() > max(UNSEALED_LEAST, least // UNSEALED_PART)

    def disk_has_room_for(self, size: int) -> bool:
        """Whether the disk has room for this many more bytes without being nearly full."""
        return self._free_bytes() - size >= self.limits.min_free * HARDLY_FREE

    def is_disk_nearly_full(self) -> bool:
        return self._free_bytes() < self.limits.min_free * HARDLY_FREE

    def _free_bytes(self) -> int:
        try:
            disk = os.statvfs(self._store.path)
        except FileNotFoundError as error:
            raise or_gone(error, self._store.path) from None
        return disk.f_bavail * disk.f_frsize
