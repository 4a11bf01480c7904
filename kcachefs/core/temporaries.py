"""Temporary names: files and folders that are being written and do not have their final names yet.

Each is in the catalog with the process that writes it, so that whatever a dead process left can be reaped.
"""

from __future__ import annotations

import os
import time

from kcachefs.core.processes import process_of
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.records import number_of, pack_pair, temporary_key, unpack_pair

_KNOWN_NS = 1_000_000_000
"""How long a thread's process is remembered: a thread that makes one file usually makes many."""


class Temporaries:
    """The inodes under temporary names, which are few at any time."""

    def __init__(self, store: Store) -> None:
        self._catalog = store.catalog
        self.inodes = set(map(number_of, store.catalog.keys(b"w")))
        self._latest = (0, 0, 0)
        """The thread that was looked up last, its process, and when that was."""

    def __contains__(self, ino: int) -> bool:
        return ino in self.inodes

    def add(self, txn: Transaction, ino: int, pid: int) -> None:
        """A process begins to write something under a temporary name."""
        txn.undo(lambda: self.inodes.discard(ino))
        self.inodes.add(ino)
        now = max(0, time.time_ns())  # the record has no room for a time before 1970
        thread, process, since = self._latest
        if thread != pid or not 0 <= now - since < _KNOWN_NS:
            process = pid if not pid or _is_process(pid) else process_of(pid)
            self._latest = pid, process, now
        txn.put(temporary_key(ino), pack_pair(now, process))

    def remove(self, txn: Transaction, ino: int) -> None:
        """An inode has its final name, or none: there is nothing to reap."""
        if ino in self.inodes:
            txn.undo(lambda: self.inodes.add(ino))
            self.inodes.discard(ino)
            txn.delete(temporary_key(ino))

    def writer_of(self, ino: int) -> tuple[int, int] | None:
        """When a process began to write an inode, in nanoseconds, and which (0: not visible here); None for others."""
        raw = self._catalog.get(temporary_key(ino))
        return unpack_pair(raw) if raw is not None else None


def _is_process(pid: int) -> bool:
    """Whether a number is that of a process and not of one of its threads; cheaper than `process_of`."""
    try:
        os.close(os.pidfd_open(pid))
    except OSError:
        return False
    return True
