"""Slow reports: one at a time, and users in turn."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from kcachefs.core.caller import Caller
from kcachefs.core.report_folder import ReportFolder
from kcachefs.errors import FsError

HOG, ALICE, BOB = (Caller(uid, uid) for uid in (1000, 1001, 1002))
NAME = b"slow.json"


class Reports:
    """A folder with one report, which a thread can be in the middle of making."""

    def __init__(self) -> None:
        self.folder = ReportFolder(0, 0)
        self._begun, self._go_on = threading.Event(), threading.Event()
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
            assert making.result() is not None

    def answer(self, caller: Caller) -> str:
        try:
            ino = self.folder.find(caller, NAME)
        except FsError as error:
            return errno.errorcode[error.errno]
        assert ino is not None
        return self.folder.read(ino, 0, 100).decode()


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    monkeypatch.setattr("kcachefs.core.report_folder._WAIT_SECONDS", 3600.0)
    return Reports()


def test_users_have_their_turns_in_the_order_in_which_they_asked(reports: Reports) -> None:
    with reports.being_made_for(HOG):
        assert [reports.answer(one) for one in (ALICE, HOG, BOB, HOG, ALICE)] == ["EAGAIN"] * 5
    assert [reports.answer(one) for one in (HOG, BOB, ALICE)] == ["EAGAIN", "EAGAIN", "1001"]
    assert [reports.answer(one) for one in (BOB, HOG, ALICE)] == ["EAGAIN", "1000", "EAGAIN"]
    assert [reports.answer(one) for one in (HOG, BOB, ALICE, HOG)] == ["EAGAIN", "1002", "1001", "1000"]


def test_who_no_longer_asks_keeps_nobody_waiting(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    with reports.being_made_for(HOG):
        assert reports.answer(ALICE) == "EAGAIN"
    assert reports.answer(BOB) == "EAGAIN"
    monkeypatch.setattr("kcachefs.core.report_folder._WAIT_SECONDS", 0.0)
    assert reports.answer(BOB) == "1002"


def test_a_report_that_fails_gives_its_turn_back() -> None:
    folder = ReportFolder(0, 0)

    def fail(caller: Caller) -> bytes:
        raise FsError(errno.EIO, "broken")

    folder.add(slow={NAME: fail})
    for _ in range(2):
        with pytest.raises(FsError, match="broken"):
            folder.find(ALICE, NAME)
