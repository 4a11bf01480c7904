"""What a store remembers of the past: the records of table `d` and of the ring files in `history/`, and their codecs.

docs/format.md describes the byte layout. Times are nanoseconds since 1970, durations are nanoseconds.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import ClassVar, Self

from kcachefs.store.entry_records import entry_key

PROFILE_ENTRIES = 1_000
"""How many entries a start profile has room for."""
UNKNOWN_COST = -1
"""The cost of an entry when nobody knows how long it took to make."""


def making_key(entry: int) -> bytes:
    return b"d" + entry_key(entry)[1:]


@dataclass(slots=True)
class MakingRecord:
    """How an entry was made."""

    REMADE: ClassVar[int] = 1
    """The same entry existed before, and was evicted to make room."""

    CODEC: ClassVar[struct.Struct] = struct.Struct("<qqqQqQBB")

    began: int
    ended: int
    cost: int = UNKNOWN_COST
    run: int = 0
    rewritten: int = 0
    """When another run last wrote into the entry, or 0."""
    rewriter: int = 0
    basis: int = 0
    """How the cost is known: an index into `insight_info.BASES`."""
    flags: int = 0

    def pack(self) -> bytes:
        return self.CODEC.pack(
            self.began, self.ended, self.cost, self.run, self.rewritten, self.rewriter, self.basis, self.flags
        )

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        return cls(*cls.CODEC.unpack(raw))


@dataclass(slots=True)
class RunRecord:
    """A run: a process with all its descendants. A run's number is the number of its record in the ring."""

    CODEC: ClassVar[struct.Struct] = struct.Struct("<QQIIqqQQQQQIIQ")

    boot: int
    """The boot of the machine that `pid` and `ticks` belong to: the first 8 bytes of the boot id."""
    ticks: int
    """When the process began, in clock ticks since that boot. Together with `pid`, this identifies the process."""
    pid: int
    uid: int
    started: int
    used: int
    hits: int = 0
    misses: int = 0
    served: int = 0
    compiled: int = 0
    saved: int = 0
    unknown_compiled: int = 0
    unknown_saved: int = 0
    into: int = 0
    """The run that this run turned out to be part of; 0 if there is none."""
    argv: bytes = b""

    def pack(self) -> bytes:
        return (
            self.CODEC.pack(
                self.boot,
                self.ticks,
                self.pid,
                self.uid,
                self.started,
                self.used,
                self.hits,
                self.misses,
                self.served,
                self.compiled,
                self.saved,
                self.unknown_compiled,
                self.unknown_saved,
                self.into,
            )
            + self.argv
        )

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        return cls(*cls.CODEC.unpack_from(raw), raw[cls.CODEC.size :])  # type: ignore[call-arg]


@dataclass(slots=True)
class ProfileRecord:
    """The entries that the last starts of a command read."""

    CODEC: ClassVar[struct.Struct] = struct.Struct("<16sq")

    name_hash: bytes
    """The first 16 bytes of the BLAKE2b hash of the command's name."""
    when: int
    entries: bytes = b""
    """The entries' numbers in the order of use, 8 bytes each, little-endian."""

    @property
    def numbers(self) -> list[int]:
        whole = len(self.entries) // 8
        return list(struct.unpack_from(f"<{whole}Q", self.entries))

    def pack(self) -> bytes:
        return self.CODEC.pack(self.name_hash, self.when) + self.entries

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        return cls(*cls.CODEC.unpack_from(raw), raw[cls.CODEC.size :])  # type: ignore[call-arg]


@dataclass(slots=True)
class TombstoneRecord:
    """What is remembered of an entry that is gone."""

    CODEC: ClassVar[struct.Struct] = struct.Struct("<16sqIB")

    path_hash: bytes
    when: int
    uid: int
    why: int
    """An index into `insight_info.EVICTION_REASONS`."""

    def pack(self) -> bytes:
        return self.CODEC.pack(self.path_hash, self.when, self.uid, self.why)

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        return cls(*cls.CODEC.unpack(raw))


@dataclass(slots=True)
class EventRecord:
    """Something that happened."""

    CODEC: ClassVar[struct.Struct] = struct.Struct("<qIBB")

    when: int
    uid: int
    kind: int
    """An index into `insight_info.EVENTS`."""
    path_length: int
    text: bytes
    """The path of the entry, followed by the details."""

    def pack(self) -> bytes:
        return self.CODEC.pack(self.when, self.uid, self.kind, self.path_length) + self.text

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        return cls(*cls.CODEC.unpack_from(raw), raw[cls.CODEC.size :])  # type: ignore[call-arg]


@dataclass(slots=True)
class SampleRowRecord:
    """What one user did in one namespace during a sample."""

    CODEC: ClassVar[struct.Struct] = struct.Struct("<QIIIIIQQQ")

    namespace: int
    uid: int
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    remade: int = 0
    served: int = 0
    compiled: int = 0
    saved: int = 0

    def pack(self) -> bytes:
        return self.CODEC.pack(
            self.namespace,
            self.uid,
            self.hits,
            self.misses,
            self.evictions,
            self.remade,
            self.served,
            self.compiled,
            self.saved,
        )

    @property
    def key(self) -> tuple[int, int]:
        return self.namespace, self.uid

    @property
    def weight(self) -> int:
        """How much happened. If there are too many rows, the rows with the least weight are added up into one."""
        return self.hits + self.misses + self.evictions

    def add(self, other: SampleRowRecord) -> None:
        self.hits += other.hits
        self.misses += other.misses
        self.evictions += other.evictions
        self.remade += other.remade
        self.served += other.served
        self.compiled += other.compiled
        self.saved += other.saved


@dataclass(slots=True)
class SampleRecord:
    """What happened in a period of time. A sample's number counts periods of that length since 1970."""

    CODEC: ClassVar[struct.Struct] = struct.Struct("<QI")
    ROWS_MAX: ClassVar[int] = 7
    OTHERS: ClassVar[tuple[int, int]] = (0, 0xFFFFFFFF)
    """Namespace and user of the row that sums everything without a row of its own."""

    used: int
    entries: int
    rows: list[SampleRowRecord] = field(default_factory=list)

    def add(self, rows: list[SampleRowRecord]) -> None:
        """Add these rows, and keep at most `ROWS_MAX` rows."""
        by_key = {row.key: row for row in self.rows}
        for row in rows:
            by_key.setdefault(row.key, SampleRowRecord(*row.key)).add(row)
        if len(by_key) > self.ROWS_MAX:
            others = by_key.pop(self.OTHERS, None) or SampleRowRecord(*self.OTHERS)
            for row in sorted(by_key.values(), key=lambda row: -row.weight)[self.ROWS_MAX - 1 :]:
                others.add(by_key.pop(row.key))
            by_key[self.OTHERS] = others
        self.rows = list(by_key.values())

    def pack(self) -> bytes:
        return self.CODEC.pack(self.used, self.entries) + b"".join(row.pack() for row in self.rows)

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        rows = [SampleRowRecord(*fields) for fields in SampleRowRecord.CODEC.iter_unpack(raw[cls.CODEC.size :])]
        used, entries = cls.CODEC.unpack_from(raw)
        return cls(used, entries, rows)
