"""Files that were rewritten: they cannot be evicted, and take their room twice if they were synced.

Usually they are sealed when they have been quiet for a minute. When the quota is exceeded and nothing else can go, that
is too long: everybody would be refused. A user above only their own quota has to wait: once sealed, a file that is open
could lose its name to that quota.
"""

from __future__ import annotations

import contextlib
import time

from kcachefs.core.room import Room
from kcachefs.core.sealing import REST_SECONDS, Sealer


class RewrittenFiles:
    """Seals rewritten files early. For the evictor's thread."""

    def __init__(self, sealer: Sealer, room: Room) -> None:
        self._sealer = sealer
        self._room = room
        self._not_before = 0.0

    def seal(self) -> None:
        """Seal the files that rest, if the disk has room for them until their old bytes are given back.

        Skips a file that a write waits for: the write would unseal it at once, and so would each further write.
        Does not run at every turn: a file that fails would be read again and again. The chore that seals quiet files
        logs why it fails.
        """
        if time.monotonic() < self._not_before:
            return
        with contextlib.suppress(Exception):
            self._sealer.seal_quiet(REST_SECONDS, self._may_seal)
        self._not_before = time.monotonic() + REST_SECONDS

    def _may_seal(self, ino: int, size: int) -> bool:
        return self._room.disk_has_room_for(size) and not self._room.is_awaited(ino)
