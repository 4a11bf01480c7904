"""Inodes without a name that the kernel has just forgotten.

They are removed together: whoever removes a tree has the kernel forget one file after another, and a transaction for
each would take three times as long in all. It is done when so many have gathered, or before the engine waits. Should
the worker die before that, they are orphans still, which the next one removes.
"""

from __future__ import annotations

import logging

from kcachefs.core import Filesystem
from kcachefs.core.lifetimes import TOGETHER_MAX

log = logging.getLogger(__name__)


class UnusedInodes:
    """Belongs to the thread that reads the device."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        self.waiting: list[int] = []

    def add(self, ino: int) -> None:
        self.waiting.append(ino)
        if len(self.waiting) >= TOGETHER_MAX:
            self.remove()

    def remove(self) -> None:
        """Remove what waits. What fails, as on a full disk, is tried again some seconds later as any orphan is."""
        inos = self.waiting.copy()
        self.waiting.clear()
        try:
            self._fs.let_go(inos)
        except Exception as error:
            log.warning("of %d inodes that are forgotten, not all could be removed yet: %s", len(inos), error)
