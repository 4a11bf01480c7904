"""Claims: of many nodes that compiled the same entries, about one publishes them.

A claim is an object that says who is publishing something now. A node that finds one waits, and checks the index
again before its next try. A claim whose owner died is taken over once it is old by the store's own clock, or has
been seen unchanged for as long by this machine's timer: clocks of two machines are never compared. Nothing breaks when
two nodes win: the same entries are then in two packs. So stores that ignore conditional writes are good enough; there,
all nodes write and the last write wins.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kcachefs.bounded import BoundedDict
from kcachefs.errors import FleetError, FleetMissing, PackError
from kcachefs.fleet.bucket_layout import Layout
from kcachefs.fleet.object_storage import PATIENT, Got, Patience, Storage

CLAIM_SECONDS = 60.0
"""How long a claim is respected."""
SETTLE_SECONDS = 1.0
"""How long to wait before reading a claim back, in case others wrote at the same moment."""
_CLAIM_MAX = 4096
_REMEMBERED = 4096
_HASTY = Patience(first_byte=2.0, overall=2.0)
"""For requests after a failure: the bucket may not answer at all."""


class Claims:
    """The claims of one publisher."""

    def __init__(
        self,
        storage: Storage,
        layout: Layout,
        *,
        patience: float = CLAIM_SECONDS,
        settle: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._storage = storage
        self._layout = layout
        self._patience = patience
        self._settle = SETTLE_SECONDS if settle is None else settle
        self._sleep = sleep
        self._seen: BoundedDict[str, tuple[bytes | None, float]] = BoundedDict(_REMEMBERED)
        self._mine: BoundedDict[str, tuple[str, bytes]] = BoundedDict(_REMEMBERED)
        self._ahead: float | None = None

    @contextmanager
    def taken(self, name: str) -> Iterator[float | None]:
        """`take` a claim. If the body of the context fails, the claim is given back, so that nobody waits for it."""
        try:
            yield self.take(name)
        except BaseException:
            self._give_back(name)
            raise

    def take(self, name: str) -> float | None:
        """Claim `name`. Returns the time by the store's clock if the claim is ours now, None if somebody else has it.

        Taking over a claim writes a successor beside it, since writers may lack the right to replace objects.
        """
        generation = 0
        while (other := self._read(self._layout.claim(f"{name}.{generation}"))) is not None:
            if not self._is_stale(f"{name}.{generation}", other):
                return None
            generation += 1
        key, mine = self._layout.claim(f"{name}.{generation}"), secrets.token_hex(16).encode()
        self._mine[name] = key, mine
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

    def _read(self, key: str, patience: Patience = PATIENT) -> Got | None:
        try:
            try:
                return self._storage.get(key, limit=_CLAIM_MAX, patience=patience)
            except PackError:  # too large to be one of ours, but it counts all the same, and expires
                return Got(b"", self._storage.head(key).modified)
        except FleetMissing:
            return None

    def _give_back(self, name: str) -> None:
        """Remove our claim, where publishers may delete; elsewhere it expires."""
        key, mine = self._mine.get(name, ("", b""))
        with contextlib.suppress(FleetError):
            if key and (stands := self._read(key, _HASTY)) is not None and stands.content == mine:
                self._storage.delete([key])

    def _is_stale(self, key: str, claim: Got) -> bool:
        seen, since = self._seen.get(key, (None, 0.0))
        if seen != claim.content:
            since = time.monotonic()
            self._seen[key] = claim.content, since
        if time.monotonic() - since >= self._patience:
            return True
        # A command that has just started has not watched the claim for long, so the store's clock counts too.
        return self._store_now() - claim.modified >= self._patience

    def _store_now(self) -> float:
        """The time by the store's clock, which is asked once. It may lag after a slow answer, but is never ahead."""
        if self._ahead is None:
            self._ahead = self.now() - time.monotonic()
        return time.monotonic() + self._ahead
