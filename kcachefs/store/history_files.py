"""The files in `history/`: runs, start profiles, events, tombstones, samples of three lengths. All bounded.

A store is complete without these files, and an older store has none.
"""

from __future__ import annotations

from pathlib import Path

from kcachefs.store.ring_file import RingFile

FOLDER = "history"

RUNS = 2_000
RUN_SIZE = 320
PROFILES = 128
PROFILE_SIZE = 8_192
EVENTS = 10_000
EVENT_SIZE = 320
TOMBSTONES = 65_536
TOMBSTONE_SIZE = 44
SAMPLE_SIZE = 404
LEVELS = ((10, 2_160), (300, 4_032), (3_600, 17_520))
"""The length of a sample in seconds, and how many samples are kept: 6 hours, 14 days and 2 years of them."""


class HistoryFiles:
    """The rings of one store, each opened or made only when it is needed."""

    def __init__(self, store: Path) -> None:
        folder = store / FOLDER
        self.runs = RingFile(folder / "runs", RUNS, RUN_SIZE)
        self.profiles = RingFile(folder / "profiles", PROFILES, PROFILE_SIZE)
        self.events = RingFile(folder / "events", EVENTS, EVENT_SIZE)
        self.tombstones = RingFile(folder / "tombstones", TOMBSTONES, TOMBSTONE_SIZE)
        self.samples = {
            seconds: RingFile(folder / f"samples.{seconds}", slots, SAMPLE_SIZE) for seconds, slots in LEVELS
        }

    def rings(self) -> tuple[RingFile, ...]:
        return self.runs, self.profiles, self.events, self.tombstones, *self.samples.values()

    def allocated_bytes(self) -> int:
        """What the ring files take on the disk."""
        return sum(ring.allocated for ring in self.rings())

    def close(self) -> None:
        for ring in self.rings():
            ring.close()
