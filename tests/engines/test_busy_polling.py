"""Busy polling: a busy program starts it, a pause ends it, and it stops while others need the processor."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from kcachefs.engines import busy_polling
from kcachefs.engines.busy_polling import (
    BRIEF_NS,
    BUDGET_NS,
    EARNED,
    LONG_NS,
    PATIENT_NS,
    SHORT_NS,
    USUAL_NS,
    BusyPolling,
)
from kcachefs.engines.direct import DirectEngine
from kcachefs.engines.unused_inodes import UnusedInodes
from kcachefs.free_processors import Allowance, FreeProcessors
from tests.core.trees import opened

SOON = 2 * SHORT_NS
LATER = PATIENT_NS // 2
LOOK = 2500


class Machine:
    """So many processors, of which others want so many; and further allowances."""

    def __init__(self, processors: int, busy: int, *allowances: Allowance) -> None:
        self.processors, self.busy, self.allowances = processors, busy, allowances

    def look(self, at_work: int = 1) -> list[Allowance]:
        return [Allowance(self.processors, self.processors - (self.busy + 1 - at_work)), *self.allowances]


class Unused:
    """Stands in for `UnusedInodes`."""

    def __init__(self) -> None:
        self.waiting: list[int] = []

    def remove(self) -> None:
        self.waiting.clear()


def polling_on(
    device: int, machine: Machine, meanwhile: Callable[[], None] = lambda: None, unused: Unused | None = None
) -> BusyPolling:
    return BusyPolling(device, meanwhile, cast(UnusedInodes, unused or Unused()), cast(FreeProcessors, machine))


class Scene:
    """Busy polling on a pipe, with a clock, a count of its polls, and a given number of busy processors."""

    def __init__(self, device: int, patch: pytest.MonkeyPatch) -> None:
        self.now = self.due = 0
        self.looks = 0
        patch.setattr(busy_polling, "_now", lambda: self.now)
        self.done_meanwhile = 0
        self.machine = Machine(2, 0)
        self.unused = Unused()
        self.made = polling_on(device, self.machine, self._work_meanwhile, self.unused)
        poll = self.made._poll

        def counted(timeout: int) -> list[tuple[int, int]]:
            self.looks += 1
            self.now += LOOK
            return [(device, select.POLLIN)] if self.now >= self.due else poll(timeout)

        patch.setattr(self.made, "_poll", counted)
        self.weigh(2, 0)

    def _work_meanwhile(self) -> None:
        self.done_meanwhile += 1

    def request(self, gap: int, *, is_alone: bool = True) -> int:
        """A request arrives this many nanoseconds after the last; returns how often it was polled for."""
        before, self.due = self.looks, self.now + gap
        self.made.poll(is_alone=is_alone)
        self.now = max(self.now, self.due)
        self.made.request_came()
        return self.looks - before

    def weigh(self, processors: int, busy: int, *allowances: Allowance) -> int:
        """How long polling may last on such a machine while the poller sleeps."""
        self.machine.__init__(processors, busy, *allowances)  # type: ignore[misc]
        self.made._is_awake = False
        self.made.adapt()
        return self.made.allowed


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def scene(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(pipe[0], monkeypatch)


def test_it_begins_when_requests_follow_each_other(scene: Scene) -> None:
    looks = [scene.request(SOON) for _ in range(10)]
    assert looks[0] == 0
    assert looks[-1] > 1


def test_it_ends_when_they_do_not(scene: Scene) -> None:
    for _ in range(100):
        scene.request(SOON)
    looks = [scene.request(10 * LONG_NS) for _ in range(100)]
    assert looks[0] > 0
    assert looks[-1] == 0


def test_a_pause_now_and_then_does_not_end_it(scene: Scene) -> None:
    looks = [scene.request(10 * LONG_NS if number % 5 == 0 else SOON) for number in range(100)]
    assert all(looks[20:])


def test_requests_that_wait_already_are_no_reason_to_look(scene: Scene) -> None:
    assert [scene.request(SHORT_NS // 2) for _ in range(100)] == [0] * 100


def test_it_is_left_alone_while_others_need_the_processor(scene: Scene) -> None:
    for _ in range(100):
        scene.request(SOON)
    assert scene.weigh(processors=2, busy=3) == 0
    assert scene.request(SOON) == 0


def test_it_is_left_alone_while_a_thread_of_ours_works(scene: Scene) -> None:
    for _ in range(100):
        scene.request(SOON)
    assert scene.request(SOON, is_alone=False) == 0
    assert scene.request(SOON) > 1


def test_what_is_unused_is_removed_in_a_pause_and_not_while_requests_come(scene: Scene) -> None:
    for polls in (False, True):
        scene.unused.waiting.append(7)
        scene.request(SHORT_NS // 2)
        assert scene.unused.waiting == [7], polls
        scene.request(10 * LONG_NS)
        assert scene.unused.waiting == [], polls
        for _ in range(100):
            scene.request(SOON)


def test_there_is_a_moment_for_something_else_only_while_it_polls_and_no_request_is_there(scene: Scene) -> None:
    scene.request(SOON)
    assert scene.done_meanwhile == 0
    for _ in range(100):
        scene.request(SOON)
    before = scene.done_meanwhile
    scene.request(SOON)
    assert scene.done_meanwhile == before + 1
    scene.request(0)
    scene.request(SOON, is_alone=False)
    assert scene.done_meanwhile == before + 1


@pytest.mark.parametrize(("count", "allowed"), [(1, 0), (2, USUAL_NS), (64, USUAL_NS)])
def test_it_is_allowed_before_anybody_has_looked_who_runs(pipe: tuple[int, int], count: int, allowed: int) -> None:
    assert polling_on(pipe[0], Machine(count, busy=9)).allowed == allowed


def test_one_look_is_enough_when_there_is_something(scene: Scene, pipe: tuple[int, int]) -> None:
    for _ in range(100):
        scene.request(SOON)
    os.write(pipe[1], b"request")
    assert scene.request(SOON) == 1


@pytest.mark.parametrize(
    ("processors", "busy", "allowed"),
    [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, USUAL_NS),
        (2, 1, USUAL_NS),
        (2, 2, BRIEF_NS),
        (2, 3, 0),
        (4, 1, PATIENT_NS),
        (4, 2, USUAL_NS),
        (4, 4, BRIEF_NS),
        (4, 5, 0),
        (16, 13, PATIENT_NS),
        (16, 14, USUAL_NS),
        (16, 17, 0),
    ],
)
def test_how_long_depends_on_who_else_runs(scene: Scene, processors: int, busy: int, allowed: int) -> None:
    assert scene.weigh(processors, busy) == allowed


@pytest.mark.parametrize(
    ("allowance", "allowed"),
    [
        (Allowance(8, 8), PATIENT_NS),
        (Allowance(8, 2.97), PATIENT_NS),
        (Allowance(8, 2.8), USUAL_NS),
        (Allowance(2, 1.95), USUAL_NS),
        (Allowance(2, 0.7), BRIEF_NS),
        (Allowance(2, 0.0), BRIEF_NS),
        (Allowance(2, -1), 0),
        (Allowance(1.5, 1.5), 0),
    ],
)
def test_a_set_or_a_quota_counts_as_well(scene: Scene, allowance: Allowance, allowed: int) -> None:
    assert scene.weigh(16, 2, allowance) == allowed
    assert scene.weigh(16, 17, allowance) == 0, "the machine has none left"


def test_who_looks_does_not_count_as_somebody_else(scene: Scene) -> None:
    assert scene.weigh(processors=2, busy=2) == BRIEF_NS
    scene.request(SOON)  # and now it works on that
    scene.made.adapt()
    assert scene.made.allowed == USUAL_NS


def test_a_pause_is_looked_through_where_processors_are_idle(scene: Scene) -> None:
    assert [scene.request(LATER) for _ in range(50)][-1] == 0, "it always takes its time"
    scene.weigh(processors=16, busy=1)
    assert [scene.request(LATER) for _ in range(50)][-1] >= LATER // LOOK
    looks = [scene.request(2 * PATIENT_NS) for _ in range(50)]
    assert looks[0] >= PATIENT_NS // LOOK
    assert looks[-1] == 0


@pytest.mark.parametrize("gap", [LONG_NS - LOOK, LONG_NS + LOOK, LATER])
def test_patience_is_paid_for(scene: Scene, gap: int) -> None:
    scene.weigh(processors=16, busy=1)
    brief, begin, patient = BRIEF_NS // LOOK, scene.now, 0
    while scene.now < begin + 8 * BUDGET_NS:
        patient += max(0, scene.request(gap) - brief)
        scene.now += 15_000  # the time that it takes to carry out
    allowed = BUDGET_NS + (scene.now - begin) // EARNED
    assert 0.9 * allowed < patient * LOOK < 1.1 * allowed
    assert scene.request(gap) >= brief, "the briefest is free"


def test_the_budget_fills_again(scene: Scene) -> None:
    scene.weigh(processors=16, busy=1)
    while scene.request(LATER) >= LATER // LOOK or scene.made._successes <= 4:
        assert scene.now < 100 * BUDGET_NS
    scene.now += EARNED * 100 * LATER
    assert any(scene.request(LATER) >= LATER // LOOK for _ in range(50))


def test_the_engine_weighs_when_it_is_asked_what_it_is_at(tmp_path: Path) -> None:
    device = os.open("/dev/null", os.O_RDWR)
    try:
        with opened(tmp_path / "store") as fs:
            engine = DirectEngine(fs, device)
            engine._polling.allowed = -1
            assert engine.request_at_hand() is None
            assert engine._polling.allowed in (0, BRIEF_NS, USUAL_NS, PATIENT_NS)
    finally:
        os.close(device)
