"""The kernel as the direct engine reaches it: notifications from their own thread; counts and times of requests."""

from __future__ import annotations

import socket
import threading

from kcachefs.core.kernel import Kernel
from kcachefs.core.request_times import Latency, RequestTimes
from kcachefs.engines.notifier import Notifier
from kcachefs.engines.protocol import Op


class DirectKernel(Kernel):
    """Made before the filesystem, which reports changes to it. The engine counts its requests here."""

    def __init__(self, device: int, relay: socket.socket | None = None) -> None:
        self.notifier = Notifier(device, relay)
        self.counts = [0] * (max(Op) + 1)
        """Requests so far, by opcode."""
        self.times = [RequestTimes() for _ in self.counts]
        """By opcode, how long requests took that the engine's own thread answered. Only that thread counts here."""
        self._deferred_times = [RequestTimes() for _ in self.counts]
        self._lock = threading.Lock()

    def name_gone(self, parent: int, name: bytes, shown: int) -> None:
        self.notifier.entry_gone(parent, name)

    def knows(self, ino: int) -> bool:
        return self.notifier.knows(ino)

    def note_deferred(self, opcode: int, nanoseconds: int) -> None:
        """Count a request that a thread other than the engine's answered. Any thread may call this."""
        with self._lock:
            self._deferred_times[opcode].note(nanoseconds)

    def requests(self) -> dict[str, int]:
        return {_name(code): count for code, count in enumerate(self.counts) if count}

    def latencies(self) -> dict[str, Latency]:
        found = {}
        for code in range(1, len(self.counts)):
            if self.counts[code]:
                both = RequestTimes()
                both.add(self.times[code])
                with self._lock:
                    both.add(self._deferred_times[code])
                found[_name(code)] = both.as_latency()
        return found

    def request_count(self) -> int:
        return sum(self.counts)


def _name(opcode: int) -> str:
    return _NAMES.get(opcode, f"opcode {opcode}")


_NAMES = {op.value: op.name.lower() for op in Op}
