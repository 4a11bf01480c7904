"""The breaker: after a fault of the network nothing is asked for a while, each time for longer."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

FIRST_SECONDS = 30.0
LONGEST_SECONDS = 600.0


class Breaker:
    """Closed, until something fails. Any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0
        self._failed_at = -math.inf
        self.why = ""
        """What failed last; empty once something went well again."""

    @property
    def open_for(self) -> float:
        """For how many more seconds nothing is to be asked."""
        return max(0.0, self._until - self._clock())

    def failed(self, why: str) -> bool:
        """Something failed; returns whether that opened the breaker. A failure while it is open does not count."""
        with self._lock:
            if self.open_for:
                return False
            self._failures += 1
            self._failed_at = self._clock()
            self._until = self._failed_at + min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** min(self._failures - 1, 10))
            self.why = why
            return True

    def succeeded(self, began: float) -> None:
        """Something that began at that time went well. If that was before the last failure, it proves nothing."""
        with self._lock:
            if began >= self._failed_at:
                self._failures, self._until, self.why = 0, 0.0, ""
