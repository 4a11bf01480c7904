"""What a part of a run works with: a folder, the rounds there is time for, and where its figures go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.results import Results

SUBJECTS = ["ext4", "tmpfs", "bindfs", "mergerfs", "rclone", "gocryptfs", "memory", "direct", "pyfuse3"]


@dataclass
class Run:
    """The run that is passed from part to part."""

    results: Results
    base: Path
    quick: bool
    say: Callable[[str], None]
    """Shows what is being measured now."""
    part: str = ""
    budget: float = 60.0
    """About how many seconds the part may take: a slow machine gets fewer rounds, not a longer run."""
    started: float = field(default_factory=time.monotonic)

    def begin(self, part: str, budget: float) -> None:
        self.part, self.budget, self.started = part, budget, time.monotonic()

    def add(
        self,
        what: str,
        unit: str,
        values: dict[str, list[float]],
        *,
        against: str = "ext4",
        better: str = "less",
        reference: list[float] | None = None,
    ) -> None:
        self.results.add(self.part, what, unit, values, against=against, better=better, reference=reference)

    def rounds(self, most: int, share: float = 1.0, doing: str = "") -> Iterator[int]:
        """At least one and at most `most` rounds: as many as fit into this share of the part's time."""
        begin = time.monotonic()
        for number in range(most):
            turn = time.monotonic()
            self.say(f"{doing or self.part}, round {number + 1} of {most}")
            yield number
            now = time.monotonic()
            if now - begin + (now - turn) > self.budget * share:
                return

    def place(self, name: str) -> Path:
        """A new folder for the part."""
        path = self.base / self.part / name
        path.mkdir(parents=True)
        return path

    def leave_out(self, what: str, why: str) -> None:
        self.results.left_out[f"{self.part}: {what}"] = why
