"""Quotas per user: whoever stores too much loses their own entries, nobody else does, and every user has numbers."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kcachefs.core import Filesystem, FsOptions, file_requests, room
from kcachefs.core.administration import Administration
from kcachefs.core.limits import Limits
from kcachefs.core.report import statistics_of
from kcachefs.engines import protocol as p
from kcachefs.engines.protocol import Op
from kcachefs.errors import FsError
from kcachefs.store import Options, Store, fsck
from tests.core.policies.mounts import ALICE, BOB, as_user, mounted, needs_root, settled, triton_put
from tests.core.trees import READER, ROOT, find, look_up, user
from tests.engines.test_protocol import Line
from tests.waiting import until

SIZE = 50_000


@contextmanager
def opened(path: Path, *, per_uid: int, max_size: int = 1 << 40) -> Iterator[Filesystem]:
    limits = Limits(max_size=max_size, max_size_per_uid=per_uid, grace=0.0, min_free=0)
    with Store(path, Options(background=False)) as store:
        fs = Filesystem(store, FsOptions(limits=limits))
        fs.evictor.certain_seconds = 0.0
        yield fs
        fs.settle()
    assert fsck.run(path).findings == []


def make(fs: Filesystem, uid: int, *keys: str, data: bytes = b"") -> None:
    for key in keys:
        entry, _ = fs.make(user(uid), find(fs, "triton"), key.encode(), 0o040755)
        ino, _ = fs.create(user(uid), entry, b"kernel.cubin", 0o644)
        fs.write(ino, 0, data or os.urandom(SIZE))
        fs.forget(ino, 1)
        fs.forget(entry, 1)
        fs.settle()


def held_by(fs: Filesystem, uid: int) -> list[str]:
    infos = Administration(fs).ls(names=False)
    return sorted(info.path.rpartition("/")[2] for info in infos if info.uid == uid)


def test_who_is_over_their_quota_loses_their_own_oldest_entries(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=4 * SIZE) as fs:
        make(fs, 1, "old")
        make(fs, 2, *"ABCDEFGH")
        make(fs, 1, "new")
        fs.evictor.turn()
        assert held_by(fs, 1) == ["new", "old"]
        assert held_by(fs, 2) == ["F", "G", "H"]
        assert fs.table.shares()[2] <= 4 * SIZE


def test_shared_bytes_count_for_each_as_if_they_were_alone(tmp_path: Path) -> None:
    data = os.urandom(SIZE)
    with opened(tmp_path / "store", per_uid=1 << 30) as fs:
        make(fs, 1, "A", data=data)
        alone = fs.table.shares()[1]
        make(fs, 2, "B", data=data)
        assert fs.table.shares() == {1: alone, 2: alone}
        assert fs.store.totals().objects == 1


def test_a_hit_is_on_the_account_of_who_had_it(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=1 << 30) as fs:
        make(fs, 1, "A")
        look_up(fs, "triton/A/kernel.cubin", READER, uid=2)
        fs.uses.flush()
        fs.store.fold()
        maker, reader = (statistics_of(uid, fs.namespaces, 1 << 30).total for uid in (1, 2))
        assert (maker.entries, maker.misses, maker.hits) == (1, 1, 0)
        assert (reader.entries, reader.misses, reader.hits) == (0, 0, 1)
        assert fs.statistics().total.hits == 1


def test_under_a_full_store_only_those_above_a_fair_part_lose_entries(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=1 << 30) as fs:
        make(fs, 1, "old")
        make(fs, 2, *"ABCDEFGHIJKLMNOP")
        limits = Limits(max_size=fs.store.used_bytes() * 3 // 4, max_size_per_uid=1 << 30, grace=0.0, min_free=0)
        fs.room.limits = limits
        while fs.evictor.turn():
            pass
        assert held_by(fs, 1) == ["old"], "the oldest of all, and not taken"
        assert 0 < len(held_by(fs, 2)) < 16


def test_who_has_nothing_left_to_evict_writes_no_more_and_others_do(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=SIZE) as fs:
        lock, _ = fs.create(user(1), find(fs, "inductor"), b"big.lock", 0o644)  # in no entry: never evicted
        fs.write(lock, 0, os.urandom(2 * SIZE))
        fs.evictor.turn()
        assert fs.room.exhausted == {1}
        with pytest.raises(FsError) as caught:
            fs.authorize_write(user(1), lock)
        assert caught.value.errno == errno.EDQUOT
        with pytest.raises(FsError):
            fs.create(user(1), find(fs, "triton"), b"more", 0o644)
        other, _ = fs.create(user(2), find(fs, "triton"), b"theirs", 0o644)
        fs.authorize_write(user(2), other)
        fs.set_attributes(ROOT, lock, size=0)
        fs.evictor.turn()
        assert not fs.room.exhausted


def test_who_has_only_entries_in_use_writes_no_more_until_one_can_be_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store", per_uid=SIZE) as fs:
        make(fs, 1, "A", "B", data=b"tiny")
        make(fs, 2, "C")
        held = fs.lookup(ROOT, find(fs, "triton/A"), b"kernel.cubin")
        assert held is not None
        lock, _ = fs.create(user(1), find(fs, "inductor"), b"big.lock", 0o644)
        fs.write(lock, 0, os.urandom(2 * SIZE))
        with monkeypatch.context() as patience:
            patience.setattr("kcachefs.core.eviction.SHORT_GRACE_SECONDS", 3600.0)
            fs.evictor.grace_seconds = 3600.0
            fs.evictor.turn()
        assert fs.room.exhausted == set(), "they have entries that may go when their grace is over"
        fs.evictor.grace_seconds = 0.0
        fs.evictor.turn()
        assert held_by(fs, 1) == ["A"]
        fs.evictor.turn()
        assert fs.room.exhausted == {1}
        fs.forget(held, 1)
        fs.evictor.turn()
        assert held_by(fs, 1) == []


def test_room_is_made_by_others_when_those_above_a_fair_part_use_all_that_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store", per_uid=1 << 30) as fs:
        make(fs, 2, "B")
        make(fs, 1, "A", data=os.urandom(80 * SIZE))
        held = fs.lookup(ROOT, find(fs, "triton/A"), b"kernel.cubin")
        assert held is not None
        limits = Limits(max_size=fs.store.used_bytes() * 3 // 4, max_size_per_uid=1 << 30, grace=0.0, min_free=0)
        fs.room.limits = limits
        fs.evictor.grace_seconds = 3.0
        now = time.time_ns
        monkeypatch.setattr("kcachefs.core.eviction.time.time_ns", lambda: now() + int(3600e9))
        fs.evictor.turn(seconds=60)
        assert (held_by(fs, 1), held_by(fs, 2)) == (["A"], [])
        fs.forget(held, 1)


def test_what_is_sealed_while_it_is_counted_is_not_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store", per_uid=4 * SIZE) as fs:
        with monkeypatch.context() as unsealed:
            unsealed.setattr(fs, "settle", lambda: None)
            make(fs, 1, *"ABCDEFGH")
        count = fs.sealer.unsealed_bytes

        def count_and_seal() -> dict[int, int]:
            held = count()
            fs.settle()
            return held

        monkeypatch.setattr(fs.sealer, "unsealed_bytes", count_and_seal)
        fs.evictor.turn()
        assert held_by(fs, 1) == ["F", "G", "H"]


@needs_root
@pytest.mark.mount
def test_on_a_mount_a_greedy_user_is_kept_within_the_quota_and_the_modest_keep_theirs() -> None:
    with mounted("direct", "--max-size-per-uid", "1MiB", "--grace", "0") as mount:

        def put(key: str, count: int) -> None:
            for number in range(count):
                triton_put(mount.mountpoint / "triton" / f"{key}{number}", "kernel.cubin", os.urandom(100_000))

        as_user(ALICE, lambda: put("alice", 3))
        as_user(BOB, lambda: put("bob", 30))
        settled(mount)
        until(lambda: _numbers(mount.mountpoint)["stored_bytes"] <= 1 << 20, "the greedy user is within the quota")
        left = os.listdir(mount.mountpoint / "triton")
        assert {"alice0", "alice1", "alice2"} <= set(left)
        assert 0 < len([key for key in left if key.startswith("bob")]) < 11


def _numbers(mountpoint: Path) -> dict[str, int]:
    def read() -> dict[str, int]:
        total: dict[str, int] = json.loads((mountpoint / ".kcachefs" / "stats.json").read_bytes())["total"]
        return total

    return as_user(BOB, read)


def test_a_file_in_anothers_entry_is_on_the_account_of_who_owns_it(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=1 << 30) as fs:
        make(fs, 1, "A")
        alone = fs.table.shares()[1]
        planted = plant(fs, "triton/A", 2)
        assert (fs.table.shares()[1], fs.table.shares()[2]) == (alone, alone)
        fs.rename(ROOT, find(fs, "triton"), b"A", find(fs, "inductor"), b"A")
        assert (fs.table.shares()[1], fs.table.shares()[2]) == (alone, alone)
        fs.set_attributes(ROOT, planted, uid=3)
        assert {uid: size for uid, size in fs.table.shares().items() if size} == {1: alone, 3: alone}
        fs.unlink(ROOT, find(fs, "inductor/A"), b"tmp.planted")
        assert {uid: size for uid, size in fs.table.shares().items() if size} == {1: alone}


def test_room_is_made_though_who_holds_most_has_it_in_anothers_entry(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=1 << 30) as fs:
        make(fs, 1, "A")
        for number in range(8):
            plant(fs, "triton/A", 2, b"tmp.%d" % number)
        fs.room.limits = Limits(max_size=1, max_size_per_uid=1 << 30, grace=0.0, min_free=0)
        fs.evictor.turn()
        assert held_by(fs, 1) == []


def plant(fs: Filesystem, path: str, uid: int, name: bytes = b"tmp.planted") -> int:
    """Put a sealed file of one user into another's entry."""
    ino, _ = fs.create(user(uid), find(fs, path), name, 0o644)
    fs.write(ino, 0, os.urandom(SIZE))
    fs.forget(ino, 1)
    fs.settle()
    return ino


def test_nobody_allocates_more_than_their_quota_at_once(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=4 << 20) as fs:
        ino, _ = fs.create(user(1), find(fs, "inductor"), b"big.lock", 0o644)
        fs.fallocate(ino, 0, 0, 3 << 20)
        with pytest.raises(FsError) as caught:
            fs.authorize_allocate(user(1), ino, 0, 0, 5 << 20)
        assert caught.value.errno == errno.EDQUOT
        with pytest.raises(FsError) as caught:
            fs.authorize_change(ROOT, ino, size=9 << 20)
        assert caught.value.errno == errno.EDQUOT
        with pytest.raises(FsError) as caught:
            fs.authorize_allocate(user(1), ino, 1, 3 << 20, 1 << 20)
        assert caught.value.errno == errno.EOPNOTSUPP
        fs.fallocate(ino, 0, 3 << 20, 2 << 20)
        fs.evictor.turn()
        assert fs.room.exhausted == {1}
        with pytest.raises(FsError) as caught:
            fs.authorize_allocate(user(1), ino, 0, 5 << 20, 1)
        assert caught.value.errno == errno.EDQUOT
        with pytest.raises(FsError) as caught:
            fs.fallocate(ino, 0, 5 << 20, 1)
        assert caught.value.errno == errno.EDQUOT
        with pytest.raises(FsError) as caught:
            fs.authorize_change(ROOT, ino, size=(5 << 20) + 1)
        assert caught.value.errno == errno.EDQUOT
        fs.authorize_change(ROOT, ino, size=1)
        fs.fallocate(ino, 3, 0, 5 << 20)  # punching a hole gives space back
        fs.set_attributes(ROOT, ino, size=0)
        fs.evictor.turn()


def test_who_is_over_their_quota_may_still_punch_holes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def make_it(store: Store) -> Filesystem:
        return Filesystem(store, FsOptions(limits=Limits(max_size_per_uid=1 << 20, min_free=0)))

    line = Line(tmp_path / "store", caplog, make_it)
    try:
        ino, _ = line.fs.create(user(1), find(line.fs, "inductor"), b"big.lock", 0o644)
        line.fs.write(ino, 0, bytes(2 << 20))
        line.fs.evictor.certain_seconds = 0.0
        line.fs.evictor.turn()
        assert line.fs.room.exhausted == {1}
        line.caller = (1, 1, 0)
        assert line.ask(Op.FALLOCATE, ino, p.FALLOCATE_IN.pack(0, 0, 1 << 40, 3, 0))[0] == 0
        assert line.ask(Op.FALLOCATE, ino, p.FALLOCATE_IN.pack(0, 0, 3 << 20, 0, 0))[0] == errno.EDQUOT
    finally:
        line.close()


def test_an_allocation_stops_where_the_whole_store_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_requests, "ALLOCATED_BYTES", 1 << 20)
    monkeypatch.setattr(room, "WAIT_WHEN_FULL_SECONDS", 0.0)
    with opened(tmp_path / "store", per_uid=1 << 40, max_size=64 << 20) as fs:
        ino, _ = fs.create(user(1), find(fs, "inductor"), b"big.lock", 0o644)
        for length in (65 << 20, 64 << 20):
            with pytest.raises(FsError) as caught:
                fs.fallocate(ino, 0, 0, length)
            assert caught.value.errno == errno.ENOSPC
        assert fs.store.used_bytes() < 66 << 20
        fs.room.full = True  # as a turn leaves it when nothing can be sealed or evicted
        with pytest.raises(FsError) as caught:
            fs.authorize_change(ROOT, ino, size=1 << 30)
        assert caught.value.errno == errno.ENOSPC
        fs.set_attributes(ROOT, ino, size=0)
        fs.evictor.turn()
        fs.fallocate(ino, 0, 0, 1 << 20)
