"""A clock that is wrong. What was used while it was ahead ages from now on and is evicted in its turn, in order."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from pathlib import Path

import pytest

from kcachefs.core import Filesystem, future_uses
from kcachefs.core.administration import Administration
from kcachefs.core.entry_info import EntryInfo
from kcachefs.core.limits import Limits
from kcachefs.store.fsck import run as fsck
from kcachefs.store.history_records import SampleRecord
from kcachefs.store.journal import Changes
from kcachefs.store.records import Content
from tests.core.clocks import Clock, clock
from tests.core.trees import READER, find, kernel, look_up, opened, user, write

__all__ = ["clock"]

NO_GRACE = Limits(max_size=1 << 40, grace=0.0)
DAY = 86400.0
YEAR = 365 * DAY


def make(fs: Filesystem, *paths: str) -> None:
    """Entries in different namespaces, used in this order."""
    for path in paths:
        write(fs, f"{path}/kernel.ptx", path.encode() * 1000)
        fs.settle()


def listed(fs: Filesystem) -> list[EntryInfo]:
    return sorted(Administration(fs).ls(names=False), key=lambda info: info.used)


def order(fs: Filesystem) -> list[str]:
    """Which entry would go first, and next."""
    fs.uses.flush()
    records = [fs.table.get(entry) for entry in fs.evictor.order.oldest(99, 0.0, {})]
    return [fs.namespaces.path_of(record)[-1].decode() for record in records if record is not None]


def test_entries_of_the_future_are_evicted_before_those_that_were_used_since(tmp_path: Path, clock: Clock) -> None:
    clock.ahead = YEAR
    with opened(tmp_path / "store", NO_GRACE) as fs:
        make(fs, "triton/A", "inductor/fxgraph/B", "triton/C")
        first = order(fs)
    clock.ahead = 0.0
    with opened(tmp_path / "store", NO_GRACE) as fs:
        make(fs, "triton/NEW")
        assert order(fs) == [*first, "NEW"]
        assert all(info.used <= time.time() for info in listed(fs))
        look_up(fs, "triton/A/kernel.ptx", READER)
        assert order(fs) == [*first[1:], "NEW", "A"]
        assert fs.statistics().namespaces["triton"].last_used <= time.time()


@pytest.mark.parametrize("ahead", [1.0, 3600.0])
def test_the_first_use_after_the_clock_was_set_back_has_a_time_of_its_own(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    monkeypatch.setattr(future_uses, "WATCHED_NS", 600 * 10**9)  # until then nothing is moved
    clock.ahead = ahead
    with opened(tmp_path / "store", NO_GRACE) as fs:
        make(fs, "triton/A", "triton/B")
    clock.ahead = 0.0
    with opened(tmp_path / "store", NO_GRACE) as fs:
        look_up(fs, "triton/A/kernel.ptx", READER)
        assert order(fs) == ["B", "A"]
    assert fsck(tmp_path / "store").findings == []


def test_prune_takes_what_was_used_in_the_future_in_order(tmp_path: Path, clock: Clock) -> None:
    clock.ahead = YEAR
    with opened(tmp_path / "store", NO_GRACE) as fs:
        make(fs, "triton/A", "triton/B", "triton/C")
        for name in "AB":
            look_up(fs, f"triton/{name}/kernel.ptx", READER)
            fs.uses.flush()
    clock.ahead = 0.0
    with opened(tmp_path / "store", NO_GRACE) as fs:
        held = sum(info.stored_bytes for info in listed(fs))
        assert Administration(fs).prune(max_size=held - 1).entries == ["triton/C"]


def test_they_age_from_now_on(tmp_path: Path, clock: Clock) -> None:
    clock.ahead = YEAR
    with opened(tmp_path / "store", NO_GRACE) as fs:
        make(fs, "triton/A", "triton/B")
    clock.ahead = 0.0
    with opened(tmp_path / "store", NO_GRACE) as fs:
        assert Administration(fs).prune(older_than=DAY, dry_run=True).entries == []
    clock.ahead = 2 * DAY
    with opened(tmp_path / "store", NO_GRACE) as fs:
        assert len(Administration(fs).prune(older_than=DAY).entries) == 2


def test_a_clock_that_is_set_back_under_a_mount_does_the_same(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        make(fs, "triton/A", "triton/B")
        clock.ahead = YEAR
        make(fs, "triton/C")
        look_up(fs, "triton/A/kernel.ptx", READER)
        fs.uses.flush()
        look_up(fs, "triton/B/kernel.ptx", READER)  # not written down when the clock is set
        clock.ahead = 0.0
        make(fs, "triton/NEW")
        assert order(fs) == ["C", "A", "B", "NEW"]
        assert all(info.used <= time.time() for info in listed(fs))


def test_many_are_moved_in_turns_and_keep_their_order(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.ahead = YEAR
    with opened(tmp_path / "store", NO_GRACE) as fs:
        make(fs, *(f"triton/{name}" for name in "GFEDCBA"))
    clock.ahead = 0.0
    monkeypatch.setattr(future_uses, "TURN", 3)
    monkeypatch.setattr(future_uses, "_CHUNK", 2)
    monkeypatch.setattr(future_uses, "_PAGE", 1)
    with opened(tmp_path / "store", NO_GRACE) as fs:
        left = []
        for _ in range(4):
            fs.uses.flush()
            fs.store.fold()
            records = [fs.table.get(info) for info in fs.evictor.order.oldest(99, -2 * YEAR, {})]
            left.append(sum(record is not None and record.used > time.time_ns() for record in records))
        assert left == [4, 1, 0, 0]
        assert order(fs) == [*"GFEDCBA"]


def test_a_healthy_store_is_not_written_to(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        make(fs, "triton/A", "triton/B")
    with opened(tmp_path / "store", NO_GRACE) as fs:
        commits: list[Changes] = []
        monkeypatch.setattr(fs.store.catalog, "commit", commits.append)
        fs.uses.flush()
        fs.uses.flush()
        assert commits == []
        monkeypatch.undo()


def test_a_clock_that_is_surely_behind_changes_nothing(tmp_path: Path, clock: Clock) -> None:
    """As after a boot without a battery: the network sets it right a moment later."""
    with opened(tmp_path / "store", NO_GRACE) as fs:
        make(fs, "triton/A", "triton/B")
        before = [(info.path, info.used) for info in listed(fs)]
    clock.ahead = -time.time() + DAY
    with opened(tmp_path / "store", NO_GRACE) as fs:
        assert [(info.path, info.used) for info in listed(fs)] == before


def test_an_entry_that_was_pinned_in_the_future_takes_its_place_when_it_is_unpinned(
    tmp_path: Path, clock: Clock
) -> None:
    clock.ahead = YEAR
    with opened(tmp_path / "store", NO_GRACE) as fs:
        make(fs, "triton/A")
        Administration(fs).pin(["triton/A"])
    clock.ahead = 0.0
    with opened(tmp_path / "store", NO_GRACE) as fs:
        Administration(fs).pin(["triton/A"], pinned=False)
        make(fs, "triton/NEW")
        assert order(fs) == ["A", "NEW"]


def test_a_process_that_listed_a_folder_in_the_future_can_still_use_what_is_in_it(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        make(fs, "triton/A")
        clock.ahead = YEAR
        make(fs, "triton/B")
        fs.uses.list_folder(find(fs, "triton"), 0, user(0, READER))
        clock.ahead = 0.0
        fs.uses.flush()
        look_up(fs, "triton/A/kernel.ptx", READER)
        assert [info.hits for info in listed(fs) if info.path == "triton/A"] == [1]


def test_the_log_says_that_the_clock_was_ahead(tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    clock.ahead = YEAR
    with opened(tmp_path / "store", NO_GRACE) as fs:
        make(fs, "triton/A")
    clock.ahead = 0.0
    with caplog.at_level(logging.WARNING), opened(tmp_path / "store", NO_GRACE) as fs:
        fs.uses.flush()
        fs.uses.flush()
    assert caplog.text.count("the clock was ahead: 1 last uses were in the future and count as of now") == 1


def test_a_clock_before_1970_stops_nothing(tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    clock.ahead = -time.time() - YEAR
    with opened(tmp_path / "store", NO_GRACE) as fs:
        kernel(fs, "A")  # under temporary names, whose records hold a time
        make(fs, "triton/B")
        Administration(fs).pin(["triton/B"])
        for key in "AB":
            look_up(fs, f"triton/{key}/kernel.ptx", READER)
        fs.write_down()
        assert [info.hits for info in listed(fs)] == [1, 1]
        Administration(fs).pin(["triton/B"], pinned=False)
        sample = SampleRecord.unpack(fs.store.history.samples[10].get(0) or b"")
        assert sum(row.hits for row in sample.rows) == 2
        fs.reset_statistics()
        assert len(Administration(fs).evict(["triton/A", "triton/B"]).entries) == 2
        assert len(fs.history.tombstones()) == 2
    assert caplog.text == ""


def test_a_clock_that_is_behind_for_a_moment_makes_nothing_old(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(future_uses, "WATCHED_NS", 600 * 10**9)
    with opened(tmp_path / "store", NO_GRACE) as fs:
        make(fs, "triton/A", "triton/B")
        clock.ahead = -200 * DAY
        fs.uses.flush()
    with opened(tmp_path / "store", NO_GRACE) as fs:
        fs.uses.flush()
        clock.ahead = 0.0
        fs.uses.flush()
        assert Administration(fs).prune(older_than=30 * DAY, dry_run=True).entries == []
        assert order(fs) == ["A", "B"]


@pytest.mark.parametrize("remounted", [False, True])
def test_a_full_store_makes_room_after_the_clock_was_set_back(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, remounted: bool
) -> None:
    """At once, not when the clock is believed: nothing is older than what was used before it was set."""
    monkeypatch.setattr(future_uses, "WATCHED_NS", 600 * 10**9)
    limits = Limits(max_size=2 << 20, min_free=0, grace=0.0)
    with contextlib.ExitStack() as mounts:
        fs = mounts.enter_context(opened(tmp_path / "store", limits))
        fill(fs, "A", "B", "C")
        clock.ahead = -DAY
        if remounted:
            mounts.close()
            fs = mounts.enter_context(opened(tmp_path / "store", limits))
        for name in "DEFGH":
            fill(fs, name)
            fs.evictor.turn()
        assert not fs.room.is_full
        assert fs.room.excess(1.0) <= 0
        assert order(fs) == [*"FGH"]


def test_what_was_used_since_the_clock_was_set_back_has_its_grace(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(future_uses, "WATCHED_NS", 600 * 10**9)
    with opened(tmp_path / "store", NO_GRACE) as fs:
        make(fs, "triton/A", "triton/B")
        clock.ahead = -DAY
        look_up(fs, "triton/A/kernel.ptx", READER)
        fs.uses.flush()
        assert order(fs) == ["B", "A"]
        assert fs.evictor.order.oldest(99, 60.0, {}) == []


def fill(fs: Filesystem, *names: str) -> None:
    for name in names:
        write(fs, f"triton/{name}/kernel.cubin", random.Random(name).randbytes(500_000))
        fs.settle()


def test_what_a_dead_writer_began_in_the_future_is_reaped(tmp_path: Path, clock: Clock) -> None:
    """As old as if it had been begun when the reaper first saw it: nobody can tell when that was."""
    clock.ahead = YEAR
    with opened(tmp_path / "store", NO_GRACE) as fs:
        write(fs, "triton/KEY/tmp.pid_4711_x/kernel.ptx", b"half a kernel", user(0, pid=0))
        clock.ahead = 0.0
        assert fs.reaper.reap() == 0
        fs.reaper.unknown_seconds = 0.0
        assert fs.reaper.reap() == 1


def test_a_file_that_was_rewritten_in_the_future_is_sealed(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        ino = write(fs, "triton/A/kernel.ptx", b"first")
        assert fs.sealer.seal(ino)
        clock.ahead = YEAR
        fs.write(ino, 0, b"again")
        fs.sealer.seal_quiet()
        assert fs.attributes(ino).content == Content.SLOT
        clock.ahead = 0.0
        fs.sealer.seal_quiet()
        assert fs.attributes(ino).content == Content.OBJECT


def test_a_reset_in_the_future_hides_nothing_that_comes_after_it(tmp_path: Path, clock: Clock) -> None:
    """Whoever looks back begins at the last reset. Nobody can tell when that one was."""
    with opened(tmp_path / "store", NO_GRACE) as fs:
        clock.ahead = YEAR
        fs.reset_statistics()
        assert fs.statistics().since > time.time() - DAY
        clock.ahead = 0.0
        assert fs.statistics().since == 0.0
