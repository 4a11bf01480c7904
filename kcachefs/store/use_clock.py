"""The clock of the order of use: the host's clock, except that it goes on where it was when that one is set back.

By the host's clock alone, all that was used before it was set back would seem to be used later than now: nothing of it
could be evicted, and whatever is used from then on would go first.
"""

from __future__ import annotations

import time


class UseClock:
    """The time of uses in one store. Any thread."""

    def __init__(self) -> None:
        self._offset = _host_offset()
        """How far it is from the clock that nobody sets."""

    def now(self) -> int:
        """Nanoseconds since 1970, or more where the host's clock was ahead. Never less than before."""
        offset = self._offset = max(self._offset, _host_offset())
        return time.monotonic_ns() + offset

    def go_on_from(self, when: int) -> None:
        """Something was used then, so it is no earlier now."""
        self._offset = max(self.now(), when) - time.monotonic_ns()

    def follow_host(self) -> None:
        """Go back to where the host's clock is: it is right, and nothing was used later than that."""
        self._offset = _host_offset()


def _host_offset() -> int:
    return time.time_ns() - time.monotonic_ns()  # in this order: a pause in between makes it no larger
