"""Claims: of many nodes that compiled the same, about one publishes it.

A claim is an object that says who is publishing something now. Whoever finds one waits, and looks into the index again
before it tries the next time. A claim whose owner died is taken over once it has been seen unchanged for a while by
this machine's own timer: no two clocks are ever compared. Nothing breaks when two nodes win: the same entries are then
in two packs. So stores that ignore conditional writes are good enough; there, all write and the last one stands.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from kcachefs.errors import FleetMissing
from kcachefs.fleet.bucket_layout import Layout
from kcachefs.fleet.object_storage import Got, Storage

CLAIM_SECONDS = 60.0
"""How long a claim is respected after this process saw it first."""
SETTLE_SECONDS = 1.0
"""How long to wait before reading a claim back, for those who wrote at the same moment."""
_CLAIM_MAX = 4096


class Claims:
    """The claims of one publisher."""

    def __init__(
        self,
        storage: Storage,
        layout: Layout,
        *,
        patience: float = CLAIM_SECONDS,
        settle: float = SETTLE_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._storage = storage
        self._layout = layout
        self._patience = patience
        self._settle = settle
        self._sleep = sleep
        self._seen: dict[str, tuple[bytes, float]] = {}

    def take(self, name: str) -> float | None:
        """Claim something. The time by the store's clock if it is ours now, None if somebody else has it.

        A claim that is taken over gets a successor, since writers may lack the right to replace objects.
        """
        generation = 0
        while (other := self._read(self._layout.claim(f"{name}.{generation}"))) is not None:
            if not self._is_stale(f"{name}.{generation}", other.content):
                return None
            generation += 1
        key, mine = self._layout.claim(f"{name}.{generation}"), secrets.token_hex(16).encode()
        if not self._storage.put(key, mine, if_absent=True):
            return None
        self._sleep(self._settle)
        stands = self._read(key)
        return stands.modified if stands is not None and stands.content == mine else None

    def now(self) -> float:
        """The time by the store's clock, in seconds since 1970."""
        key = self._layout.claim(f"clock-{secrets.token_hex(8)}")
        self._storage.put(key, b"")
        return self._storage.head(key).modified

    def _read(self, key: str) -> Got | None:
        try:
            return self._storage.get(key, limit=_CLAIM_MAX)
        except FleetMissing:
            return None

    def _is_stale(self, key: str, content: bytes) -> bool:
        seen, since = self._seen.get(key, (b"", 0.0))
        if seen != content:
            self._seen[key] = (content, time.monotonic())
            return self._patience <= 0
        return time.monotonic() - since >= self._patience
