"""Eviction in the core: what is evicted, in which order, and what never is."""

from __future__ import annotations

import errno
import itertools
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from kcachefs.core import Filesystem, eviction
from kcachefs.core.administration import Administration, Outcome
from kcachefs.core.eviction import BATCH, BRISK_MARK
from kcachefs.core.kernel import Kernel
from kcachefs.core.lifetimes import TURN_SECONDS
from kcachefs.core.limits import Limits
from kcachefs.core.probing import Probed
from kcachefs.core.removal import BREATH_MAX_SECONDS, BREATH_SECONDS, BREATH_TIMES, Pace
from kcachefs.core.user_eviction import HIGH_WATER, LOW_WATER
from kcachefs.core.walk import Name
from kcachefs.errors import UsageError
from kcachefs.store.entry_records import entry_key
from kcachefs.store.records import pack_number, temporary_key
from kcachefs.store.slots import SLOT_SIZE
from tests.core.trees import (
    READER,
    ROOT,
    WRITER,
    exists,
    find,
    folder,
    free_pages,
    kernel,
    look_up,
    nothing_acknowledged,
    opened,
    refused,
    rename,
    shrink,
    user,
    write,
)
from tests.disks import Disk, ext4, need_root
from tests.waiting import until

NO_GRACE = Limits(max_size=1 << 40, grace=0.0)


def filled(fs: Filesystem, *keys: str, size: int = 20_000) -> None:
    """Make entries of incompressible bytes, used in this order."""
    for key in keys:
        kernel(fs, key, size)
        fs.settle()


def alive(fs: Filesystem) -> list[str]:
    return sorted(info.path.rpartition("/")[2] for info in Administration(fs).ls(names=False))


def test_nothing_goes_while_the_quota_holds(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "A", "B")
        assert fs.evictor.turn() == 0
        assert alive(fs) == ["A", "B"]


def test_the_least_recently_used_go_first_and_whole(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, *"ABCDEFGH", size=200_000)
        look_up(fs, "triton/A/kernel.ptx", READER)
        shrink(fs, 0.6)
        left = alive(fs)
        assert "A" in left
        assert "H" in left
        assert "B" not in left
        assert "C" not in left
        for key in "ABCDEFGH":
            assert exists(fs, f"triton/{key}") == (key in left)
            if key in left:
                assert fs.nodes.get(find(fs, f"triton/{key}")).size == 6


def test_kernels_that_share_a_folder_go_one_by_one(tmp_path: Path) -> None:
    paths = [
        "sglang/jit/sm90a/{}/build-1f2e/deps-3d4c/kernel.so",
        "sglang/rust_extensions/artifacts/{}/1f2e/_grpc.so",
        "sglang/diffusion/torch_compile_cache/triton/{}/kernel.cubin",
        "helion/triton/0/{}/kernel.cubin",
        "helion/cute/0/{}.mlir",
        "flash_attn_cute/f1d2/fwd/{}.o",
        "flashinfer/.cache/flashinfer/cubins/ce07/fmha/trtllm-gen/{}.cubin",
        "flydsl/launch_gemm_1f2e/{}.pkl",
    ]
    with opened(tmp_path / "store", NO_GRACE) as fs:
        for key in "ABCD":
            for path in paths:
                write(fs, path.format(key), os.urandom(200_000))
            fs.settle()
        shrink(fs, 0.6)
        for path in paths:
            assert exists(fs, path.format("D")), path
            assert not exists(fs, path.format("A")), path


def test_the_quota_holds_on_disk_after_eviction(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, *"ABCDEFGH", size=200_000)
        before = fs.store.used_bytes()
        shrink(fs, 0.5)
        assert fs.store.used_bytes() <= before * 0.5
        assert fs.store.disk_bytes() <= before * 0.55


def test_free_pages_of_the_catalog_cost_no_entries(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        free_pages(fs)
        filled(fs, *"ABCD", size=20_000)
        catalog = fs.store.catalog.statistics()
        assert catalog["free_bytes"] > catalog["bytes"] // 2
        fs.store.slots.trim()
        fs.set_limits(Limits(max_size=catalog["bytes"], grace=0.0, min_free=0))
        assert fs.store.used_bytes() > catalog["bytes"], "the quota is less than what the store takes on disk"
        assert fs.evictor.turn() == 0
        assert alive(fs) == ["A", "B", "C", "D"]
        assert fs.statfs(ROOT).free > 0, "and more fits"
        for key in "EFGHIJKLMNOP":
            filled(fs, key, size=60_000)
            while fs.evictor.turn():
                pass
        assert "P" in alive(fs)
        assert "A" not in alive(fs), "what is in the store counts as ever"


@need_root
def test_a_disk_that_is_short_of_room_costs_only_the_oldest_entries(tmp_path: Path) -> None:
    limits = Limits(max_size=1 << 40, grace=0.0, min_free=0)
    with ext4(tmp_path, "disk", megabytes=64) as disk, opened(disk.path / "store", limits) as fs:
        filled(fs, *"ABCDEFGH", size=200_000)
        fs.set_limits(Limits(max_size=1 << 40, grace=0.0, min_free=disk.free + (1 << 20)))
        while fs.evictor.turn():
            pass
        assert "A" not in alive(fs)
        assert {"G", "H"} <= set(alive(fs)), "room of what went was given back before more had to go"
        assert fs.room.excess(1.0) <= 0


def test_what_free_slots_keep_goes_before_any_entry(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        for key in "ABCD":
            kernel(fs, key, 200_000)
        fs.settle()
        used, slack = fs.store.used_bytes(), fs.store.slots.slack_bytes()
        assert slack > used // 4
        fs.set_limits(Limits(max_size=int((used - slack) / LOW_WATER) + 4096, grace=0.0, min_free=0))
        assert fs.room.excess(1.0) > 0
        assert fs.evictor.turn() == 0
        assert alive(fs) == ["A", "B", "C", "D"]
        assert fs.room.excess(LOW_WATER) <= 0


@need_root
def test_a_write_that_finds_the_disk_full_waits_until_something_is_evicted(small_disk: Disk) -> None:
    limits = Limits(max_size=1 << 40, grace=0.0, min_free=2 << 20)
    with opened(small_disk.path / "store", limits) as fs:
        filled(fs, *"ABCDEFGH", size=100_000)
        ino = write(fs, "triton/new/file", b"")
        small_disk.fill()
        assert fs.room.has_room.is_set(), "nobody has noticed yet"
        stop = threading.Event()

        def evict() -> None:
            while not stop.wait(0.01):
                fs.evictor.turn()

        evictor = threading.Thread(target=evict)
        evictor.start()
        try:
            content = os.urandom(500_000)
            assert fs.write(ino, 0, content) == len(content)
        finally:
            stop.set()
            evictor.join()
        assert fs.read(ino, 0, len(content)) == content
        assert "A" not in alive(fs)
        small_disk.make_room()


@need_root
def test_a_write_gets_what_free_slots_keep_where_no_room_is_to_be_left_free(small_disk: Disk) -> None:
    with opened(small_disk.path / "store", Limits(max_size=1 << 40, grace=0.0, min_free=0)) as fs:
        for key in "ABC":
            kernel(fs, key, 100_000)
        fs.settle()
        ino = write(fs, "triton/new/file", b"")
        small_disk.fill()
        content = os.urandom(500_000)
        assert fs.write(ino, 0, content) == len(content)
        assert fs.read(ino, 0, len(content)) == content
        assert alive(fs) == ["A", "B", "C"]
        small_disk.make_room()


@need_root
def test_a_turn_makes_room_where_even_a_fold_finds_none(tmp_path: Path) -> None:
    limits = Limits(max_size=1 << 40, grace=0.0, min_free=2 << 20)
    with ext4(tmp_path, "disk", megabytes=48) as disk, opened(disk.path / "store", limits) as fs:
        for number in range(40):
            write(fs, f"triton/{number}/kernel.ptx", os.urandom(200_000))
        fs.settle()
        disk.fill()
        for number in range(1500):  # a fold of these needs more than the reserve
            folder(fs, f"triton/new{number}/kernel")
        slack = fs.store.slots.slack_bytes()
        assert slack > 4 << 20
        fs.evictor.turn()
        assert disk.free > slack // 2
        disk.make_room()


def test_files_that_wait_are_sealed_in_time_for_the_strictest_limit(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        for number in range(40):
            write(fs, f"triton/K/{number}", os.urandom(1 << 20))
        assert not fs.room.holds_much_unsealed()
        for limits in (Limits(max_size=600 << 20), Limits(max_size=1 << 40, max_size_per_uid=600 << 20)):
            fs.set_limits(limits)
            assert fs.room.holds_much_unsealed()
        fs.set_limits(Limits(max_size=800 << 20))
        assert not fs.room.holds_much_unsealed()


@need_root
def test_settling_on_a_full_disk_gives_up_and_says_so_once(small_disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    with opened(small_disk.path / "store", Limits(max_size=1 << 40, grace=0.0, min_free=0)) as fs:
        for number in range(300):
            write(fs, f"triton/K/{number}", os.urandom(4000))
        fs.store.fold()
        small_disk.fill(leave=100_000)
        fs.settle()
        assert fs.sealer.waiting() > 200
        assert len([line for line in caplog.messages if "could not be sealed" in line]) == 1
        small_disk.make_room()
        fs.settle()
        assert fs.sealer.waiting() == 0


def test_a_pinned_entry_stays_and_grows_old_again_when_let_go(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, *"ABCDEF", size=200_000)
        administration = Administration(fs)
        administration.pin(["triton/A"])
        shrink(fs, 0.5)
        assert "A" in alive(fs)
        administration.pin(["triton/A"], pinned=False)
        shrink(fs, 0.7)
        assert "A" not in alive(fs)


def test_an_entry_within_its_grace_stays(tmp_path: Path) -> None:
    with opened(tmp_path / "store", Limits(max_size=1 << 40, grace=3600.0)) as fs:
        filled(fs, "A", "B", size=100_000)
        fs.set_limits(Limits(max_size=int(fs.store.used_bytes() / 0.96), grace=3600.0, min_free=0))
        assert fs.evictor.turn() == 0
        assert alive(fs) == ["A", "B"]


def test_an_entry_being_written_stays(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "A", "B", "C", size=200_000)
        ino, _ = fs.create(ROOT, find(fs, "triton/A"), b"more.bin", 0o644)
        shrink(fs, 0.6)
        assert "A" in alive(fs)
        assert "B" not in alive(fs)
        fs.forget(ino, 1)


@pytest.mark.parametrize("temporary", [".7.1.tmp", "tmp.pid_7_x/kernel.ptx"])
def test_an_entry_stays_between_its_last_write_and_the_rename(tmp_path: Path, temporary: str) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, *"ABCDEF", size=200_000)
        ino = write(fs, f"triton/G/{temporary}", os.urandom(50_000))
        fs.settle()
        shrink(fs, 0.05)
        assert alive(fs) == ["G"]
        assert not fs.evictor.evict(fs.nodes.get(ino).entry, doom=True)
        rename(fs, f"triton/G/{temporary}", "triton/G/kernel.ptx")
        if "/" in temporary:
            fs.rmdir(ROOT, find(fs, "triton/G"), b"tmp.pid_7_x")
        shrink(fs, 0.05)
        assert alive(fs) == [], "it is complete, and nobody uses it"


def test_what_another_user_began_in_an_entry_does_not_keep_it(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "A")
        write(fs, "triton/A/.7.1.tmp", b"x", user(1000))
        assert fs.evictor.evict(find(fs, "triton/A"))


def test_a_temporary_file_may_go_while_its_entry_is_looked_at(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "A")
        write(fs, "triton/A/.7.1.tmp", b"x", user(1000))
        remaining = write(fs, "triton/A/.8.1.tmp", b"x", user(1000))
        look = fs.evictor._remover.inodes

        def look_and_lose_one(entry: int, names: list[Name]) -> array[int]:
            found = look(entry, names)
            fs.unlink(ROOT, entry, b".7.1.tmp")
            return found

        fs.evictor._remover.inodes = look_and_lose_one  # type: ignore[method-assign]
        assert remaining in fs.temporaries
        assert fs.evictor.evict(find(fs, "triton/A"))


def test_what_was_begun_long_ago_does_not_keep_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        write(fs, "triton/A/.7.1.tmp", b"x")
        fs.settle()
        assert not fs.evictor.evict(find(fs, "triton/A"))
        monkeypatch.setattr(eviction, "UNFINISHED_SECONDS", 0.0)
        assert fs.evictor.evict(find(fs, "triton/A"))


def test_an_entry_that_the_kernel_holds_is_used_now(tmp_path: Path) -> None:
    """The kernel never forgets the inode of an open or mapped file, whatever it is told."""
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "A", "B", "C", size=200_000)
        held = fs.lookup(ROOT, find(fs, "triton/A"), b"kernel.cubin")
        assert held is not None
        shrink(fs, 0.6)
        assert "A" in alive(fs)
        assert "B" not in alive(fs)
        fs.forget(held, 1)


def test_an_entry_that_is_looked_up_when_it_is_about_to_go_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "A", "B")
        entries = [find(fs, "triton/A"), find(fs, "triton/B")]
        held: list[int | None] = []

        def look_up_meanwhile(things: list[Probed], is_known: Callable[[int], bool]) -> bool:
            assert things == []  # nobody used it a moment ago
            held.append(fs.lookup(ROOT, entries[0], b"kernel.cubin"))
            return False

        monkeypatch.setattr(fs.evictor._prober, "probe", look_up_meanwhile)
        assert fs.evictor.evict_all(entries) == {entries[1]}
        assert alive(fs) == ["A"]
        assert held[0] is not None
        fs.forget(held[0], 1)


def test_requests_go_first_while_nobody_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("kcachefs.core.eviction.time.sleep", pauses.append)
    kernel = Kernel()
    with opened(tmp_path / "store", NO_GRACE, kernel) as fs:
        filled(fs, *"ABCD")
        entries = [find(fs, f"triton/{key}") for key in "ABCD"]
        fs.evictor.evict_all(entries[:1])
        assert pauses == [TURN_SECONDS]  # no request came, but one may wait for the lock
        requests = itertools.count(1)
        monkeypatch.setattr(kernel, "request_count", lambda: next(requests))
        fs.evictor.evict_all(entries[1:3])
        assert len(pauses) == 3
        assert all(BREATH_SECONDS <= pause <= BREATH_MAX_SECONDS for pause in pauses[1:])
        shrink(fs, 0.01)
        assert alive(fs) == []
        assert len(pauses) == 3  # above the quota somebody may be waiting for room


def test_an_eviction_that_somebody_asked_for_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, told = BATCH + 1, set[tuple[int, int]]()
    with opened(tmp_path / "store", NO_GRACE) as fs:
        for number in range(count):
            kernel(fs, f"K{number}", 10)
        fs.settle()
        entries = [find(fs, f"triton/K{number}") for number in range(count)]
        monkeypatch.setattr(fs.evictor._remover, "breathe", lambda _: told.add(fs.evictor.progress))
        assert fs.evictor.evict_all(entries) == set(entries)
        assert told == {(0, count), (BATCH, count)}
        assert fs.evictor.progress == (0, 0)


def test_an_eviction_leaves_most_of_the_time_to_requests_until_room_gets_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longer it takes to evict an entry, the longer the pause: here a clock goes on by 2 ms at each look."""
    requests, clock, pauses = itertools.count(1), itertools.count(0.0, 0.002), list[float]()
    kernel = Kernel()
    with opened(tmp_path / "store", NO_GRACE, kernel) as fs:
        filled(fs, "LARGE", size=5_000_000)
        filled(fs, *"ABCDE", size=100)  # what is left of the quota is hardly more without them
        a, b, c, d, e = (find(fs, f"triton/{key}") for key in "ABCDE")
        monkeypatch.setattr(kernel, "request_count", lambda: next(requests))
        monkeypatch.setattr("kcachefs.core.removal.time.sleep", pauses.append)

        def evict_at(mark: float, entry: int) -> list[float]:
            """Evict it where that much of the quota is used; returns the pauses."""
            pauses.clear()
            fs.set_limits(Limits(max_size=int(fs.store.used_bytes() / mark), grace=0.0, min_free=0))
            with monkeypatch.context() as slow:
                slow.setattr(fs.evictor, "_oldest", lambda *_: [entry])
                slow.setattr("kcachefs.core.eviction.time.monotonic", lambda: next(clock))
                assert fs.evictor.turn(0.0) == 1
            return pauses[:]

        (gentle,) = evict_at((HIGH_WATER + BRISK_MARK) / 2, a)
        assert BREATH_TIMES * 0.002 <= gentle <= BREATH_MAX_SECONDS
        assert evict_at((BRISK_MARK + 1.0) / 2, b) == [BREATH_SECONDS]
        assert evict_at(1.1, c) == []
        with monkeypatch.context() as slow:
            slow.setattr("kcachefs.core.eviction.time.monotonic", lambda: next(clock) / 2)
            assert len(fs.evictor.evict_all([d, e])) == 2
        first, second = pauses  # before the first, both were probed
        assert first > second >= BREATH_TIMES * 0.001
        fs.evictor._remover.breathe(1.0)
        assert pauses[-1] == BREATH_MAX_SECONDS
        assert alive(fs) == ["LARGE"]


def test_the_pace_is_that_of_the_limit_that_is_nearest(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        for number in range(100):
            write(fs, f"triton/KEY/file{number}", b"%d" % number)
        fs.settle()
        files = sum(record.files for _, _, record in fs.namespaces.rows())
        for mark, pace in ((0.96, Pace.GENTLE), (0.98, Pace.BRISK), (1.1, Pace.AT_ONCE)):
            fs.set_limits(Limits(max_files=int(files / mark), grace=0.0, min_free=0))
            assert fs.evictor._pace() is pace
            size = int(fs.store.used_bytes() / mark)
            fs.set_limits(Limits(max_size=size, max_files=2 * files, grace=0.0, min_free=0))
            assert fs.evictor._pace() is pace


@pytest.mark.parametrize("is_written_down", [False, True])
def test_what_is_used_after_it_was_probed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_written_down: bool
) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "A", "B")
        folder, a, b = find(fs, "triton"), find(fs, "triton/A"), find(fs, "triton/B")
        assert fs.lookup(ROOT, folder, b"B") == b
        fs.uses.flush()

        def let_go(parent: int, name: bytes) -> None:
            if name == b"B" and b in fs.nodes.lookups:
                fs.forget(b, fs.nodes.lookups[b])

        def use_it(_: float = 0.0) -> None:
            assert fs.lookup(ROOT, folder, b"B") == b
            if is_written_down:
                fs.uses.flush()

        monkeypatch.setattr(fs.evictor, "_name_gone", let_go)
        monkeypatch.setattr(fs.evictor._remover, "breathe", use_it)
        assert fs.evictor.evict_all([a, b]) == {a}
        assert alive(fs) == ["B"]
        fs.forget(b, fs.nodes.lookups[b])


def test_what_is_evicted_by_force_stays_readable_to_who_has_it_open(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "A")
        held = fs.lookup(ROOT, find(fs, "triton/A"), b"kernel.cubin")
        assert held is not None
        content = fs.read(held, 0, 1 << 20)
        [info] = Administration(fs).ls()
        assert fs.evictor.evict(info.entry, force=True)
        fs.store.compact()
        assert not exists(fs, "triton/A")
        assert fs.read(held, 0, 1 << 20) == content
        assert alive(fs) == []
        fs.forget(held, 1)
        assert fs.store.objects.totals().objects == 0


def test_whatever_an_entry_holds_the_accounts_are_right_when_it_is_gone(tmp_path: Path) -> None:
    """Files of two users, equal ones, one that is not sealed, one with two names inside, one with a name outside."""
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "STAYS")
        namespace = find(fs, "triton")
        before = [fs.table.counts(namespace), *(record for uid in (0, 1000) for _, record in fs.table.shares_of(uid))]
        for number in range(5):
            write(fs, f"triton/GOES/{number}", b"%d" % (number // 2) * 1000, user(1000 if number % 2 else 0))
        entry = find(fs, "triton/GOES")
        fs.link(ROOT, find(fs, "triton/GOES/2"), entry, b"again")
        fs.link(ROOT, find(fs, "triton/GOES/3"), folder(fs, "inductor/xy"), b"outside")
        fs.settle()
        write(fs, "triton/GOES/unsealed", b"not yet")
        held = fs.lookup(ROOT, entry, b"4")
        assert held is not None
        assert fs.evictor.evict(entry, force=True)
        assert fs.read(held, 0, 10_000) == b"2" * 1000, "the kernel still knows it"
        for ino in (held, find(fs, "inductor/xy/outside")):
            fs.forget(ino, 2)
        fs.settle()
        after = [fs.table.counts(namespace), *(record for uid in (0, 1000) for _, record in fs.table.shares_of(uid))]
        sums = [(one.entries, one.files, one.plain, one.stored) for one in before]
        assert [(one.entries, one.files, one.plain, one.stored) for one in after][: len(sums)] == sums
        assert alive(fs) == ["STAYS", "outside"]


def test_ceilings_and_floors_of_namespaces(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, *"ABCD", size=100_000)
        for number in range(4):
            write(fs, f"cupy/{number}.cubin", os.urandom(100_000))
            fs.settle()
        fs.set_limits(Limits(max_size=1 << 40, grace=0.0, min_free=0, ceilings={"cupy": 250_000}))
        fs.evictor.turn()
        assert not exists(fs, "cupy/0.cubin")
        assert exists(fs, "cupy/3.cubin")
        assert {"A", "B", "C", "D"} < set(alive(fs))
        used = fs.store.used_bytes()
        fs.set_limits(Limits(max_size=int(used * 0.5), grace=0.0, min_free=0, floors={"cupy": 1 << 30}))
        while fs.evictor.turn():
            pass
        assert exists(fs, "cupy/3.cubin")
        assert not exists(fs, "triton/A")


def test_a_namespace_just_above_its_floor_loses_one_entry(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, *"ABCDE")
        stored = sum(record.stored for _, label, record in fs.namespaces.rows() if label == "triton")
        fs.set_limits(Limits(max_size=1 << 20, grace=0.0, min_free=1 << 50, floors={"triton": stored - 1}))
        while fs.evictor.turn():
            pass
        assert alive(fs) == ["B", "C", "D", "E"]


def test_entries_in_use_leave_room_above_a_floor_for_others(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, *"ABCDE")
        [(number, record)] = [(n, record) for n, label, record in fs.namespaces.rows() if label == "triton"]
        fs.set_limits(Limits(max_size=1 << 40, grace=0.0, min_free=0, floors={"triton": record.stored - 1}))
        entries = list(fs.evictor.order.of_namespace(number, 5, 0.0))
        fs.evictor._in_use = frozenset(entries[:1])
        assert fs.evictor.anything_left()
        fs.evictor._in_use = frozenset(entries[1:])
        assert set(fs.evictor.in_use_of(0)) <= set(entries[1:])
        fs.evictor._in_use = frozenset(entries)
        assert len(fs.evictor.in_use_of(0)) == 5
        assert not fs.evictor.anything_left()


def test_a_quota_of_files(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, *"ABCDE")
        fs.set_limits(Limits(max_size=1 << 40, max_files=15, grace=0.0, min_free=0))
        fs.evictor.turn()
        assert alive(fs) == ["D", "E"]


def test_above_a_quota_of_files_entries_are_safe_for_a_shorter_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "SHORT_GRACE_SECONDS", 0.0)
    limits = Limits(max_size=1 << 40, grace=3600.0, min_free=0)
    with opened(tmp_path / "store", limits) as fs:
        filled(fs, *"ABCDE")
        files = sum(record.files for _, _, record in fs.namespaces.rows())
        fs.set_limits(msgspec.structs.replace(limits, max_files=files))
        fs.evictor.turn()
        assert alive(fs) == list("ABCDE"), "within the quota the whole grace period counts"
        fs.set_limits(msgspec.structs.replace(limits, max_files=files - 1))
        fs.evictor.turn()
        assert len(alive(fs)) < 5


def test_writing_fails_only_when_nothing_is_left_to_evict(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "A", size=100_000)
        Administration(fs).pin(["triton/A"])
        fs.set_limits(Limits(max_size=1000, grace=0.0, min_free=0))
        fs.evictor.turn()
        assert fs.room.is_full
        Administration(fs).pin(["triton/A"], pinned=False)
        fs.evictor.turn()
        assert not exists(fs, "triton/A")


def test_writing_fails_when_all_that_is_left_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "A", "B", size=100_000)
        held = fs.lookup(ROOT, find(fs, "triton/A"), b"kernel.cubin")
        assert held is not None
        fs.set_limits(Limits(max_size=1000, grace=3.0, min_free=0))
        fs.evictor.turn()
        was_full = fs.room.is_full
        now = time.time_ns
        monkeypatch.setattr("kcachefs.core.eviction.time.time_ns", lambda: now() + int(3600e9))
        fs.evictor.turn(seconds=60)
        assert alive(fs) == ["A"]
        assert fs.room.is_full
        assert not was_full, "while both might still go when their grace was over"
        fs.forget(held, 1)
        monkeypatch.setattr("kcachefs.core.eviction.time.time_ns", lambda: now() + int(7200e9))
        fs.evictor.turn()
        assert alive(fs) == []


def test_writing_fails_also_when_what_is_in_use_is_tried_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "A", size=100_000)
        assert fs.lookup(ROOT, find(fs, "triton/A"), b"kernel.cubin") is not None
        fs.set_limits(Limits(max_size=1000, grace=0.0, min_free=0))
        fs.evictor.certain_seconds = 0.2
        now, hours = time.time_ns, itertools.count()
        monkeypatch.setattr("kcachefs.core.eviction.time.time_ns", lambda: now() + next(hours) * int(3600e9))

        def is_full() -> bool:
            fs.evictor.turn()
            return fs.room.is_full

        until(is_full, "the evictor is certain that nothing can go")


def test_a_file_that_was_synced_and_rewritten_takes_its_room_once_when_it_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        size = 3 << 20
        ino = write(fs, "cupy/database", os.urandom(size))
        fs.sync(ino)
        fs.settle()
        once = fs.store.used_bytes()
        fs.write(ino, 0, b"again")
        assert fs.store.used_bytes() > once + size // 2, "what was synced stays until the rest is safe, too"
        fs.set_limits(Limits(max_size=int(once * 1.2) + 8192, grace=0.0, min_free=0))
        assert fs.room.excess(1.0) > 0
        fs.evictor.turn()
        assert fs.room.excess(1.0) > 0, "it was written just now"
        now = time.time_ns
        monkeypatch.setattr("kcachefs.core.eviction.time.time_ns", lambda: now() + int(3e9))

        def has_room() -> bool:
            fs.evictor.turn()
            return fs.room.excess(1.0) <= 0

        until(has_room, "it takes its room once")
        assert not fs.room.is_full
        assert fs.read(ino, 0, 5) == b"again"


def rewritten(fs: Filesystem, size: int = 3 << 20) -> int:
    """A file that was synced and written again."""
    ino = write(fs, "cupy/database", os.urandom(size))
    fs.sync(ino)
    fs.settle()
    fs.write(ino, 0, b"again")
    return ino


def test_a_rewritten_file_that_cannot_be_sealed_keeps_nothing_from_being_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, *"ABCDEFGH", size=200_000)
        rewritten(fs)
        with monkeypatch.context() as broken:
            broken.setattr(fs.store.objects, "stage_file", Mock(side_effect=OSError(errno.EIO, "as of a broken disk")))
            now = time.time_ns
            broken.setattr("kcachefs.core.eviction.time.time_ns", lambda: now() + int(3e9))
            fs.set_limits(Limits(max_size=int(fs.store.used_bytes() * 0.9), grace=0.0, min_free=0))
            while fs.evictor.turn():
                pass
            assert fs.room.excess(1.0) <= 0
        assert 0 < len(set(alive(fs)) & set("ABCDEFGH")) < 8


def test_a_rewritten_file_is_not_sealed_early_because_others_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        rewritten(fs)
        now = time.time_ns
        monkeypatch.setattr("kcachefs.core.eviction.time.time_ns", lambda: now() + int(3e9))
        before = fs.store.bytes_by_kind()["unsealed"]
        fs.set_limits(Limits(max_size=1 << 40, grace=0.0, min_free=1 << 50))
        fs.evictor.turn()
        assert fs.room.excess(1.0) > 0
        fs.set_limits(Limits(max_size=1 << 20, grace=0.0, min_free=1 << 50))
        fs.evictor.turn()
        assert fs.store.bytes_by_kind()["unsealed"] == before, "there is no room to do it"


def test_temporary_names_of_dead_writers_are_reaped(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        write(fs, "inductor/ab/.4711.1.tmp", b"half a module", user(0, pid=0))
        write(fs, "triton/KEY/tmp.pid_4711_x/kernel.ptx", b"half a kernel", user(0, pid=0))
        write(fs, "inductor/ab/.4712.1.tmp", b"being written", user(0, pid=os.getpid()))
        assert fs.reaper.reap() == 0
        fs.reaper.seconds = fs.reaper.unknown_seconds = -1.0
        assert fs.reaper.reap() == 2
        assert not exists(fs, "inductor/ab/.4711.1.tmp")
        assert not exists(fs, "triton/KEY/tmp.pid_4711_x")
        assert exists(fs, "inductor/ab/.4712.1.tmp")


def test_what_a_thread_of_a_living_process_began_is_not_reaped(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:

        def begin() -> None:
            write(fs, "inductor/ab/.4712.1.tmp", b"being written", user(0, pid=threading.get_native_id()))

        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
        until(lambda: not os.path.exists(f"/proc/{thread.native_id}"), "the thread is gone from the kernel's list too")
        fs.reaper.seconds = -1.0
        assert fs.reaper.reap() == 0
        assert exists(fs, "inductor/ab/.4712.1.tmp")


def test_what_others_went_on_with_is_not_reaped(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        below = write(fs, "triton/KEY/tmp.pid_4711_x/kernel.ptx", b"half a kernel")
        fs.set_attributes(ROOT, below, mtime=time.time_ns() - int(61e9))
        ino = find(fs, "triton/KEY/tmp.pid_4711_x")
        fs.reaper.seconds = 60.0
        with fs.nodes.change() as txn:
            txn.put(temporary_key(ino), pack_number(time.time_ns() - int(61e9)) + pack_number(WRITER))
        assert fs.reaper.reap() == 0
        fs.set_attributes(ROOT, ino, mtime=time.time_ns() - int(61e9))
        assert fs.reaper.reap() == 1


@pytest.mark.parametrize("size", [100, SLOT_SIZE + 1], ids=["slot", "spool"])
def test_a_folder_is_not_reaped_while_somebody_works_below_it(tmp_path: Path, size: int) -> None:
    """As after `mktemp -d`, whose process ends at once."""
    with opened(tmp_path / "store", NO_GRACE) as fs:
        ino = write(fs, "triton/KEY/tmp.x/below/kernel.ptx", bytes(size))
        temporary, long_ago = find(fs, "triton/KEY/tmp.x"), time.time_ns() - int(61e9)
        with fs.nodes.change() as txn:
            txn.put(temporary_key(temporary), pack_number(long_ago) + pack_number(WRITER))
        for old in (temporary, find(fs, "triton/KEY/tmp.x/below")):
            fs.set_attributes(ROOT, old, mtime=long_ago)
        fs.nodes.get(ino).mtime = long_ago  # for a file that is being written, its spool file counts
        fs.write(ino, 0, b"more")
        assert fs.reaper.reap() == 0
        fs.set_attributes(ROOT, ino, mtime=long_ago)
        fs.hold(ino)  # somebody has it mapped, to read what was written
        assert fs.reaper.reap() == 0
        fs.forget(ino, 1)
        assert fs.reaper.reap() == 1
        assert not exists(fs, "triton/KEY/tmp.x")


def test_what_the_kernel_only_remembers_is_reaped(tmp_path: Path) -> None:
    class Forgetful(Kernel):
        def name_gone(self, parent: int, name: bytes, shown: int) -> None:
            if ino in fs.nodes.lookups:
                fs.forget(ino, 1)

    with opened(tmp_path / "store", NO_GRACE, Forgetful()) as fs:
        write(fs, "triton/KEY/tmp.x/kernel.ptx", b"half a kernel")
        ino = fs.hold(find(fs, "triton/KEY/tmp.x/kernel.ptx"))
        fs.reaper.seconds = -1.0
        assert fs.reaper.reap() == 1


def test_what_is_given_its_final_name_while_it_is_looked_at_is_not_reaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        ino = write(fs, "inductor/ab/.4712.1.tmp", b"a module")
        names_of = fs.walk.names_of

        def names_before_a_rename(inodes: list[int]) -> dict[int, list[Name]]:
            found = names_of(inodes)
            rename(fs, "inductor/ab/.4712.1.tmp", "inductor/ab/cab.py")
            return found

        monkeypatch.setattr(fs.walk, "names_of", names_before_a_rename)
        fs.reaper.seconds = -1.0
        assert fs.reaper.reap() == 0
        monkeypatch.undo()
        assert find(fs, "inductor/ab/cab.py") == ino
        assert fs.attributes(find(fs, "inductor/ab")).size == 1


def link(fs: Filesystem, path: str, new: str) -> None:
    above, _, name = new.rpartition("/")
    ino = find(fs, path)
    fs.link(ROOT, ino, folder(fs, above), name.encode())
    fs.forget(ino, 1)


def remove(fs: Filesystem, path: str) -> None:
    """As `rm -rf` does."""
    ino = find(fs, path)
    for below, parent, name in reversed(list(fs.walk.below(ino))):
        (fs.rmdir if fs.nodes.get(below).is_dir else fs.unlink)(ROOT, parent, name)
    fs.rmdir(ROOT, find(fs, path.rpartition("/")[0]), path.rpartition("/")[2].encode())


@pytest.mark.parametrize("target", ["triton/B/linked", "cupy/linked.cubin", "inductor/linked.lock"])
@pytest.mark.parametrize("is_evicted", [True, False], ids=["evicted", "removed"])
def test_a_file_that_is_linked_out_of_an_entry_outlives_it_and_is_counted_where_it_is(
    tmp_path: Path, target: str, is_evicted: bool
) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "A")
        entry, ino = find(fs, "triton/A"), find(fs, "triton/A/kernel.ptx")
        content = fs.read(ino, 0, 1 << 20)
        link(fs, "triton/A/kernel.ptx", target)
        if is_evicted:
            assert fs.evictor.evict(entry)
        else:
            remove(fs, "triton/A")
        assert fs.store.catalog.get(entry_key(entry)) is None
        assert find(fs, target) == ino
        assert fs.read(ino, 0, 1 << 20) == content
        expected = {"triton/B/linked": ["B"], "cupy/linked.cubin": ["linked"]}
        assert alive(fs) == expected.get(target, [])


def test_a_file_published_by_a_link_is_counted(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        write(fs, "inductor/ab/.4711.1.tmp", b"a module")
        link(fs, "inductor/ab/.4711.1.tmp", "inductor/cd/ccd.py")
        fs.unlink(ROOT, find(fs, "inductor/ab"), b".4711.1.tmp")
        fs.settle()
        assert alive(fs) == ["ccd"]


def test_entries_that_hold_only_what_is_elsewhere_keep_no_room_from_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of an earlier version may be full of them; and names that are not found quickly still make some."""
    with opened(tmp_path / "store", NO_GRACE) as fs:
        strays = [f"{number:02}" for number in range(BATCH + 1)]
        for key in strays:
            write(fs, f"triton/{key}/kernel.ptx", os.urandom(2000))
            link(fs, f"triton/{key}/kernel.ptx", f"own/kept/{key}")
        fs.settle()
        entries = [find(fs, f"triton/{key}") for key in strays]
        with monkeypatch.context() as unseen:
            unseen.setattr(fs.tree._membership, "unlinked", lambda *arguments: None)
            for key in strays:
                remove(fs, f"triton/{key}")
        filled(fs, "A", "B", size=200_000)
        assert all(fs.store.catalog.get(entry_key(entry)) for entry in entries)
        assert not fs.evictor.evict(entries[0]), "nothing of it was there"
        assert fs.store.catalog.get(entry_key(entries[0])) is None
        fs.store.slots.trim()
        fs.set_limits(Limits(max_size=int(fs.store.used_bytes() * 0.8), grace=0.0, min_free=0))
        assert fs.evictor.turn(seconds=60) == 1
        assert alive(fs) == ["B", "kept"]
        assert not any(fs.store.catalog.get(entry_key(entry)) for entry in entries)
        assert Administration(fs).stats().namespaces["triton"].evictions == 1
        [kept] = (info for info in Administration(fs).ls() if info.namespace == "own")
        assert kept.files == len(strays)


def test_a_ceiling_is_no_work_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "A", "B")
        fs.set_limits(Limits(max_size=1 << 40, grace=0.0, min_free=0, ceilings={"triton": 1}))
        tries: list[list[int]] = []

        def pretend(batch: list[int], why: str) -> set[int]:
            tries.append(batch)
            assert len(tries) < 100
            return set(batch)

        monkeypatch.setattr(fs.evictor, "_evict_batch", pretend)
        fs.evictor.turn(seconds=0)
        assert len(tries) == 1


def test_prune_evicts_the_unused_the_old_and_the_too_much(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, *"ABC", size=50_000)
        look_up(fs, "triton/B/kernel.ptx", READER)
        administration = Administration(fs)
        assert administration.prune(unused=True, dry_run=True).entries == ["triton/A", "triton/C"]
        assert alive(fs) == ["A", "B", "C"]
        assert administration.prune(older_than=3600).entries == []
        assert administration.prune(unused=True).entries == ["triton/A", "triton/C"]
        assert alive(fs) == ["B"]
        assert administration.prune(max_size=0).entries == ["triton/B"]


def test_pinned_entries_count_for_the_size_that_prune_leaves(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, *"ABCD", size=50_000)
        administration = Administration(fs)
        administration.pin(["triton/A"])
        size = next(info.stored_bytes for info in administration.ls() if info.path == "triton/A")
        for dry_run in (True, False):
            outcome = administration.prune(max_size=2 * size + 5000, dry_run=dry_run)
            assert (outcome.entries, outcome.refused) == (["triton/B", "triton/C"], [])
        assert alive(fs) == ["A", "D"]
        for dry_run in (True, False):
            outcome = administration.prune(max_size=size // 2, dry_run=dry_run)
            assert (outcome.entries, outcome.refused) == (["triton/D"], ["triton/A"]), "it cannot hold, and why is told"


def test_what_somebody_else_evicts_meanwhile_is_told_as_gone(tmp_path: Path) -> None:
    class Hasty(Kernel):
        def name_gone(self, parent: int, name: bytes, shown: int) -> None:
            if name == b"A":  # it was evicted, and the next one has not had its turn
                nested.append(Administration(fs).evict(["triton/B"]))

    nested: list[Outcome] = []
    with opened(tmp_path / "store", NO_GRACE, Hasty()) as fs:
        filled(fs, *"ABC")
        Administration(fs).pin(["triton/C"])
        outcome = Administration(fs).evict(["triton/*"])
        assert [one.entries for one in nested] == [["triton/B"]]
        assert (outcome.entries, outcome.gone, outcome.refused) == (["triton/A"], ["triton/B"], ["triton/C"])


def test_two_who_evict_the_same_entries_share_them(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs, ThreadPoolExecutor(2) as pool:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for number in range(150):
                write(fs, f"triton/{number}/kernel.json", b"%d" % number)
            fs.settle()
            evicting = [pool.submit(Administration(fs).evict, ["triton/*"]) for _ in range(2)]
            one, other = (each.result() for each in evicting)
        finally:
            sys.setswitchinterval(interval)
        assert alive(fs) == []
        assert sorted(one.entries + other.entries) == sorted(f"triton/{number}" for number in range(150))
        assert one.refused == other.refused == []


def test_nobody_is_told_that_a_pinned_entry_would_go(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "A")
        Administration(fs).pin(["triton/A"])
        for dry_run in (True, False):
            outcome = Administration(fs).evict(["triton/A"], dry_run=dry_run)
            assert (outcome.entries, outcome.stored_bytes, outcome.refused) == ([], 0, ["triton/A"])


def test_evict_names_what_it_does_not_find(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, "A")
        with pytest.raises(UsageError, match="no entry is called that"):
            Administration(fs).evict(["triton/B"])
        assert Administration(fs).evict(["triton/*"]).entries == ["triton/A"]
        assert folder(fs, "triton")


def test_uses_that_a_full_disk_does_not_take_are_uses_all_the_same(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, *"ABC")
        fs.uses.flush()
        look_up(fs, "triton/A/kernel.cubin", READER)
        with nothing_acknowledged(fs):
            fs.uses.flush()
        entries = [find(fs, f"triton/{key}") for key in "BCA"]
        assert entries[-1] in fs.uses.last
        fs.uses.flush()
        assert fs.statistics().total.hits == 1
        assert fs.evictor._oldest(0.0) == entries


def test_eviction_goes_on_though_uses_cannot_be_written_down(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        filled(fs, *"ABCDEFGH", size=200_000)
        look_up(fs, "triton/A/kernel.cubin", READER)
        fs.store.slots.trim()
        fs.set_limits(Limits(max_size=fs.store.used_bytes() // 2, grace=0.0, min_free=0))
        with refused(fs, lambda changes: not any(key[:1] == b"i" and raw is None for key, raw in changes.items())):
            assert fs.evictor.turn() > 0
