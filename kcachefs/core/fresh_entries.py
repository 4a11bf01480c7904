"""Entries that were made here recently, for publishing. Nothing is kept until somebody wants to know.

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
        """From now on entries are noted, until they are taken."""
        self._is_wanted = True

    def note(self, entry: int) -> None:
        """A file of an entry that was made here was sealed."""
        if self._is_wanted:
            self._sealed[entry] = time.monotonic()

    def note_earlier(self, entry: int) -> None:
        """An entry that was made here before anybody wanted to know."""
        self._sealed.setdefault(entry, time.monotonic())

    def take(self, entry: int) -> None:
        self._sealed.pop(entry, None)

    def all(self) -> dict[int, float]:
        return dict(self._sealed)

    def __len__(self) -> int:
        return len(self._sealed)
