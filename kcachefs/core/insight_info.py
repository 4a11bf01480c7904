"""What a mount reports of its past: how entries were made, runs, tombstones, events, history. Needs no filesystem.

Times are seconds since 1970, durations are seconds. None means that nobody knows; it never means zero.
"""

from __future__ import annotations

from typing import TypeGuard

import msgspec
from blake3 import blake3

from kcachefs.core.entry_info import EntryInfo

BASES = ("", "span", "artefact", "part")
"""Where a cost comes from: unknown; the time from the making of the entry's folder to its last file; the artefact; the
artefact, less what other entries account for."""

LONGEST_SECONDS = 6 * 3600
"""Anything that seems to have taken longer shows that the clock was set, not what it cost."""


def is_cost(seconds: float | None) -> TypeGuard[float]:
    """Whether an artefact may have taken that long to make."""
    return seconds is not None and 0 < seconds <= LONGEST_SECONDS


EVICTION_REASONS = ("quota", "user quota", "ceiling", "evicted", "pruned", "damaged", "power cut")
"""Why an entry went. The first three mean that a limit was too small; the next two that somebody asked for it."""

EVENTS = ("evicted", "damaged", "failover", "reloaded", "rewritten", "reset")
"""What a mount writes down when it happens."""


def path_hash(path: str) -> bytes:
    """What a tombstone remembers of an entry's path, as `kcachefs ls` shows the path."""
    return blake3(path.encode()).digest(16)


class MadeEntry(EntryInfo, kw_only=True, frozen=True):
    """An entry, and how it was made."""

    began: float | None = None
    """When its folder was made, or its first file."""
    ended: float | None = None
    """When its last file was written."""
    run: int = 0
    """The run that made it; 0 if nobody knows."""
    cost: float | None = None
    """How long it took to make."""
    basis: str = ""
    """One of `BASES`: where `cost` comes from."""
    rewritten: float | None = None
    """When another run last wrote into it."""
    rewriter: int = 0
    """That run."""
    remade: bool = False
    """It had been here before, and was evicted to make room."""


class Artifact(msgspec.Struct, kw_only=True, frozen=True):
    """A file of an entry."""

    entry: int
    file: str
    """Its path in the entry's folder; of a group of files, its name."""
    size: int
    modified: float
    content: bytes | None = None
    """Its bytes; None if it is larger than was asked for, or damaged."""


class Artifacts(msgspec.Struct, kw_only=True, frozen=True):
    """Files of entries, and which entries are left to ask for."""

    found: list[Artifact]
    rest: list[int] = []
    """Entries that did not fit into this reply."""


class RunInfo(msgspec.Struct, kw_only=True, frozen=True):
    """A run: the oldest ancestor process that uses the mount, with all processes below it."""

    run: int
    """Its number; later runs have higher ones."""
    pid: int
    uid: int
    started: float
    """When the process began."""
    last_used: float
    argv: str
    """Its command line, cut off after 200 bytes; empty for a reader who may not see it."""
    hits: int
    misses: int
    bytes_served: int
    """Plain bytes of the entries that it hit."""
    seconds_compiled: float
    """The cost of the entries that it made, as far as it is known."""
    seconds_saved: float
    """The cost of the entries that it hit, as far as it is known; a graph's kernels count with the graph only."""
    unknown_compiled: int
    """Entries that it made whose cost nobody knows, and those of others that it wrote again."""
    unknown_saved: int
    """Hits on entries whose cost nobody knows."""


class Tombstone(msgspec.Struct, kw_only=True, frozen=True):
    """An entry that was here and went."""

    path_hash: bytes
    """`path_hash` of its path."""
    when: float
    why: str
    """One of `EVICTION_REASONS`."""
    uid: int
    """Who had made it."""


class Event(msgspec.Struct, kw_only=True, frozen=True):
    """Something that happened to a mount."""

    number: int
    when: float
    kind: str
    """One of `EVENTS`."""
    uid: int
    """Whose entry it concerns; 0 if none."""
    path: str
    """The entry's path; empty if it concerns none."""
    detail: str


class SampleRow(msgspec.Struct, kw_only=True, frozen=True):
    """What one user did in one namespace during a sample."""

    namespace: str
    uid: int
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    remade: int = 0
    """Entries compiled again after they had been evicted to make room."""
    bytes_served: int = 0
    seconds_compiled: float = 0.0
    seconds_saved: float = 0.0


class Sample(msgspec.Struct, kw_only=True, frozen=True):
    """What happened during a stretch of time. A stretch in which nothing happened has no sample."""

    start: float
    seconds: int
    """How long the stretch is."""
    used_bytes: int
    """What the store took on disk at its end."""
    entries: int
    """How many entries there were at its end."""
    rows: list[SampleRow]
