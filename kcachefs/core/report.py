"""What a mount reports: statistics as data, as JSON and in Prometheus' text format, and the `.kcachefs` folder.

The folder is in every mount's root and holds `stats.json` and `metrics`, for whoever has the mount and not the command.
Its files are made when they are looked up, each time under a new inode number: the kernel keeps the pages of an inode
that it knows, and would show the numbers of an hour ago.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable

import msgspec

from kcachefs.bounded import BoundedDict
from kcachefs.core.caller import Caller
from kcachefs.core.namespaces import Namespaces, Row
from kcachefs.core.nodes import new_inode
from kcachefs.store import Store
from kcachefs.store.inode_numbers import REPORT_INO, ROOT_INO
from kcachefs.store.records import Inode, NamespaceRecord

FOLDER = b".kcachefs"
_KEPT = 64
"""Snapshots kept: those of processes that have looked and not yet read."""
_PAUSE_TIMES = 20
"""How many times longer than making a report took no other is made for the same user."""


class Numbers(msgspec.Struct, frozen=True):
    """Statistics of a namespace, or of all."""

    entries: int
    files: int
    plain_bytes: int
    """Bytes as readers see them."""
    stored_bytes: int
    """Bytes that they take, compressed; what several share counts for each of them."""
    compression_ratio: float
    hits: int
    misses: int
    hit_rate: float
    bytes_served: int
    """Plain bytes of the entries that were hit, counted with each hit."""
    evictions: int
    evicted_bytes: int
    last_used: float
    """Seconds since 1970, or 0."""


class StoreNumbers(msgspec.Struct, frozen=True):
    """Statistics of what lies beneath."""

    objects: int
    unique_bytes: int
    """Plain bytes, what several share counted once."""
    referenced_bytes: int
    """Plain bytes, counted once per file."""
    dedup_ratio: float
    used_bytes: int
    """What the store takes on disk, everything counted."""
    max_bytes: int
    bytes_saved: int
    """Plain bytes of all files, less what the store takes."""
    nameless: int
    """Files without a name that somebody has open."""
    damaged: int


class Statistics(msgspec.Struct, frozen=True):
    """Everything that `kcachefs stats` shows."""

    total: Numbers
    store: StoreNumbers
    namespaces: dict[str, Numbers]
    requests: dict[str, int]


def statistics(
    store: Store, namespaces: Namespaces, max_size: int, nameless: int, requests: dict[str, int]
) -> Statistics:
    """The numbers as they are now."""
    rows, total = _by_label(namespaces.rows())
    totals = store.objects.totals()
    used = store.used_bytes()
    return Statistics(
        total=_numbers(total),
        store=StoreNumbers(
            objects=totals.objects,
            unique_bytes=totals.plain,
            referenced_bytes=totals.referenced,
            dedup_ratio=round(totals.referenced / totals.plain, 3) if totals.plain else 1.0,
            used_bytes=used,
            max_bytes=max_size,
            bytes_saved=max(0, totals.referenced - used),
            nameless=nameless,
            damaged=store.objects.damaged,
        ),
        namespaces={label or "/": _numbers(record) for label, record in rows.items()},
        requests=requests,
    )


def statistics_of(uid: int, namespaces: Namespaces, max_size: int) -> Statistics:
    """What one user may know: the numbers of what that user made, as if nobody else were there.

    Nothing in them changes with what others store: sizes are those of the user's own files, compressed, whether or not
    the same bytes were there already.
    """
    rows, total = _by_label(namespaces.rows_of(uid))
    return Statistics(
        total=_numbers(total),
        store=StoreNumbers(
            objects=total.files,
            unique_bytes=total.plain,
            referenced_bytes=total.plain,
            dedup_ratio=1.0,
            used_bytes=total.stored,
            max_bytes=max_size,
            bytes_saved=max(0, total.plain - total.stored),
            damaged=0,
            nameless=0,
        ),
        namespaces={label or "/": _numbers(record) for label, record in rows.items()},
        requests={},
    )


def _by_label(found: list[Row]) -> tuple[dict[str, NamespaceRecord], NamespaceRecord]:
    """Namespaces of one name added up, over every tree that has one; and all of them."""
    rows: dict[str, NamespaceRecord] = {}
    total = NamespaceRecord()
    for _, label, record in found:
        if record.entries or record.misses or record.hits:
            _add(rows.setdefault(label, NamespaceRecord()), record)
            _add(total, record)
    return rows, total


def _add(total: NamespaceRecord, record: NamespaceRecord) -> None:
    for name in NamespaceRecord.__slots__:
        if name != "used":
            setattr(total, name, getattr(total, name) + getattr(record, name))
    total.used = max(total.used, record.used)


def _numbers(record: NamespaceRecord) -> Numbers:
    uses = record.hits + record.misses
    return Numbers(
        entries=record.entries,
        files=record.files,
        plain_bytes=record.plain,
        stored_bytes=record.stored,
        compression_ratio=round(record.plain / record.stored, 3) if record.stored else 1.0,
        hits=record.hits,
        misses=record.misses,
        hit_rate=round(record.hits / uses, 4) if uses else 0.0,
        bytes_served=record.served,
        evictions=record.evictions,
        evicted_bytes=record.evicted_bytes,
        last_used=record.used / 1e9,
    )


def as_json(numbers: Statistics) -> bytes:
    return msgspec.json.format(msgspec.json.encode(numbers), indent=2) + b"\n"


def as_metrics(numbers: Statistics) -> bytes:
    """Prometheus' text format."""
    lines: list[str] = []
    counters = {"hits", "misses", "bytes_served", "evictions", "evicted_bytes"}
    for name in Numbers.__struct_fields__:
        kind = "counter" if name in counters else "gauge"
        metric = f"kcachefs_{name}" + ("_total" if kind == "counter" else "")
        lines.append(f"# TYPE {metric} {kind}")
        for label, row in numbers.namespaces.items():
            escaped = label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            lines.append(f'{metric}{{namespace="{escaped}"}} {getattr(row, name)}')
    for name in StoreNumbers.__struct_fields__:
        lines += [f"# TYPE kcachefs_store_{name} gauge", f"kcachefs_store_{name} {getattr(numbers.store, name)}"]
    lines.append("# TYPE kcachefs_requests_total counter")
    lines += [f'kcachefs_requests_total{{request="{name}"}} {count}' for name, count in numbers.requests.items()]
    return "\n".join(lines).encode() + b"\n"


class ReportFolder:
    """The virtual folder: its inodes, and what its files held when they were looked up."""

    def __init__(self, uid: int, gid: int, source: Callable[[Caller], Statistics]) -> None:
        self._source = source
        self._folder = new_inode(stat.S_IFDIR | 0o555, uid, gid, ROOT_INO)
        self._folder.nlink = 2
        self._next = REPORT_INO + 1
        self._snapshots: BoundedDict[int, tuple[Inode, bytes]] = BoundedDict(_KEPT)
        self._made_last: BoundedDict[tuple[int, bytes], tuple[float, bytes]] = BoundedDict(_KEPT)
        """By user and name: until when a report is as good as a new one, and the report."""
        self.files = {b"stats.json": as_json, b"metrics": as_metrics}

    def find(self, caller: Caller, name: bytes) -> int | None:
        """A snapshot of the file of that name as the caller may see it, under a number of its own."""
        form = self.files.get(name)
        if form is None:
            return None
        content = self._made(caller, name, form)
        node = new_inode(stat.S_IFREG | 0o444, self._folder.uid, self._folder.gid, REPORT_INO)
        node.size = len(content)
        ino = self._next
        self._next += 1
        self._snapshots[ino] = (node, content)
        return ino

    def _made(self, caller: Caller, name: bytes, form: Callable[[Statistics], bytes]) -> bytes:
        """A report, or the last one if it was made just now: anybody may ask as often as they like."""
        last = self._made_last.get((caller.uid, name))
        begin = time.monotonic()
        if last is not None and begin < last[0]:
            return last[1]
        content = form(self._source(caller))
        end = time.monotonic()
        self._made_last[caller.uid, name] = end + _PAUSE_TIMES * (end - begin), content
        return content

    def node(self, ino: int) -> Inode | None:
        if ino == REPORT_INO:
            return self._folder
        found = self._snapshots.get(ino)
        return found[0] if found is not None else None

    def read(self, ino: int, offset: int, size: int) -> bytes:
        found = self._snapshots.get(ino)
        return found[1][offset : offset + size] if found is not None else b""

    def listing(self, cookie: int) -> list[tuple[int, bytes, int, int]]:
        now = [(1, b".", REPORT_INO, 4), (2, b"..", ROOT_INO, 4)]
        now += [(3 + index, name, REPORT_INO + 1, 8) for index, name in enumerate(self.files)]
        return [row for row in now if row[0] > cookie]

    def forget(self, ino: int) -> None:
        self._snapshots.pop(ino, None)
