"""A one-line account of a session, from the statistics of the mount before and after it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from kcachefs import config, reports
from kcachefs.daemon import control, registry
from kcachefs.errors import KcachefsError, MountError
from kcachefs.mounts.insight_reports import InsightReports


@dataclass(frozen=True, slots=True)
class Account:
    """Counters of a mount; subtract an earlier account to see what happened since."""

    hits: int = 0
    misses: int = 0
    bytes_served: int = 0
    bytecode_hits: int = 0
    """How many of the hits were packages whose bytecode was cached."""
    bytecode_misses: int = 0
    bytes_saved: int = 0
    """How much less the mount takes on disk than its files hold (core/report.py): the present state, not a counter."""
    seconds_saved: float | None = None
    """How long the entries that were hit had taken to compile, summed over parallel compilers; None if unknown."""
    unknown_saved: int = 0
    """Hits on entries whose compile time is unknown."""

    def __sub__(self, earlier: Account) -> Account:
        return Account(
            max(0, self.hits - earlier.hits),  # somebody may have reset the counters meanwhile
            max(0, self.misses - earlier.misses),
            max(0, self.bytes_served - earlier.bytes_served),
            max(0, self.bytecode_hits - earlier.bytecode_hits),
            max(0, self.bytecode_misses - earlier.bytecode_misses),
            self.bytes_saved,
            *self._spared_since(earlier),
        )

    def _spared_since(self, earlier: Account) -> tuple[float | None, int]:
        unknown = max(0, self.unknown_saved - earlier.unknown_saved)
        if self.seconds_saved is None or earlier.seconds_saved is None:
            return None, unknown
        seconds = max(0.0, self.seconds_saved - earlier.seconds_saved)
        return (None if unknown and not seconds else seconds), unknown

    def __str__(self) -> str:
        lookups = self.hits + self.misses
        rate = f" ({100 * self.hits / lookups:.1f} % hits)" if lookups else ""
        served, saved = config.format_size(self.bytes_served), config.format_size(self.bytes_saved)
        counts = f"{_count(self.hits, 'hit')}, {_count(self.misses, 'miss', 'misses')}"
        return f"{counts}{rate}, {served} served, {saved} saved on disk{self._bytecode()}"

    def _bytecode(self) -> str:
        """How many packages had their bytecode in the mount, which saved compiling it, and how many were compiled."""
        parts = [
            f"of {_count(number, 'package')} {what}"
            for number, what in ((self.bytecode_hits, "found"), (self.bytecode_misses, "compiled"))
            if number
        ]
        return f"; bytecode {', '.join(parts)}" if parts else ""


def read(mount: Path) -> Account:
    """The counters, including everything that this user did until now: from our own daemon, or through the mount."""
    try:
        if registry.read(str(mount)) is not None:
            raw = control.ask(registry.socket_path(str(mount)), "stats", {"settle": True})
        else:
            raw = reports.read(mount, reports.SETTLED)
        found = json.loads(raw)
        total = found["total"]
        saved = int(found["store"]["bytes_saved"])
        python = found["namespaces"].get("python", {"hits": 0, "misses": 0})
        spared, unknown = _spared(mount)
        return Account(
            hits=int(total["hits"]),
            misses=int(total["misses"]),
            bytes_served=int(total["bytes_served"]),
            bytecode_hits=int(python["hits"]),
            bytecode_misses=int(python["misses"]),
            bytes_saved=saved,
            seconds_saved=spared,
            unknown_saved=unknown,
        )
    except (MountError, OSError, ValueError, KeyError, TypeError) as error:
        raise MountError(f"{mount}: its statistics cannot be read ({error})") from None


def _spared(mount: Path) -> tuple[float | None, int]:
    """How many seconds of compiling all runs were spared, and how many of their hits spared an unknown time."""
    try:
        runs = InsightReports.of(mount).runs()
    except (KcachefsError, OSError):
        return None, 0
    return math.fsum(run.seconds_saved for run in runs), sum(run.unknown_saved for run in runs)


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
