"""Idle work: makes the store smaller while nobody needs the machine, in a thread of low priority.

After a silence, space that is kept for new files goes back to the disk. Objects that have rested are compressed once
more (`store/repacking.py`), in short steps. Before each step the thread checks that no requests come in, that the
limits of the store leave room for a second copy of the data at hand, and that others leave half of the processors idle:
half of the machine's, and half of any set or quota that this process is limited to. With a quota below one processor
there is no idle work at all. If a check fails, the thread waits; a step that was begun is finished.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from kcachefs import background
from kcachefs.core import Filesystem
from kcachefs.core.user_eviction import HIGH_WATER
from kcachefs.errors import KcachefsError
from kcachefs.free_processors import Allowance, FreeProcessors
from kcachefs.store.repacking import BATCH

log = logging.getLogger(__name__)

SILENCE_SECONDS = 0.5
"""How long it must have been since the last request."""
LOOK_PAUSE = 1.0
"""How often to look for something to do."""
LONGEST_PAUSE = 600.0
"""How long to wait at most before repacking is tried again after it failed."""
STEP_PAUSE = 0.05
"""How often to check whether to go on, once a check has failed."""
ROOM_SECONDS = 30.0
"""How long it must have been since the last request before space that is kept for new files is given back."""


class IdleWork:
    """The thread and what it does. `requests` says how many requests were answered so far."""

    def __init__(self, fs: Filesystem, requests: Callable[[], int]) -> None:
        self._fs = fs
        self._requests = requests
        self._processors = FreeProcessors()
        self._seen = -1
        self._silent_since = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kcachefs-idle", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish the step at hand, and return when the thread has ended. Call this before the store is closed."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def is_due(self) -> bool:
        """Whether nothing else needs the machine now, and the store has room for a second copy."""
        if self._silence() < SILENCE_SECONDS or not is_idle(self._processors.look()):
            return False
        return self._room() > 2 * BATCH

    def _room(self) -> int:
        """How many bytes the store may still take."""
        return -self._fs.room.excess(HIGH_WATER)

    def _silence(self) -> float:
        """How many seconds ago the last request came."""
        answered, now = self._requests(), time.monotonic()
        if answered != self._seen:
            self._seen, self._silent_since = answered, now
        return now - self._silent_since

    def _work(self) -> None:
        background.give_way()
        complained, pause, next_try = False, LOOK_PAUSE, 0.0
        while not self._stopping.wait(LOOK_PAUSE):
            try:
                self._give_room()
                if time.monotonic() >= next_try and self.is_due():
                    self._repack()
                    complained, pause = False, LOOK_PAUSE
            except Exception as error:  # tried again after longer and longer pauses: it may fail after much work
                if not complained:
                    log.error("idle work failed: %s", error, exc_info=not isinstance(error, KcachefsError | OSError))
                complained, pause = True, min(2 * pause, LONGEST_PAUSE)
                next_try = time.monotonic() + pause

    def _give_room(self) -> None:
        """After a silence, give back space that is kept for new files; on a disk that fills up, keep a reserve."""
        self._fs.store.keep_reserve()
        if self._silence() >= ROOM_SECONDS:
            self._fs.store.rest()

    def _repack(self) -> None:
        with contextlib.closing(self._fs.store.repack(room=self._room)) as steps:
            for _ in steps:
                self._give_room()
                while not self.is_due():
                    if self._room() <= 2 * BATCH or self._stopping.wait(STEP_PAUSE):
                        return
                    self._give_room()
                if self._stopping.is_set():
                    return


def is_idle(allowances: list[Allowance]) -> bool:
    """Whether a thread of ours would take nothing from others, because they want less than half of the processors."""
    return all(one.processors >= 1 and one.free * 2 > one.processors for one in allowances)
