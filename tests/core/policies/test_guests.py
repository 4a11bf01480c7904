"""Under publish, whoever holds too much loses what is theirs, and nothing that others have put beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from kcachefs.core import Filesystem, FsOptions
from kcachefs.core.limits import Limits
from kcachefs.core.removal import PIECE
from kcachefs.core.sharing import Sharing
from kcachefs.store import Options, Store, fsck
from tests.core.trees import READER, find, look_up, user

SIZE = 300_000
MALLORY, ALICE = 2, 1


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


def put(fs: Filesystem, uid: int, entry: int, name: str, *, is_open: bool = False) -> None:
    ino, _ = fs.create(user(uid), entry, name.encode(), 0o644)
    fs.write(ino, 0, os.urandom(SIZE), may_wait=False)
    if not is_open:
        fs.forget(ino, 1)
    fs.settle()


def evict_for(fs: Filesystem, *, per_uid: int = 1 << 30, max_size: int = 1 << 40) -> None:
    fs.room.limits = msgspec.structs.replace(fs.room.limits, max_size_per_uid=per_uid, max_size=max_size)
    fs.evictor.turn()


def names(fs: Filesystem, entry: int) -> list[bytes]:
    return sorted(fs.walk.files_at_top(entry)) if fs.nodes.exists(entry) else []


@pytest.mark.parametrize("limits", [{"per_uid": 3 * SIZE}, {"max_size": 5 * SIZE}])
def test_who_made_the_folder_first_cannot_have_anothers_file_evicted(tmp_path: Path, limits: dict[str, int]) -> None:
    with opened(tmp_path / "store") as fs:
        entry = make(fs, MALLORY, "KEY")
        put(fs, ALICE, entry, "k.so")
        others = [make(fs, MALLORY, f"F{number}") for number in range(6)]
        for other in others:
            put(fs, MALLORY, other, "x")
        evict_for(fs, **limits)
        assert names(fs, entry) == [b"k.so"]
        assert not all(names(fs, other) for other in others)


@pytest.mark.parametrize("limits", [{"per_uid": 2 * SIZE}, {"max_size": 5 * SIZE}])
def test_who_put_the_first_file_there_loses_that_and_the_entry_is_the_guests(
    tmp_path: Path, limits: dict[str, int]
) -> None:
    with opened(tmp_path / "store") as fs:
        entry = make(fs, MALLORY, "KEY")
        put(fs, MALLORY, entry, "junk")
        put(fs, ALICE, entry, "k.so")
        for number in range(6):
            put(fs, MALLORY, make(fs, MALLORY, f"F{number}"), "x")
        evict_for(fs, **limits)
        assert names(fs, entry) == [b"k.so"]
        record = fs.table.get(entry)
        assert record is not None
        assert record.uid == ALICE


def test_of_an_entry_with_many_files_only_the_owners_go(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        entry = make(fs, MALLORY, "KEY")
        for number in range(PIECE + 2):
            ino, _ = fs.create(user(MALLORY), entry, b"junk%d" % number, 0o644)
            fs.write(ino, 0, os.urandom(20_000), may_wait=False)
            fs.forget(ino, 1)
        put(fs, ALICE, entry, "k.so")
        evict_for(fs, per_uid=2 * SIZE)
        assert names(fs, entry) == [b"k.so"]


def test_a_name_that_its_reader_keeps_open_is_not_taken_with_anothers(tmp_path: Path) -> None:
    """Entries in use lose their names where they fill a quota: only those of the user whose quota it is."""
    with opened(tmp_path / "store") as fs:
        entry = make(fs, MALLORY, "KEY")
        for number in range(4):
            put(fs, MALLORY, entry, f"junk{number}", is_open=True)
        put(fs, ALICE, entry, "k.so")
        look_up(fs, "triton/KEY/k.so", READER)
        for _ in range(3):
            evict_for(fs, per_uid=2 * SIZE)
        assert names(fs, entry) == [b"k.so"]
        for ino in list(fs.nodes.lookups):
            fs.forget(ino, fs.nodes.lookups[ino])


def test_what_is_in_a_folder_of_anothers_makes_room_for_its_owner(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        entries = [make(fs, MALLORY, f"K{number}") for number in range(6)]
        for entry in entries:
            put(fs, ALICE, entry, "k.so")
        evict_for(fs, per_uid=3 * SIZE)
        left = [entry for entry in entries if names(fs, entry)]
        assert left
        assert left == entries[-len(left) :]
        assert len(left) < len(entries)
