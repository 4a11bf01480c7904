"""Slow reports: one at a time, and users in turn."""

from __future__ import annotations

import errno
import mmap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from kcachefs.core.caller import Caller
from kcachefs.core.report_folder import ReportFolder, _Turns
from kcachefs.errors import FsError
from tests.core.policies.mounts import ALICE, BOB, mounted, needs_root
from tests.engines.callers import Child, in_thread

HOG, FIRST, SECOND = (Caller(uid, uid) for uid in (1000, 1001, 1002))
NAME = b"slow.json"


class Reports:
    """A folder with one report, which a thread can be in the middle of making."""

    def __init__(self) -> None:
        self.folder = ReportFolder(0, 0)
        self._begun, self._go_on = threading.Event(), threading.Event()
        self._go_on.set()
        self.folder.add(slow={NAME: self._make})

    def _make(self, caller: Caller) -> bytes:
        self._begun.set()
        self._go_on.wait()
        return b"%d" % caller.uid

    @contextmanager
    def being_made_for(self, caller: Caller) -> Iterator[None]:
        self._begun.clear()
        self._go_on.clear()
        with ThreadPoolExecutor(1) as pool:
            making = pool.submit(self.folder.find, caller, NAME)
            self._begun.wait()
            try:
                yield
            finally:
                self._go_on.set()
            ino = making.result()
            assert ino is not None
            self.folder.read(ino, 0, 100)

    def look_up(self, caller: Caller) -> int:
        ino = self.folder.find(caller, NAME)
        assert ino is not None
        return ino

    def answer(self, caller: Caller) -> str:
        try:
            return self.folder.read(self.look_up(caller), 0, 100).decode()
        except FsError as error:
            return errno.errorcode[error.errno]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    monkeypatch.setattr("kcachefs.core.report_folder.WAIT_SECONDS", 3600.0)
    monkeypatch.setattr("kcachefs.core.report_folder.READ_SECONDS", 3600.0)
    return Reports()


def test_users_have_their_turns_in_the_order_in_which_they_asked(reports: Reports) -> None:
    with reports.being_made_for(HOG):
        assert [reports.answer(one) for one in (FIRST, HOG, SECOND, HOG, FIRST)] == ["EAGAIN"] * 5
    assert [reports.answer(one) for one in (HOG, SECOND, FIRST)] == ["EAGAIN", "EAGAIN", "1001"]
    assert [reports.answer(one) for one in (SECOND, HOG, FIRST)] == ["EAGAIN", "1000", "EAGAIN"]
    assert [reports.answer(one) for one in (HOG, SECOND, FIRST, HOG)] == ["EAGAIN", "1002", "1001", "1000"]


def test_who_no_longer_asks_keeps_nobody_waiting(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    with reports.being_made_for(HOG):
        assert reports.answer(FIRST) == "EAGAIN"
    assert reports.answer(SECOND) == "EAGAIN"
    monkeypatch.setattr("kcachefs.core.report_folder.WAIT_SECONDS", 0.0)
    assert reports.answer(SECOND) == "1002"


def test_a_kernel_that_looks_a_name_up_twice_is_answered_twice(reports: Reports) -> None:
    """As it does if it still has the name of an earlier report: what it finds first, it drops."""
    with reports.being_made_for(HOG):
        assert [reports.answer(one) for one in (FIRST, SECOND)] == ["EAGAIN", "EAGAIN"]
    dropped = reports.look_up(FIRST)
    assert [reports.answer(one) for one in (SECOND, HOG)] == ["EAGAIN", "EAGAIN"]
    reports.folder.forget(dropped)
    assert [reports.answer(one) for one in (FIRST, FIRST, SECOND)] == ["1001", "EAGAIN", "1002"]


def test_a_report_that_nobody_reads_keeps_nobody_waiting(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    reports.look_up(FIRST)
    assert reports.answer(SECOND) == "EAGAIN"
    monkeypatch.setattr("kcachefs.core.report_folder.READ_SECONDS", 0.0)
    assert reports.answer(SECOND) == "1002"


def test_a_report_that_takes_a_minute_costs_nobody_their_place() -> None:
    """The kernel lets nobody look a name up while it is being looked up."""
    turns = _Turns()
    assert [turns.take(HOG.uid, 0.0), turns.take(FIRST.uid, 1.0), turns.take(SECOND.uid, 2.0)] == [True, False, False]
    turns.end(60.0, is_made=True)
    turns.was_read()
    assert [turns.take(SECOND.uid, 60.5), turns.take(FIRST.uid, 60.5)] == [False, True]


def test_a_report_that_fails_gives_its_turn_back() -> None:
    folder = ReportFolder(0, 0)

    def fail(caller: Caller) -> bytes:
        raise FsError(errno.EIO, "broken")

    folder.add(slow={NAME: fail})
    for caller in (FIRST, SECOND, FIRST):
        with pytest.raises(FsError, match="broken"):
            folder.find(caller, NAME)


@needs_root
@pytest.mark.mount
def test_users_who_ask_a_mount_all_the_time_are_served_alike() -> None:
    """On a mount the kernel has the names of earlier reports, and looks most of them up twice."""
    with mounted("direct", "--allow-other") as mount:
        for user in (ALICE, BOB):
            in_thread(partial(make_entries, mount.mountpoint / "triton", f"{user.uid}-"), user)
        counts = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        with (
            Child(partial(ask, mount.mountpoint, counts, 0), ALICE) as alice,
            Child(partial(ask, mount.mountpoint, counts, 1), BOB) as bob,
        ):
            alice.result()
            bob.result()
        assert min(counts[:2]) >= ENOUGH // 4


ENOUGH = 24


def make_entries(namespace: Path, name: str) -> None:
    for number in range(800):
        (namespace / f"{name}{number}").mkdir()
        (namespace / f"{name}{number}" / "add.cubin").write_bytes(b"cubin")


def ask(mountpoint: Path, counts: mmap.mmap, place: int) -> None:
    """Ask for reports until one of those who do has enough of them."""
    while max(counts[:2]) < ENOUGH:
        try:
            (mountpoint / ".kcachefs" / "entries.json").read_bytes()
            counts[place] += 1
        except BlockingIOError:
            threading.Event().wait(0.01)  # as a command does
