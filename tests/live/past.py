"""Writes a past into a store at rest: samples of years, events, and entries by the hundred thousand, all directly."""

from __future__ import annotations

import math
import time
from pathlib import Path

from kcachefs.core.insight_info import EVENTS
from kcachefs.core.nodes import new_inode
from kcachefs.store import Options, Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.entry_records import EntryRecord, NamespaceRecord, counts_key, entry_key, order_key, share_key
from kcachefs.store.history_files import LEVELS, HistoryFiles
from kcachefs.store.history_records import EventRecord, MakingRecord, SampleRecord, SampleRowRecord, making_key
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.records import (
    META_INO,
    inode_key,
    name_key,
    name_of,
    names_prefix,
    pack_name,
    pack_number,
    unpack_name,
    unpack_number,
)

_FOLDER = 0o040755


def namespaces_of(store: Path) -> dict[str, int]:
    """The inodes of the folders in the root, by name."""
    with Store(store, Options(create=False, background=False)) as opened:
        rows = opened.catalog.scan(names_prefix(ROOT_INO))
        return {name_of(key)[1].decode(): unpack_name(raw)[0] for key, raw in rows}


def write_history(store: Path, namespaces: dict[str, int], uid: int, *, quiet_seconds: int = 600) -> None:
    """Two years of samples in every ring, as busy by day as a team is, until some time ago."""
    files = HistoryFiles(store)
    now = int(time.time()) - quiet_seconds
    numbers = list(namespaces.values())[: SampleRecord.ROWS_MAX - 1]
    for seconds, slots in LEVELS:
        ring = files.samples[seconds]
        for number in range(now // seconds - slots + 2, now // seconds + 1):
            when = number * seconds
            # The last working day began nine hours ago, whatever the clock says.
            hour = (when - now) % 86400 / 86400 * 2 * math.pi
            busy = max(0.0, math.sin(hour + 0.75 * math.pi)) * (1.5 + math.sin(when / 1e6))
            hits = int(busy * seconds)
            if not hits:
                continue
            rows = [
                SampleRowRecord(
                    one, uid, hits // (at + 1), hits // (9 * (at + 1)), int(hits > 6000) * at, 0, hits << 16
                )
                for at, one in enumerate(numbers)
            ]
            for row in rows:
                row.compiled, row.saved = row.misses * 1_700_000_000, row.hits * 1_300_000_000
            ring.put(number, SampleRecord(int((6 + math.sin(when / 3e6)) * 1e9), 4000, rows).pack())
    for days in (200, 40, 5, 1):
        path = b"triton/KEY%d" % days
        for kind, text in (("evicted", path + b"quota"), ("failover", b"killed by signal 9")):
            length = len(path) if kind == "evicted" else 0
            when = (now - days * 86400) * 1_000_000_000
            files.events.append(EventRecord(when, uid, EVENTS.index(kind), length, text).pack())
    files.close()


def write_entries(store: Path, namespace: int, count: int, uid: int) -> None:
    """So many entries: a folder each with nothing in it, whose record says that it holds files."""
    now = time.time_ns()
    with Store(store, Options(create=False, background=False)) as opened:
        raw = opened.catalog.get(META_INO)
        first = unpack_number(raw) if raw is not None else ROOT_INO + 1
        sums = NamespaceRecord.unpack(opened.catalog.get(counts_key(namespace)))
        share = NamespaceRecord.unpack(opened.catalog.get(share_key(uid, namespace)))
        for start in range(0, count, 10_000):
            with opened.catalog.transaction() as txn:
                for number in range(start, min(count, start + 10_000)):
                    _put_entry(txn, namespace, first + number, number, now - number * 1_000_000, uid)
                held = min(count, start + 10_000) - start
                for key, record in ((counts_key(namespace), sums), (share_key(uid, namespace), share)):
                    record.entries += held
                    record.files += 7 * held
                    record.plain += 80_000 * held
                    record.stored += 20_000 * held
                    record.misses += held
                    record.used = now
                    txn.put(key, record.pack())
                txn.put(META_INO, pack_number(first + count))
            opened.fold()


def _put_entry(txn: Transaction, namespace: int, ino: int, number: int, used: int, uid: int) -> None:
    name = b"KERNEL%06d" % number
    node = new_inode(_FOLDER, uid, 0, namespace)
    node.target, node.entry = name, ino
    txn.put(inode_key(ino), node.pack())
    txn.put(name_key(namespace, name), pack_name(ino, _FOLDER))
    record = EntryRecord(namespace, namespace, used, used, 7, number % 9, 80_000, 20_000, uid, 0, name)
    txn.put(entry_key(ino), record.pack())
    txn.put(order_key(namespace, used), pack_number(ino))
    txn.put(making_key(ino), MakingRecord(used - 10**9, used, 10**9 + number * 1000, 0, basis=1).pack())
