"""Threads that work in the background: requests and other programs go first."""

from __future__ import annotations

import contextlib
import os
import threading

NICENESS = 10
"""Only a little nicer than programs. A thread that hardly ever gets a turn could lose the processor while it holds the
interpreter or the catalog's lock, and every request would wait for it."""


def give_way() -> None:
    """Lower the calling thread's own priority for the processor and the disk, where we may."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
