"""Entries that were made here recently, for publishing. None is noted until a publisher wants them.

The catalog's lock is held when an entry is noted; taking and looking need no lock.
"""

from __future__ import annotations

import time


class FreshEntries:
    """When a file of each entry was last sealed, by the monotonic clock."""

    def __init__(self) -> None:
        self._is_wanted = False
        self._sealed: dict[int, float] = {}

    def want(self) -> None:
        """Note entries from now on. Each stays noted until it is taken."""
        self._is_wanted = True

    def note(self, entry: int) -> None:
        """Note an entry that was made here, because one of its files was sealed."""
        if self._is_wanted:
            self._sealed[entry] = time.monotonic()

    def note_earlier(self, entry: int) -> None:
        """Note an entry that was made here before a publisher wanted entries."""
        self._sealed.setdefault(entry, time.monotonic())

    def take(self, entry: int) -> None:
        self._sealed.pop(entry, None)

    def all(self) -> dict[int, float]:
        return dict(self._sealed)

    def __len__(self) -> int:
        return len(self._sealed)
