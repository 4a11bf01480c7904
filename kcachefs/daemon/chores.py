"""Chores: work that a worker repeats beside serving requests, each chore in a thread of its own.

They are threads because a chore may wait for a disk, a lock or the kernel, and must not hold up the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kcachefs.errors import KcachefsError

log = logging.getLogger(__name__)

FAILED_PAUSE = 1.0
"""The shortest wait after a failure."""


class Chores:
    """The threads, and what stops them."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def every(self, pause: float, what: str, work: Callable[[], object]) -> None:
        """Do `work` every `pause` seconds."""

        def turn() -> float:
            work()
            return pause

        self.repeat(pause, what, turn)

    def repeat(self, pause: float, what: str, turn: Callable[[], float]) -> None:
        """Call `turn` after `pause` seconds, and then each time after as many as it returned. A failure is logged."""
        thread = threading.Thread(target=self._work, args=(pause, what, turn), name=what, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Begin no more turns, and return when the current ones are over."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _work(self, pause: float, what: str, turn: Callable[[], float]) -> None:
        next_pause, complaint = pause, ""
        while not self._stopping.wait(next_pause):
            try:
                next_pause = turn()
                complaint = ""
            except Exception as error:
                if complaint != (complaint := repr(error)):  # a failure that stays the same is logged once
                    known = isinstance(error, KcachefsError | OSError)
                    log.error("%s failed and will be tried again: %s", what, error, exc_info=not known)
                next_pause = max(pause, FAILED_PAUSE)


def growth_of(counter: Callable[[], int]) -> Callable[[], int]:
    """A function that returns by how much the counter has grown since it was called last."""
    before = 0

    def growth() -> int:
        nonlocal before
        last, before = before, counter()
        return before - last

    return growth
