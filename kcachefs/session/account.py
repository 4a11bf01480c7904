"""What a mount did during a session, in one line: its own statistics before and after."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from kcachefs import config
from kcachefs.daemon import control, registry
from kcachefs.errors import DaemonError, MountError

_STILL_SECONDS = 4.0
"""How long a report must not change: longer than a file rests before it is sealed, and counted."""


@dataclass(frozen=True, slots=True)
class Account:
    """Counters of a mount; subtract an earlier account to see what happened since."""

    hits: int = 0
    misses: int = 0
    bytes_served: int = 0
    bytes_saved: int = 0
    """How much less the whole mount takes on disk than its files hold: the present state, not a counter."""

    def __sub__(self, earlier: Account) -> Account:
        return Account(
            self.hits - earlier.hits,
            self.misses - earlier.misses,
            self.bytes_served - earlier.bytes_served,
            self.bytes_saved,
        )

    def __str__(self) -> str:
        lookups = self.hits + self.misses
        rate = f" ({100 * self.hits / lookups:.1f} % hits)" if lookups else ""
        served, saved = config.format_size(self.bytes_served), config.format_size(self.bytes_saved)
        counts = f"{_count(self.hits, 'hit')}, {_count(self.misses, 'miss', 'misses')}"
        return f"{counts}{rate}, {served} served, {saved} saved on disk"


def read(mount: Path, *, wait: bool = True) -> Account:
    """The counters now, from our own daemon, else from the mount's file, which needs a wait for the last writes."""
    try:
        state = registry.read(str(mount))
        if state is not None:
            raw = control.ask(registry.socket_path(str(mount)), "stats", {"settle": True})
        else:
            raw = _settled(mount / ".kcachefs" / "stats.json", 60.0 if wait else 0.0)
        total = json.loads(raw)["total"]
        saved = max(0, int(total["plain_bytes"]) - int(total["stored_bytes"]))
        return Account(int(total["hits"]), int(total["misses"]), int(total["bytes_served"]), saved)
    except (DaemonError, OSError, ValueError, KeyError, TypeError) as error:
        raise MountError(f"{mount}: its statistics cannot be read ({error})") from None


def _settled(report: Path, seconds: float) -> bytes:
    """The report of somebody else's mount, once it stands still: we may not ask its daemon to count at once."""
    before = report.read_bytes()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(_STILL_SECONDS)
        now = report.read_bytes()
        if now == before:
            break
        before = now
    return before


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
