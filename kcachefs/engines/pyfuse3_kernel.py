"""The kernel as pyfuse3 reaches it: notifications to it, and the count and times of its requests."""

from __future__ import annotations

import pyfuse3

from kcachefs.core.kernel import Kernel
from kcachefs.core.request_times import Latency, RequestTimes


class Pyfuse3Kernel(Kernel):
    """Sends notifications through libfuse, and keeps count of the requests."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.times: dict[str, RequestTimes] = {}

    def name_gone(self, parent: int, name: bytes, shown: int) -> None:
        # Here the kernel knows inodes by the numbers that listings show. pyfuse3 sends the message from its own thread.
        pyfuse3.invalidate_entry_async(shown, name, ignore_enoent=True)

    def requests(self) -> dict[str, int]:
        return dict(self.counts)

    def latencies(self) -> dict[str, Latency]:
        return {name: times.as_latency() for name, times in list(self.times.items())}

    def request_count(self) -> int:
        return sum(self.counts.values())
