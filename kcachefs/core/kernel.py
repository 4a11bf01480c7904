"""The kernel as the core sees it: what the core can report to it and ask it. The engine brings the real one.

`name_gone` only queues a notification. `knows` waits for the kernel, which may itself be waiting for a reply: never
call `knows` in the thread that answers requests. Neither is called with a lock held.
"""

from __future__ import annotations

from kcachefs.core.request_times import Latency


class Kernel:
    """A kernel that reports nothing and needs no notifications: for a filesystem that is used in-process."""

    def name_gone(self, parent: int, name: bytes, shown: int) -> None:
        """A name no longer leads where it did: the kernel must look again. Listings show the folder as `shown`."""

    def knows(self, ino: int) -> bool:
        """Whether the kernel holds a reference to an inode that a dead worker may have given it."""
        return True

    def requests(self) -> dict[str, int]:
        """Requests so far, by name."""
        return {}

    def latencies(self) -> dict[str, Latency]:
        """How long requests took so far, by name."""
        return {}

    def request_count(self) -> int:
        """All requests so far."""
        return 0
