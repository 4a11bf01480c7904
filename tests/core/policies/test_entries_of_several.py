"""Under publish an entry is that of who published first in it: it goes for nobody else's quota, and as a whole."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from kcachefs.core import Filesystem, FsOptions
from kcachefs.core.administration import Administration
from kcachefs.core.limits import Limits
from kcachefs.core.sharing import Sharing
from kcachefs.store import Options, Store, fsck
from tests.core.trees import find, user

SIZE = 300_000
MALLORY, ALICE = 2, 1
QUOTA, FULL = {"per_uid": 3 * SIZE}, {"max_size": 5 * SIZE}


@contextmanager
def opened(path: Path) -> Iterator[Filesystem]:
    limits = Limits(max_size=1 << 40, max_size_per_uid=1 << 30, grace=0.0, min_free=0)
    with Store(path, Options(background=False)) as store:
        fs = Filesystem(store, FsOptions(limits=limits, sharing=Sharing(policy="publish")))
        fs.evictor.certain_seconds = 0.0
        yield fs
        fs.settle()
        assert fs.quotas is not None
        assert fs.quotas.accounts.totals() == fs.quotas.accounts.recounted()
    assert fsck.run(path).findings == []


def make(fs: Filesystem, uid: int, key: str) -> int:
    """A folder for an entry; the kernel forgets it at once."""
    entry, _ = fs.make(user(uid), find(fs, "triton"), key.encode(), 0o040755)
    fs.forget(entry, 1)
    return entry


def put(fs: Filesystem, uid: int, entry: int, name: str, size: int = SIZE, *, is_open: bool = False) -> int:
    """Write a file, which is not sealed yet."""
    ino, _ = fs.create(user(uid), entry, name.encode(), 0o644)
    fs.write(ino, 0, os.urandom(size), may_wait=False)
    if not is_open:
        fs.forget(ino, 1)
    return ino


def overfill(fs: Filesystem, uid: int, *, per_uid: int = 1 << 30, max_size: int = 1 << 40) -> list[int]:
    """Have a user hold too much, and lose something for it; returns the entries that were made for that."""
    others = [make(fs, uid, f"F{number}") for number in range(6)]
    for other in others:
        fs.sealer.seal(put(fs, uid, other, "x"))
    evict_for(fs, per_uid=per_uid, max_size=max_size)
    return others


def evict_for(fs: Filesystem, *, per_uid: int = 1 << 30, max_size: int = 1 << 40) -> None:
    fs.set_limits(msgspec.structs.replace(fs.room.limits, max_size_per_uid=per_uid, max_size=max_size))
    fs.evictor.turn()


def names(fs: Filesystem, entry: int) -> list[bytes]:
    return sorted(fs.walk.files_at_top(entry)) if fs.nodes.exists(entry) else []


def owner(fs: Filesystem, entry: int) -> int:
    record = fs.table.get(entry)
    assert record is not None
    return record.uid


@pytest.mark.parametrize("limits", [QUOTA, FULL])
def test_who_made_the_folder_first_cannot_have_anothers_file_evicted(tmp_path: Path, limits: dict[str, int]) -> None:
    with opened(tmp_path / "store") as fs:
        entry = make(fs, MALLORY, "KEY")
        put(fs, ALICE, entry, "k.so")
        fs.settle()
        others = overfill(fs, MALLORY, **limits)
        assert names(fs, entry) == [b"k.so"]
        assert not all(names(fs, other) for other in others)


@pytest.mark.parametrize("limits", [QUOTA, FULL])
def test_an_entry_of_two_goes_whole_for_who_published_first_in_it(tmp_path: Path, limits: dict[str, int]) -> None:
    with opened(tmp_path / "store") as fs:
        entry = make(fs, ALICE, "KEY")
        put(fs, ALICE, entry, "k.json")
        put(fs, MALLORY, entry, "k.so")
        fs.settle()
        others = overfill(fs, ALICE, **limits)
        assert not fs.nodes.exists(entry)
        gone = 1 + sum(not names(fs, other) for other in others)
        assert Administration(fs).stats().namespaces["triton"].evictions == gone


@pytest.mark.parametrize("limits", [QUOTA, FULL])
def test_who_adds_to_an_entry_cannot_have_it_evicted(tmp_path: Path, limits: dict[str, int]) -> None:
    with opened(tmp_path / "store") as fs:
        entry = make(fs, ALICE, "KEY")
        put(fs, ALICE, entry, "k.so")
        put(fs, MALLORY, entry, "junk")
        fs.settle()
        overfill(fs, MALLORY, **limits)
        assert names(fs, entry) == [b"junk", b"k.so"]


@pytest.mark.parametrize("name", [b"junk", b"tmp.junk"])
def test_nor_who_brings_an_older_file_that_is_sealed_already(tmp_path: Path, name: bytes) -> None:
    with opened(tmp_path / "store") as fs:
        origin = make(fs, MALLORY, "ORIGIN")
        fs.sealer.seal(put(fs, MALLORY, origin, "tmp.1"))
        entry = make(fs, ALICE, "KEY")
        if name == b"tmp.junk":  # a temporary name is free to all, at any time
            fs.rename(user(MALLORY), origin, b"tmp.1", entry, name)
            put(fs, ALICE, entry, "k.so")
        else:
            put(fs, ALICE, entry, "k.so")
            fs.rename(user(MALLORY), origin, b"tmp.1", entry, name)
        overfill(fs, MALLORY, **QUOTA)
        assert names(fs, entry) == sorted([b"k.so", name])
        fs.settle()
        assert owner(fs, entry) == ALICE
    with opened(tmp_path / "store") as fs:  # which has seen nothing of that
        put(fs, MALLORY, entry, "more")
        fs.settle()
        assert owner(fs, entry) == ALICE


def test_an_entry_that_an_older_daemon_listed_as_its_folders_makers_is_handed_over(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        entry = make(fs, MALLORY, "KEY")
        put(fs, ALICE, entry, "k.so")
        fs.settle()
        with fs.nodes.change() as txn:
            record = fs.table.get(entry, txn)
            assert record is not None
            fs.table.put(txn, entry, record, dataclasses.replace(record, uid=MALLORY))
        overfill(fs, MALLORY, **QUOTA)
        assert names(fs, entry) == [b"k.so"]
        assert owner(fs, entry) == ALICE


def test_what_others_add_to_entries_does_not_keep_them_from_making_room(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        entries = [make(fs, MALLORY, f"K{number}") for number in range(6)]
        for entry in entries:
            put(fs, ALICE, entry, "k.so")
            put(fs, MALLORY, entry, "junk", 100)
            fs.settle()
        evict_for(fs, **QUOTA)
        left = [entry for entry in entries if names(fs, entry)]
        assert left
        assert left == entries[-len(left) :]
        assert len(left) < len(entries)
        assert all(names(fs, entry) == [b"junk", b"k.so"] for entry in left)


def test_an_entry_of_two_stays_while_it_is_in_use_or_pinned(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        used, pinned = make(fs, ALICE, "USED"), make(fs, ALICE, "PINNED")
        held = put(fs, ALICE, used, "k.so", 1000, is_open=True)
        put(fs, ALICE, pinned, "k.so", 1000)
        for entry in (used, pinned):
            put(fs, MALLORY, entry, "k.json", 1000)
        fs.settle()
        Administration(fs).pin(["triton/PINNED"])
        overfill(fs, ALICE, **QUOTA)
        assert names(fs, used) == names(fs, pinned) == [b"k.json", b"k.so"]
        fs.forget(held, 1)
