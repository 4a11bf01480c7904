"""Chores: each gets its turns whatever the others do, fails without ending, and is waited for at the end."""

from __future__ import annotations

import logging
import threading

import pytest

from kcachefs.daemon import chores as chores_module
from kcachefs.daemon.chores import Chores, growth_of
from kcachefs.errors import UsageError
from tests.waiting import PATIENCE, until


def test_a_chore_that_waits_keeps_no_other_from_its_turns() -> None:
    chores, go_on = Chores(), threading.Event()
    turns: list[int] = []
    chores.every(0.001, "waiting", lambda: go_on.wait(PATIENCE))
    chores.every(0.001, "counting", lambda: turns.append(1))
    until(lambda: len(turns) > 10, "the other chore has had turns")
    go_on.set()
    chores.stop()


def test_a_chore_that_failed_is_tried_again_and_told_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chores_module, "FAILED_PAUSE", 0.01)
    chores, done = Chores(), threading.Event()
    failures = iter((UsageError("no room"), UsageError("no room"), ValueError("a bug")))

    def work() -> None:
        for error in failures:
            raise error
        done.set()

    with caplog.at_level(logging.ERROR):
        chores.every(0.001, "tidying", work)
        assert done.wait(PATIENCE)
        chores.stop()
    told = [(record.getMessage(), bool(record.exc_info)) for record in caplog.records]
    assert told == [
        ("tidying failed and will be tried again: no room", False),
        ("tidying failed and will be tried again: a bug", True),
    ]


def test_a_chore_that_failed_waits_though_its_first_turn_came_at_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chores_module, "FAILED_PAUSE", PATIENCE)
    chores, tries = Chores(), []

    def fail() -> float:
        tries.append(1)
        raise OSError("no disk")

    chores.repeat(0.0, "failing", fail)
    until(lambda: caplog.records)
    chores.stop()
    assert len(tries) == 1


def test_a_turn_says_how_long_to_wait_for_the_next() -> None:
    chores, pauses, over = Chores(), iter((0.0, 0.0, PATIENCE)), threading.Event()
    taken: list[float] = []

    def turn() -> float:
        taken.append(next(pauses))
        if taken[-1]:
            over.set()
        return taken[-1]

    chores.repeat(0.0, "counting", turn)
    assert over.wait(PATIENCE)
    chores.stop()  # does not wait for the pause
    assert taken == [0.0, 0.0, PATIENCE]


def test_to_stop_is_to_wait_for_the_turn_at_hand_and_begin_no_other() -> None:
    chores, begun, go_on = Chores(), threading.Event(), threading.Event()
    ended: list[int] = []

    def work() -> None:
        begun.set()
        go_on.wait(PATIENCE)
        ended.append(1)

    chores.every(0.0, "working", work)
    assert begun.wait(PATIENCE)
    stopping = threading.Thread(target=chores.stop)
    stopping.start()
    until(lambda: chores._stopping.is_set())
    assert stopping.is_alive()
    go_on.set()
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    assert len(ended) == 1


def test_growth_is_what_came_since_it_was_last_asked() -> None:
    counts = iter((5, 5, 12))
    growth = growth_of(lambda: next(counts))
    assert [growth(), growth(), growth()] == [5, 0, 7]
