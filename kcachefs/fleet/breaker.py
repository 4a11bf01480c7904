"""The breaker: after a network fault nothing is requested for a while, and for longer after each further fault."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

FIRST_SECONDS = 30.0
LONGEST_SECONDS = 600.0


class Breaker:
    """Closed until a request fails. Safe in any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0
        self._failed_at = -math.inf
        self.why = ""
        """The last failure; empty once a request has succeeded again."""

    @property
    def open_for(self) -> float:
        """For how many more seconds nothing may be requested."""
        return max(0.0, self._until - self._clock())

    def failed(self, why: str) -> bool:
        """Note a failure; returns whether it opened the breaker. A failure while the breaker is open does not count."""
        with self._lock:
            if self.open_for:
                return False
            self._failures += 1
            self._failed_at = self._clock()
            self._until = self._failed_at + min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** min(self._failures - 1, 10))
            self.why = why
            return True

    def succeeded(self, began: float) -> None:
        """Note that a request begun at `began` succeeded. One begun before the last failure proves nothing."""
        with self._lock:
            if began >= self._failed_at:
                self._failures, self._until, self.why = 0, 0.0, ""
