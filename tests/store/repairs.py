"""A store to break and to repair: made, edited behind its back, checked before and after."""

from __future__ import annotations

import os
from pathlib import Path

from kcachefs.store import Options, Store
from kcachefs.store.fsck import run
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.inspection import Report
from kcachefs.store.object_records import (
    ObjectRecord,
    object_key,
)
from kcachefs.store.records import (
    name_key,
    unpack_name,
)
from tests.store import tree
from tests.store.objects import put

OPTIONS = Options(background=False, volume_size=32 << 10)
KEPT = {b"kept-%d" % number: (b"kernel %d " % number) * 300 for number in range(20)}
VICTIM = b"victim"
BYTES = b"the victim's bytes " * 500


def make_store(path: Path) -> Path:
    """A store with files of every kind, closed. `VICTIM` is what the tests break; the others must survive."""
    with Store(path, OPTIONS) as store:
        tree.make_root(store)
        for name, data in KEPT.items():
            tree.create(store, name, data)
        tree.create(store, b"twin", KEPT[b"kept-0"])
        tree.create_spooled(store, b"spooled", b"not sealed")
        tree.create(store, VICTIM, BYTES)
        put(store, b"held by a ContentStore" * 100)
        put(store, os.urandom(1 << 20))
    return path


def edit(path: Path, *changes: tuple[bytes, bytes | None]) -> None:
    """Change records behind the store's back."""
    with Store(path, OPTIONS) as store, store.transaction() as txn:
        for key, value in changes:
            if value is None:
                txn.delete(key)
            else:
                txn.put(key, value)


def look(path: Path, key: bytes) -> bytes:
    with Store(path, OPTIONS) as store:
        raw = store.catalog.get(key)
        assert raw is not None
        return raw


def victim(path: Path) -> tuple[int, bytes]:
    """Its inode number and its object's digest."""
    ino, _ = unpack_name(look(path, name_key(ROOT_INO, VICTIM)))
    with Store(path, OPTIONS) as store:
        return ino, tree.read_inode(store, ino).digest


def place(path: Path, digest: bytes) -> ObjectRecord:
    return ObjectRecord.unpack(look(path, object_key(digest)))


def what(report: Report) -> set[str]:
    return {finding.check for finding in report.findings}


def repaired(path: Path, *expected: str, victim_survives: bool = False) -> Report:
    """Check, repair, check again: the problems are found and mended, and everything intact is still there."""
    found = run(path)
    assert set(expected) <= what(found), found
    assert found.exit_code == 2
    mended = run(path, repair=True)
    assert mended.exit_code == 1, [finding for finding in mended.findings if not finding.repaired]
    assert run(path).exit_code == 0
    with Store(path, OPTIONS) as store:
        for name, data in KEPT.items():
            assert tree.read(store, name) == data
        assert tree.read(store, b"twin") == KEPT[b"kept-0"]
        assert tree.read(store, VICTIM) == (BYTES if victim_survives else None)
        tree.create(store, b"made again", BYTES)
        assert tree.read(store, b"made again") == BYTES
    assert run(path).exit_code == 0
    return found
