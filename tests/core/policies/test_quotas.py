"""Quotas per user: whoever stores too much loses their own entries, nobody else does, and every user has numbers."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kcachefs.core import Filesystem, FsOptions, file_requests, room
from kcachefs.core.accounts import FREE_BYTES, INODE_BYTES, NOBODYS_ACCOUNT, Accounts, _costs_the_same
from kcachefs.core.administration import Administration
from kcachefs.core.limits import Limits
from kcachefs.core.nodes import new_inode
from kcachefs.core.removal import PIECE
from kcachefs.core.report import statistics_of
from kcachefs.core.tree import DOTDOT
from kcachefs.engines import protocol as p
from kcachefs.engines.protocol import Op
from kcachefs.errors import FsError
from kcachefs.store import Options, Store, fsck
from kcachefs.store.records import Inode
from tests.core.policies.mounts import ALICE, BOB, as_user, asked, mounted, needs_root, settled, triton_put
from tests.core.trees import READER, ROOT, find, folder, look_up, user
from tests.engines.test_protocol import Line
from tests.waiting import until

SIZE = 50_000


@pytest.fixture(autouse=True)
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no mount, waiting for the kernel to let go of something is in vain."""
    monkeypatch.setattr("kcachefs.core.probing.PROBE_SECONDS", 0.01)


def total(fs: Filesystem, uid: int) -> int:
    assert fs.quotas is not None
    return fs.quotas.accounts.total(uid)


@contextmanager
def opened(path: Path, *, per_uid: int, max_size: int = 1 << 40) -> Iterator[Filesystem]:
    limits = Limits(max_size=max_size, max_size_per_uid=per_uid, grace=0.0, min_free=0)
    with Store(path, Options(background=False)) as store:
        fs = Filesystem(store, FsOptions(limits=limits))
        fs.evictor.certain_seconds = 0.0
        yield fs
        fs.settle()
        assert fs.quotas is not None
        fs.quotas.accounts.count(60.0)
        assert fs.quotas.accounts.totals() == fs.quotas.accounts.recounted()
    assert fsck.run(path).findings == []


def give_quota(fs: Filesystem, per_uid: int) -> None:
    """Change the quota of a filesystem that users have filled."""
    fs.set_limits(msgspec.structs.replace(fs.room.limits, max_size_per_uid=per_uid))


def make(fs: Filesystem, uid: int, *keys: str, data: bytes = b"") -> None:
    for key in keys:
        entry, _ = fs.make(user(uid), find(fs, "triton"), key.encode(), 0o040755)
        ino, _ = fs.create(user(uid), entry, b"kernel.cubin", 0o644)
        fs.write(ino, 0, data or os.urandom(SIZE), may_wait=False)
        fs.forget(ino, 1)
        fs.forget(entry, 1)
        fs.settle()


def held_by(fs: Filesystem, uid: int) -> list[str]:
    infos = Administration(fs).ls(names=False)
    return sorted(info.path.rpartition("/")[2] for info in infos if info.uid == uid)


def test_who_is_over_their_quota_loses_their_own_oldest_entries(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=1 << 30) as fs:
        make(fs, 1, "old")
        make(fs, 2, *"ABCDEFGH")
        make(fs, 1, "new")
        give_quota(fs, 4 * SIZE)
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
        fs.set_limits(limits)
        while fs.evictor.turn():
            pass
        assert held_by(fs, 1) == ["old"], "the oldest of all, and not taken"
        assert 0 < len(held_by(fs, 2)) < 16


def test_who_has_nothing_left_to_evict_writes_no_more_and_others_do(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=SIZE) as fs:
        lock, _ = fs.create(user(1), find(fs, "inductor"), b"big.lock", 0o644)  # in no entry: never evicted
        fs.write(lock, 0, os.urandom(2 * SIZE), may_wait=False)
        fs.evictor.turn()
        assert fs.room.exhausted == {1}
        with pytest.raises(FsError) as caught:
            fs.authorize_write(user(1), lock, 3 * SIZE)
        assert caught.value.errno == errno.EDQUOT
        with pytest.raises(FsError):
            fs.create(user(1), find(fs, "triton"), b"more", 0o644)
        other, _ = fs.create(user(2), find(fs, "triton"), b"theirs", 0o644)
        fs.authorize_write(user(2), other, SIZE // 2)
        fs.set_attributes(ROOT, lock, size=0)
        fs.evictor.turn()
        assert not fs.room.exhausted


def test_who_has_only_entries_in_use_loses_their_names_and_then_writes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store", per_uid=SIZE) as fs:
        make(fs, 1, "A", "B", data=b"tiny")
        make(fs, 2, "C")
        held = fs.lookup(ROOT, find(fs, "triton/A"), b"kernel.cubin")
        assert held is not None
        lock, _ = fs.create(user(1), find(fs, "inductor"), b"big.lock", 0o644)
        fs.write(lock, 0, os.urandom(2 * SIZE), may_wait=False)
        with monkeypatch.context() as patience:
            patience.setattr("kcachefs.core.eviction.SHORT_GRACE_SECONDS", 3600.0)
            fs.set_limits(msgspec.structs.replace(fs.room.limits, grace=3600.0))
            fs.evictor.turn()
        assert fs.room.exhausted == set(), "they have entries that may go when their grace is over"
        fs.set_limits(msgspec.structs.replace(fs.room.limits, grace=0.0))
        fs.evictor.turn()
        assert held_by(fs, 1) == ["A"]
        fs.evictor.turn()
        assert held_by(fs, 1) == []
        assert fs.read(held, 0, 100) == b"tiny", "whoever has it open goes on reading"
        assert total(fs, NOBODYS_ACCOUNT) >= INODE_BYTES
        fs.evictor.turn()
        assert fs.room.exhausted == {1}
        fs.forget(held, 1)
        assert total(fs, NOBODYS_ACCOUNT) == 0


def fill_and_hold(fs: Filesystem) -> int:
    """Fill the store beyond its limit: user 1 has most of it, and holds that open; returns the file."""
    make(fs, 2, "B")
    make(fs, 1, "A", data=os.urandom(80 * SIZE))
    held = fs.lookup(ROOT, find(fs, "triton/A"), b"kernel.cubin")
    assert held is not None
    fs.set_limits(msgspec.structs.replace(fs.room.limits, max_size=fs.store.used_bytes() * 3 // 4))
    return held


def test_who_has_less_than_an_equal_part_of_a_full_store_makes_room_only_for_their_own_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store", per_uid=1 << 30) as fs:
        held = fill_and_hold(fs)
        fs.set_limits(msgspec.structs.replace(fs.room.limits, grace=3.0))
        now = time.time_ns
        monkeypatch.setattr("kcachefs.core.eviction.time.time_ns", lambda: now() + int(3600e9))
        fs.evictor.turn(seconds=60)
        assert (held_by(fs, 1), held_by(fs, 2)) == (["A"], ["B"])
        refused: list[Callable[[], object]] = [
            lambda: fs.authorize_write(user(1), held, 90 * SIZE),
            lambda: make(fs, 1, "C"),
        ]
        for request in refused:
            with pytest.raises(FsError) as caught:
                request()
            assert caught.value.errno == errno.EDQUOT, "who holds more than an equal part writes no more"
        fs.room.waiting.append((0, 2))
        fs.evictor.turn(seconds=60)
        assert (held_by(fs, 1), held_by(fs, 2)) == (["A"], [])
        fs.forget(held, 1)


def test_who_keeps_all_their_entries_open_is_refused_though_these_are_tried_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store", per_uid=1 << 30) as fs:
        fill_and_hold(fs)
        fs.evictor.certain_seconds = 0.2
        now, hours = time.time_ns, itertools.count()
        monkeypatch.setattr("kcachefs.core.eviction.time.time_ns", lambda: now() + next(hours) * int(3600e9))

        def is_barred() -> bool:
            fs.evictor.turn()
            return fs.room.barred == {1}

        until(is_barred, "who holds more than an equal part writes no more")
        assert held_by(fs, 2) == ["B"]


def test_what_is_sealed_is_not_counted_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store", per_uid=1 << 30) as fs:
        with monkeypatch.context() as unsealed:
            unsealed.setattr(fs, "settle", lambda: None)
            make(fs, 1, "A", data=bytes(SIZE))
        before = total(fs, 1)
        assert before > SIZE
        fs.settle()
        assert total(fs, 1) < before // 4, "zeros shrink"


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


@needs_root
@pytest.mark.mount
def test_on_a_mount_what_lost_its_name_while_it_was_open_goes_once_it_is_closed() -> None:
    with mounted("direct", "--max-size-per-uid", "1MiB", "--grace", "0") as mount:
        triton = mount.mountpoint / "triton"

        def keep_all_open() -> None:
            with contextlib.ExitStack() as held:
                files = []
                for number in range(100):
                    triton_put(triton / f"{number}", "kernel.cubin", os.urandom(100_000))
                    files.append(held.enter_context(open(triton / f"{number}" / "kernel.cubin", "rb")))
                    if not (triton / "0").exists():
                        break
                assert not (triton / "0").exists(), "an entry went while it was open"
                assert len(files[0].read()) == 100_000, "and can be read"

        as_user(ALICE, keep_all_open)
        until(lambda: asked(mount, "stats")["store"]["nameless"] == 0, "what nobody has open went")


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
        fs.set_limits(Limits(max_size=1, max_size_per_uid=1 << 30, grace=0.0, min_free=0))
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
        fs.fallocate(ino, 0, 3 << 20, 2 << 20, may_wait=False)
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
        line.fs.write(ino, 0, bytes(2 << 20), may_wait=False)
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
        fs.room.note_full(True)  # as a turn leaves it when nothing can be sealed or evicted
        with pytest.raises(FsError) as caught:
            fs.authorize_change(ROOT, ino, size=1 << 30)
        assert caught.value.errno == errno.ENOSPC
        fs.set_attributes(ROOT, ino, size=0)
        fs.evictor.turn()
        fs.fallocate(ino, 0, 0, 1 << 20)


# --- every inode is on somebody's account -----------------------------------------------------------------------------

QUOTA = 4 << 20


class QuotaReached(Exception):
    """Something was refused for the quota."""


@contextmanager
def refusing() -> Iterator[None]:
    try:
        yield
    except FsError as error:
        if error.errno != errno.EDQUOT:
            raise
        raise QuotaReached from error


def fill(fs: Filesystem, uid: int, one: Callable[[Filesystem, int, int], None]) -> None:
    """Do one thing again and again, until it is refused for the quota."""
    for number in range(100_000):
        with contextlib.suppress(QuotaReached), refusing():
            one(fs, uid, number)
            if number % 64 == 0:
                fs.evictor.turn()
            continue
        return
    raise AssertionError("the quota was never reached")


def make_file(fs: Filesystem, uid: int, name: bytes, size: int = 0) -> int:
    ino, _ = fs.create(user(uid), find(fs, "inductor"), name, 0o644)
    if size:
        fs.authorize_write(user(uid), ino, size)
        fs.write(ino, 0, os.urandom(size))
    return ino


def locks(fs: Filesystem, uid: int, number: int) -> None:
    make_file(fs, uid, b"%d.lock" % number, 60_000)


def temporaries(fs: Filesystem, uid: int, number: int) -> None:
    make_file(fs, uid, b".%d.1.tmp" % number, 60_000)


def unlinked_and_open(fs: Filesystem, uid: int, number: int) -> None:
    make_file(fs, uid, b"%d.py" % number, 60_000)
    fs.unlink(user(uid), find(fs, "inductor"), b"%d.py" % number)


def holes(fs: Filesystem, uid: int, number: int) -> None:
    ino = make_file(fs, uid, b"%d.hole.lock" % number)
    size = 100_000 if number % 2 else 3 << 20  # in a slot, and in a spool file
    fs.authorize_change(user(uid), ino, size=size)
    fs.set_attributes(user(uid), ino, size=size)


def allocations(fs: Filesystem, uid: int, number: int) -> None:
    ino = make_file(fs, uid, b"%d.large.lock" % number)
    size = 100_000 if number % 2 else 3 << 20
    fs.authorize_allocate(user(uid), ino, 0, 0, size)
    fs.fallocate(ino, 0, 0, size)


def symlinks(fs: Filesystem, uid: int, number: int) -> None:
    fs.make(user(uid), find(fs, "inductor"), b"link%d" % number, 0o120777, target=b"x" * 4000)


def empty_files(fs: Filesystem, uid: int, number: int) -> None:
    make_file(fs, uid, b"%d.empty" % number)


def folders(fs: Filesystem, uid: int, number: int) -> None:
    fs.make(user(uid), find(fs, "inductor"), b"folder%d" % number, 0o040755)


def links(fs: Filesystem, uid: int, number: int) -> None:
    ino = fs.tree.find(find(fs, "inductor"), b"linked") or make_file(fs, uid, b"linked")
    fs.link(user(uid), ino, find(fs, "inductor"), b"name%d" % number)


WAYS = (
    locks,
    temporaries,
    unlinked_and_open,
    holes,
    allocations,
    symlinks,
    empty_files,
    folders,
    links,
)
WITHOUT_BYTES = (empty_files, folders, links)
"""Thousands of them reach a quota: with these a smaller one shows the same."""


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_whatever_a_user_fills_the_store_with_ends_at_the_quota_and_costs_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[[Filesystem, int, int], None]
) -> None:
    monkeypatch.setattr(room, "WAIT_WHEN_FULL_SECONDS", 0.0)
    quota = QUOTA // 4 if way in WITHOUT_BYTES else QUOTA
    with opened(tmp_path / "store", per_uid=quota, max_size=32 << 20) as fs:
        make(fs, 1, *"ABCD")
        fill(fs, 2, way)
        assert total(fs, 2) <= quota * 9 // 8
        assert total(fs, 2) > quota // 2
        assert fs.store.used_bytes() < 2 * QUOTA
        assert held_by(fs, 1) == ["A", "B", "C", "D"]
        assert fs.quotas is not None
        assert fs.quotas.accounts.totals() == fs.quotas.accounts.recounted()
        make(fs, 1, "E")
    with opened(tmp_path / "store", per_uid=quota, max_size=32 << 20) as fs:
        assert fs.quotas is not None
        fs.quotas.accounts.count(60.0)  # on a busy machine the mount goes on before it is done with that
        assert total(fs, 1) == sum(total_of(fs, entry) for entry in "ABCDE"), "counted again when it is mounted"


def total_of(fs: Filesystem, entry: str) -> int:
    """What an entry with one sealed file costs."""
    digest = fs.nodes.get(find(fs, f"triton/{entry}/kernel.cubin")).digest
    record = fs.store.objects.record(digest)
    assert record is not None
    return 2 * INODE_BYTES + record.length - FREE_BYTES


def test_a_file_that_shrank_holds_no_more_of_the_disk_than_it_has_bytes(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=QUOTA) as fs:
        for number in range(40):
            ino = make_file(fs, 1, b"%d.lock" % number, 1 << 20)
            fs.set_attributes(user(1), ino, size=1)
        assert total(fs, 1) < 1 << 20
        assert fs.store.used_bytes() < 2 << 20


def test_what_is_looked_at_in_a_record_is_where_it_is_looked_for() -> None:
    node = new_inode(0o100644, 1, 1, 1)
    dearer: dict[str, Any] = {
        "uid": 2,
        "nlink": 2,
        "size": 5,
        "content": 3,
        "spool": 9,
        "flags": Inode.DOOMED,
        "digest": bytes([1] * 32),
    }
    for name, value in dearer.items():
        assert not _costs_the_same(node.pack(), dataclasses.replace(node, **{name: value}).pack()), name
    for name in ("gid", "rdev", "atime", "mtime", "ctime", "parent", "entry"):
        same: dict[str, Any] = {name: 77}
        assert _costs_the_same(node.pack(), dataclasses.replace(node, **same).pack()), name
    folder = new_inode(0o040755, 1, 1, 1)
    assert _costs_the_same(folder.pack(), dataclasses.replace(folder, nlink=9, size=9, ctime=9).pack())
    assert not _costs_the_same(folder.pack(), dataclasses.replace(folder, uid=2).pack())
    assert not _costs_the_same(folder.pack(), dataclasses.replace(folder, flags=Inode.DOOMED).pack())
    assert not _costs_the_same(folder.pack(), node.pack())


def test_the_next_worker_finds_every_account_as_the_last_one_left_it(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=1 << 30) as fs:
        make(fs, 1, *"AB")
        for uid, way in enumerate(WAYS, 10):
            for number in range(3):
                way(fs, uid, number)
        assert fs.quotas is not None
        before = fs.quotas.accounts.totals()
        again = Filesystem(fs.store, FsOptions(limits=fs.room.limits, resumed=True))
        assert again.quotas is not None
        assert again.quotas.accounts.totals() == before
        fs.store.catalog.observe(fs.quotas.accounts)


def test_a_large_store_is_counted_in_pieces_while_it_changes(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=1 << 30) as fs:
        for number in range(1000):
            fs.make(user(number % 7), find(fs, "inductor"), b"%d" % number, 0o100644)
        fs.store.fold()
        accounts = Accounts(fs.store, fs.room.limits.account_of)
        accounts.start(fs.nodes.next_ino)
        for number in range(1000):
            if number % 100 == 0:
                accounts.count(0)
            fs.set_attributes(ROOT, find(fs, f"inductor/{number}"), uid=number % 5)
            fs.make(user(9), find(fs, "inductor"), b"more%d" % number, 0o100644)
            if number % 3 == 0:
                fs.unlink(ROOT, find(fs, "inductor"), b"%d" % number)
        accounts.count(60)
        assert accounts.is_complete
        assert accounts.totals() == accounts.recounted()
        assert fs.quotas is not None
        fs.store.catalog.observe(fs.quotas.accounts)
        fs.quotas.accounts = accounts


# --- nobody spends another's quota ------------------------------------------------------------------------------------


def test_what_a_stranger_writes_into_a_file_is_not_on_its_owners_account(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=QUOTA) as fs:
        lock = make_file(fs, 1, b"x.lock")
        before = total(fs, 1)
        fs.authorize_write(user(2), lock, FREE_BYTES)
        fs.write(lock, 0, os.urandom(FREE_BYTES))
        assert total(fs, 1) == before, "enough for the number of a process"
        fs.sealer.seal(lock)
        assert total(fs, 1) < before + 128
        refused: list[Callable[[], object]] = [
            lambda: fs.authorize_write(user(2), lock, FREE_BYTES + 1),
            lambda: fs.authorize_change(user(2), lock, size=1 << 20),
            lambda: fs.authorize_allocate(user(2), lock, 0, 0, 1 << 20),
        ]
        for request in refused:
            with pytest.raises(FsError) as caught:
                request()
            assert caught.value.errno == errno.EDQUOT
        with pytest.raises(FsError) as caught:
            fs.link(user(2), lock, find(fs, "inductor"), b"y.lock")
        assert caught.value.errno == errno.EPERM
        fs.authorize_write(user(1), lock, 1 << 20)
        fs.authorize_write(ROOT, lock, 1 << 20)


def test_who_opens_all_entries_of_a_user_does_not_use_up_that_users_quota(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=10 * SIZE, max_size=64 << 20) as fs:
        make(fs, 1, *"ABCDEFGH")
        held = [fs.lookup(user(2), find(fs, f"triton/{key}"), b"kernel.cubin") for key in "ABCDEFGH"]
        for key in "IJKLMN":
            make(fs, 1, key)
            fs.evictor.turn()
            assert fs.room.exhausted == set()
            fs.evictor.turn()
        assert {"K", "L", "M", "N"} <= set(held_by(fs, 1)), "half of the quota stays free for what is new"
        assert total(fs, 1) <= 10 * SIZE
        for ino in held:
            assert ino is not None
            assert len(fs.read(ino, 0, SIZE)) == SIZE
            fs.forget(ino, 1)
        assert total(fs, NOBODYS_ACCOUNT) == 0


def test_what_is_held_open_on_nobodys_account_is_bounded(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=10 * SIZE, max_size=8 << 20) as fs:
        held = []
        for number in range(60):
            with contextlib.suppress(QuotaReached), refusing():
                make(fs, 1, f"K{number}")
                held.append(fs.lookup(user(1), find(fs, f"triton/K{number}"), b"kernel.cubin"))
            fs.evictor.turn()
            if fs.room.exhausted:
                break
        assert fs.room.exhausted == {1}
        assert total(fs, 1) <= 10 * SIZE * 9 // 8 + SIZE
        assert SIZE < total(fs, NOBODYS_ACCOUNT) <= (8 << 20) // 8 + 2 * INODE_BYTES * len(held)
        for ino in held:
            assert ino is not None
            fs.forget(ino, 1)


def test_what_is_held_open_and_written_again_is_counted_before_it_is_on_nobodys_account(tmp_path: Path) -> None:
    """Sealed it cost next to nothing; one byte written into it brings back what it holds."""
    size = 1 << 20
    with opened(tmp_path / "store", per_uid=2 * size, max_size=8 * size) as fs:
        held = []
        for number in range(30):
            with contextlib.suppress(QuotaReached), refusing():
                make(fs, 1, f"K{number}", data=bytes([number]) * size)
                fs.settle()
                ino = fs.lookup(user(1), find(fs, f"triton/K{number}"), b"kernel.cubin")
                held.append(ino)
        for ino in held:
            assert ino is not None
            with contextlib.suppress(QuotaReached), refusing():
                fs.authorize_write(user(1), ino, 1)
                fs.write(ino, 0, b"x", may_wait=False)
            fs.evictor.turn()
            assert total(fs, NOBODYS_ACCOUNT) <= size + 2 * INODE_BYTES * len(held)
        for ino in held:
            assert ino is not None
            fs.forget(ino, 1)


def test_what_is_on_nobodys_account_does_not_grow(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=10 * SIZE, max_size=8 << 20) as fs:
        make(fs, 1, *"ABCDEFGHI")
        held = {key: fs.lookup(user(1), find(fs, f"triton/{key}"), b"kernel.cubin") for key in "ABCDEFGHI"}
        make(fs, 1, "J", "K")
        for _ in range(3):
            fs.evictor.turn()
        doomed = [ino for key, ino in held.items() if key not in held_by(fs, 1)]
        assert doomed
        before = total(fs, NOBODYS_ACCOUNT)
        for ino in doomed:
            assert ino is not None
            assert fs.read(ino, 0, SIZE)
            for grow in (
                partial(fs.authorize_write, user(1), ino, 10 * SIZE),
                partial(fs.authorize_change, user(1), ino, size=10 * SIZE),
                partial(fs.authorize_allocate, user(1), ino, 0, 0, 10 * SIZE),
            ):
                with pytest.raises(FsError) as caught:
                    grow()
                assert caught.value.errno == errno.EDQUOT
        assert total(fs, NOBODYS_ACCOUNT) == before
        for ino in held.values():
            assert ino is not None
            fs.forget(ino, 1)


def test_a_hole_in_a_sealed_file_is_no_way_around_a_quota(tmp_path: Path) -> None:
    """It brings back the rest of the file, which may take a thousand times what it took compressed."""
    size, hole = 1 << 20, 3
    with opened(tmp_path / "store", per_uid=2 * size) as fs:
        inos = []
        for number in range(20):
            make(fs, 1, f"K{number}", data=bytes([number]) * size)
            fs.settle()
            inos.append(find(fs, f"triton/K{number}/kernel.cubin"))
        punched = 0
        for ino in inos:
            with contextlib.suppress(QuotaReached), refusing():
                fs.authorize_allocate(user(1), ino, hole, 0, 1)
                if fs.has_room_to_write(ino, 1):  # else it waits
                    fs.fallocate(ino, hole, 0, 1, may_wait=False)
                    punched += 1
            assert total(fs, 1) <= 2 * size
        assert punched == 1


def test_a_large_group_in_use_is_on_nobodys_account_whole(tmp_path: Path) -> None:
    with opened(tmp_path / "store", per_uid=4 << 20, max_size=64 << 20) as fs:
        place, held = folder(fs, "python/env/proj"), []
        for number in range(3 * PIECE):
            ino, _ = fs.create(user(1), place, b"m%d.cpython-311.pyc" % number, 0o644)
            fs.write(ino, 0, os.urandom(40_000), may_wait=False)
            held.append(ino)
        fs.settle()
        assert len({fs.nodes.get(ino).entry for ino in held}) == 1
        give_quota(fs, 2 << 20)
        for _ in range(4):
            fs.evictor.turn()
        assert fs.tree.listing(place, DOTDOT, 999) == []
        assert total(fs, 1) < 100_000
        assert total(fs, NOBODYS_ACCOUNT) > len(held) * 40_000
        for ino in held:
            fs.forget(ino, 1)
        assert total(fs, NOBODYS_ACCOUNT) == 0


def test_the_users_of_a_range_share_one_account(tmp_path: Path) -> None:
    limits = Limits(max_size_per_uid=1 << 30, grace=0.0, min_free=0, tenant_ranges=((100_000, 65_536),))
    with Store(tmp_path / "store", Options(background=False)) as store:
        fs = Filesystem(store, FsOptions(limits=limits))
        fs.evictor.certain_seconds = 0.0
        make(fs, 5, "mine")
        for uid in (100_000, 100_033, 165_535):
            make(fs, uid, f"A{uid}", f"B{uid}")
        assert total(fs, 100_000) > 6 * SIZE
        give_quota(fs, 4 * SIZE)
        fs.evictor.turn()
        assert total(fs, 100_000) <= 4 * SIZE
        assert held_by(fs, 5) == ["mine"]
        assert held_by(fs, 100_000) == [], "the oldest of the range went, whichever user of it made them"
        assert fs.statfs(user(100_033)).free == fs.statfs(user(165_535)).free < fs.statfs(user(5)).free
        fs.settle()
