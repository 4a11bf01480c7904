"""The clock of the order of use: it follows the host's, but if that is set back, it goes on from where it was.

By the host's clock alone, all uses before it was set back would seem to be later than now: none of those entries could
be evicted, and entries used after that would be evicted first.
"""

from __future__ import annotations

import time


class UseClock:
    """The times of use in one store. Any thread may ask for the time."""

    def __init__(self) -> None:
        self._latest = time.time_ns()
        self._offset = 0
        """How far this clock is ahead of the monotonic clock, while the host's clock is behind."""

    def now(self) -> int:
        """Nanoseconds since 1970, or more if the host's clock was ahead. Each call returns a later time."""
        now = time.time_ns()
        if now <= self._latest:
            now = self._without_host()
        self._latest = now
        return now

    def _without_host(self) -> int:
        monotonic, latest = time.monotonic_ns(), self._latest
        if monotonic + self._offset <= latest:
            self._offset = latest + 1 - monotonic
        return monotonic + self._offset

    def go_on_from(self, when: int) -> None:
        """Something was used at `when`, so the present must be later."""
        self._latest = max(self._latest, when)

    def follow_host(self) -> None:
        """Go back to the host's clock: it is right, and no use is recorded at a later time."""
        self._latest, self._offset = time.time_ns(), 0
