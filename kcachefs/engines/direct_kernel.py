"""The kernel as the direct engine reaches it: notifications through a thread of their own, and a count of requests."""

from __future__ import annotations

import socket

from kcachefs.core.kernel import Kernel
from kcachefs.engines.notifier import Notifier
from kcachefs.engines.protocol import Op


class DirectKernel(Kernel):
    """Made before the filesystem, which tells it what changed; the engine counts what it is asked."""

    def __init__(self, device: int, relay: socket.socket | None = None) -> None:
        self.notifier = Notifier(device, relay)
        self.counts = [0] * (max(Op) + 1)
        """Requests so far, by opcode."""

    def name_gone(self, parent: int, name: bytes) -> None:
        self.notifier.entry_gone(parent, name)

    def knows(self, ino: int) -> bool:
        return self.notifier.knows(ino)

    def requests(self) -> dict[str, int]:
        known = {op.value: op.name.lower() for op in Op}
        return {known.get(code, f"opcode {code}"): count for code, count in enumerate(self.counts) if count}

    def request_count(self) -> int:
        return sum(self.counts)
