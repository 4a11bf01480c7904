"""Idle work: only while nobody needs machine or mount, only with room to spare, and ended before the store is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kcachefs.core import Filesystem
from kcachefs.core.limits import Limits
from kcachefs.daemon import idle_work
from kcachefs.daemon.idle_work import IdleWork, is_idle
from kcachefs.free_processors import Allowance
from kcachefs.store.repacking import Steps, unpacked_bytes
from tests.core.trees import opened, write
from tests.store.test_repacking import text
from tests.waiting import until


@pytest.mark.parametrize(
    ("processors", "others", "expected"),
    [(2, 0, True), (2, 1, False), (1, 0, True), (1, 1, False), (0, 0, False), (64, 31, True), (64, 32, False)],
)
def test_a_machine_is_idle_while_less_than_half_of_it_is_wanted(processors: int, others: int, expected: bool) -> None:
    assert is_idle([Allowance(processors, processors - others)]) == expected


def test_a_machine_is_idle_only_if_every_allowance_says_so() -> None:
    assert is_idle([Allowance(64, 60), Allowance(2, 2)])
    assert not is_idle([Allowance(64, 60), Allowance(2, 1)])
    assert not is_idle([Allowance(64, 10), Allowance(2, 2)])
    assert not is_idle([Allowance(64, 60), Allowance(0.5, 0.5)]), "half a processor would be gone at once"


class QuietMachine:
    def look(self) -> list[Allowance]:
        return [Allowance(2, 2)]


@pytest.fixture
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else runs: a test must not depend on that."""
    monkeypatch.setattr(idle_work, "FreeProcessors", QuietMachine)
    monkeypatch.setattr(idle_work, "LOOK_PAUSE", 0.01)
    monkeypatch.setattr(idle_work, "SILENCE_SECONDS", 0.05)


def _fill(fs: Filesystem) -> None:
    for key in range(8):
        write(fs, f"triton/{key}/kernel.ptx", text(key, 20_000))
    fs.settle()
    old = fs.store.repack
    fs.store.repack = lambda rest_seconds=0.0, room=None: old(0.0)  # type: ignore[method-assign]


def test_what_rests_is_repacked_while_no_requests_come(tmp_path: Path, quiet_machine: None) -> None:
    with opened(tmp_path / "store") as fs:
        _fill(fs)
        work = IdleWork(fs, lambda: 0)
        work.start()
        try:
            until(lambda: unpacked_bytes(fs.store.objects) == 0)
        finally:
            work.stop()


def test_nothing_is_done_beside_requests(tmp_path: Path, quiet_machine: None) -> None:
    with opened(tmp_path / "store") as fs:
        _fill(fs)
        answered = 0

        def one_more() -> int:
            nonlocal answered
            answered += 1
            return answered

        work = IdleWork(fs, one_more)
        before = unpacked_bytes(fs.store.objects)
        work.start()
        try:
            until(lambda: answered > 20)
        finally:
            work.stop()
        assert unpacked_bytes(fs.store.objects) == before


def test_nothing_is_done_near_a_limit(tmp_path: Path, quiet_machine: None) -> None:
    with opened(tmp_path / "store", Limits(max_size=8 << 20, min_free=0)) as fs:
        _fill(fs)
        work = IdleWork(fs, lambda: 0)
        work.is_due()
        until(lambda: work.is_due() or fs.room.excess(0.95) > -(8 << 20))
        assert not work.is_due()


def test_it_stops_in_the_middle_and_leaves_a_clean_store(tmp_path: Path, quiet_machine: None) -> None:
    with opened(tmp_path / "store") as fs:
        _fill(fs)
        before = unpacked_bytes(fs.store.objects)
        steps = iter(fs.store.repack())
        begun = iter([False] * 3 + [True] * 1000)
        fs.store.repack = lambda rest_seconds=0.0, room=None: steps  # type: ignore[method-assign]
        work = IdleWork(fs, lambda: 0)
        work.is_due = lambda: not next(begun)  # type: ignore[method-assign]
        work.start()
        until(lambda: bool(fs.store.volumes.incoming()))
        work.stop()
        assert not fs.store.volumes.incoming()
        assert unpacked_bytes(fs.store.objects) == before


def test_what_was_begun_is_given_up_when_room_becomes_short(
    tmp_path: Path, quiet_machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as fs:
        _fill(fs)
        before = unpacked_bytes(fs.store.objects)
        begun: set[int] = set()

        def excess(mark: float) -> int:
            begun.update(fs.store.volumes.incoming())
            return 0 if fs.store.volumes.incoming() else -(1 << 40)

        monkeypatch.setattr(fs.room, "excess", excess)
        work = IdleWork(fs, lambda: 0)
        work.start()
        try:
            until(lambda: len(begun) > 2)
        finally:
            work.stop()
        assert not fs.store.volumes.incoming()
        assert unpacked_bytes(fs.store.objects) == before


def test_failed_attempts_become_rare(tmp_path: Path, quiet_machine: None, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path / "store") as fs:
        attempts: list[float] = []

        def fail(rest_seconds: float = 0.0, room: object = None) -> Steps:
            attempts.append(time.monotonic())
            raise OSError("no luck")

        fs.store.repack = fail  # type: ignore[method-assign]
        work = IdleWork(fs, lambda: 0)
        work.start()
        try:
            until(lambda: len(attempts) > 4)
        finally:
            work.stop()
        assert attempts[4] - attempts[3] > 4 * idle_work.LOOK_PAUSE
    assert len([record for record in caplog.records if "idle work failed" in record.message]) == 1


def test_room_for_files_to_come_is_given_back_after_a_silence(
    tmp_path: Path, quiet_machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_work, "ROOM_SECONDS", 0.1)
    with opened(tmp_path / "store") as fs:
        _fill(fs)
        assert fs.store.slots.slack_bytes() > 0
        work = IdleWork(fs, lambda: 0)
        work.start()
        try:
            until(lambda: fs.store.slots.slack_bytes() == 0)
        finally:
            work.stop()
