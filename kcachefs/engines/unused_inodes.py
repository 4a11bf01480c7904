"""Inodes without a name that the kernel has just forgotten.

They are removed together. When a tree is removed, the kernel forgets one file after another, and a transaction for each
would cost twice as much in all. So inodes are removed once 16 have gathered, or in the next pause. If the worker dies
first, they are still orphans, which the next worker removes.
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
        """Remove the waiting inodes. Any that cannot go yet, as on a full disk, are tried again some seconds later."""
        inos = self.waiting.copy()
        self.waiting.clear()
        try:
            self._fs.remove_unused(inos)
        except Exception as error:
            log.warning("the kernel forgot %d inodes, and not all of them could be removed yet: %s", len(inos), error)
