"""Slows a supervisor down when its workers or standbys keep dying."""

from __future__ import annotations

import logging
import signal
import time

log = logging.getLogger("kcachefs.daemon.supervisor")

CRASHES_MAX = 5
"""After this many workers in a row have died before their first heartbeat, we pause before starting another."""
CLOSES_MAX = 3
"""After this many workers in a row died, no other is started just to write everything to disk and exit."""
BUS_ERRORS_MAX = 2
"""After this many workers in a row were killed by SIGBUS, the log says that the catalog is damaged."""
NEXT_STANDBY_SECONDS = 5.0
"""How long to wait before starting another standby after one has ended by itself; twice as long each time."""
NEXT_STANDBY_SECONDS_MAX = 600.0


class CrashLoop:
    """Counts the deaths of a mount's workers, and slows down starting further ones."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._crashes = self._bus_errors = 0

    @property
    def cannot_close(self) -> bool:
        """Whether another worker would hardly fare better than the last ones, if only closing the store is left."""
        return self._crashes >= CLOSES_MAX

    def note_heartbeat(self) -> None:
        self._crashes = 0

    def note_death(self, code: int) -> None:
        """Count a death, and wait if the next worker would hardly live longer than the last ones."""
        self._crashes += 1
        self._bus_errors = self._bus_errors + 1 if code == -signal.SIGBUS else 0
        if self._bus_errors >= BUS_ERRORS_MAX:
            log.error("%s: its catalog cannot be read (SIGBUS); unmount and run: kcachefs fsck --repair", self._store)
        if self._crashes >= CRASHES_MAX:
            pause = min(10.0, 0.1 * 2 ** (self._crashes - CRASHES_MAX))
            log.error("%d workers in a row died before serving: waiting %.1f s", self._crashes, pause)
            time.sleep(pause)


class StandbyPause:
    """When the next standby may be started: later with each one that ended before it was needed."""

    def __init__(self) -> None:
        self._seconds = NEXT_STANDBY_SECONDS
        self._due = 0.0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._due

    def note_end(self, reason: str) -> None:
        log.error("the standby ended (%s); another is started in %.0f s", reason, self._seconds)
        self._due = time.monotonic() + self._seconds
        self._seconds = min(NEXT_STANDBY_SECONDS_MAX, 2 * self._seconds)
