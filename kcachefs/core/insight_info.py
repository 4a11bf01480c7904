"""The reports of a mount about its past: how entries were made, runs, tombstones, events, history.

Importing this does not load the filesystem. Times are seconds since 1970, durations are seconds. None means unknown,
never zero.
"""

from __future__ import annotations

from typing import TypeGuard

import msgspec
from blake3 import blake3

from kcachefs.core.entry_info import EntryInfo

BASES = ("", "span", "artefact", "part")
"""Where a cost comes from: unknown; the time from the creation of the entry's folder to its last file; the artefact;
the artefact, less the cost that other entries account for."""

LONGEST_SECONDS = 6 * 3600
"""A longer time shows that the clock was set, not how long the work took."""


def is_cost(seconds: float | None) -> TypeGuard[float]:
    """Whether an artefact may have taken that long to make."""
    return seconds is not None and 0 < seconds <= LONGEST_SECONDS


EVICTION_REASONS = ("quota", "user quota", "ceiling", "evicted", "pruned", "damaged", "power cut")
"""Why an entry went. The first three mean that a limit was too small; the next two that a user wanted it gone."""

EVENTS = ("evicted", "damaged", "failover", "reloaded", "rewritten", "reset")
"""The kinds of events that a mount writes down."""


def path_hash(path: str) -> bytes:
    """The hash by which a tombstone remembers an entry's path, given the path as `kcachefs ls` shows it."""
    return blake3(path.encode()).digest(16)


class MadeEntry(EntryInfo, kw_only=True, frozen=True):
    """An entry, and how it was made."""

    began: float | None = None
    """When its folder, or its first file, was made."""
    ended: float | None = None
    """When its last file was written."""
    run: int = 0
    """The run that made it; 0 if unknown."""
    cost: float | None = None
    """How long it took to make."""
    basis: str = ""
    """One of `BASES`: where `cost` comes from."""
    rewritten: float | None = None
    """When another run last wrote into it."""
    rewriter: int = 0
    """The run that last wrote into it; 0 if there is none."""
    remade: bool = False
    """Whether it had been here before, and was evicted to make room."""


class Artifact(msgspec.Struct, kw_only=True, frozen=True):
    """A file of an entry."""

    entry: int
    file: str
    """Its path in the entry's folder; in a group of files, its name."""
    size: int
    modified: float
    content: bytes | None = None
    """Its bytes; None if they are damaged, or more than was asked for."""


class Artifacts(msgspec.Struct, kw_only=True, frozen=True):
    """Files of entries, and the entries left to ask for."""

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
    """The cost of the entries that it made, as far as that is known."""
    seconds_saved: float
    """The cost of the entries that it hit, as far as that is known; a graph's kernels count only with the graph."""
    unknown_compiled: int
    """How many entries it made at an unknown cost, plus other runs' entries that it wrote again."""
    unknown_saved: int
    """Hits on entries whose cost is unknown."""


class Tombstone(msgspec.Struct, kw_only=True, frozen=True):
    """An entry that was here and went."""

    path_hash: bytes
    """The result of `path_hash` for its path."""
    when: float
    why: str
    """One of `EVICTION_REASONS`."""
    uid: int
    """The user who had made it."""


class Event(msgspec.Struct, kw_only=True, frozen=True):
    """Something that happened to a mount."""

    number: int
    when: float
    kind: str
    """One of `EVENTS`."""
    uid: int
    """The user whose entry it concerns; 0 if it concerns none."""
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
    """Bytes that the store took on disk at the end of the stretch."""
    entries: int
    """How many entries there were at the end of the stretch."""
    rows: list[SampleRow]
