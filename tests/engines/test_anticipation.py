"""Looking ahead for requests: begun by a busy program, ended by a pause, and never while others need the processor."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from kcachefs.engines import anticipation
from kcachefs.engines.anticipation import (
    BRIEF_NS,
    EARNED_NS,
    LONG_NS,
    PATIENT_NS,
    PURSE_NS,
    SHORT_NS,
    USUAL_NS,
    Anticipation,
)

SOON = (SHORT_NS + LONG_NS) // 2
LATER = PATIENT_NS // 2
LOOK = 500


class Scene:
    """An anticipation on a pipe, with a clock, a count of its looks, and as many busy processors as is said."""

    def __init__(self, device: int, patch: pytest.MonkeyPatch) -> None:
        self.now = self.due = 0
        self.looks = 0
        self.processors, self.busy = 2, 0
        patch.setattr(anticipation, "_now", lambda: self.now)
        patch.setattr(anticipation, "running", lambda: self.busy + 1)
        patch.setattr(os, "sched_getaffinity", lambda pid: set(range(self.processors)))
        self.made = Anticipation(device)
        poll = self.made._poll

        def counted(timeout: int) -> list[tuple[int, int]]:
            self.looks += 1
            self.now += LOOK
            return [(device, select.POLLIN)] if self.now >= self.due else poll(timeout)

        patch.setattr(self.made, "_poll", counted)

    def request(self, gap: int) -> int:
        """One comes so many nanoseconds behind the last; returns how often it was looked for."""
        before, self.due = self.looks, self.now + gap
        self.made.look()
        self.now = max(self.now, self.due)
        self.made.came()
        return self.looks - before

    def weighed(self, processors: int, busy: int) -> int:
        """How long is looked, on such a machine."""
        self.processors, self.busy = processors, busy
        self.made.weigh()
        return self.made.patience


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
    assert scene.weighed(processors=2, busy=3) == 0
    assert scene.request(SOON) == 0


def test_one_look_is_enough_when_there_is_something(scene: Scene, pipe: tuple[int, int]) -> None:
    for _ in range(100):
        scene.request(SOON)
    os.write(pipe[1], b"request")
    assert scene.request(SOON) == 1


@pytest.mark.parametrize(
    ("processors", "busy", "patience"),
    [
        (1, 0, USUAL_NS),
        (2, 0, USUAL_NS),
        (2, 2, USUAL_NS),
        (2, 3, 0),
        (4, 1, PATIENT_NS),
        (4, 2, USUAL_NS),
        (4, 5, 0),
        (16, 13, PATIENT_NS),
        (16, 14, USUAL_NS),
        (16, 17, 0),
    ],
)
def test_how_long_depends_on_who_else_runs(scene: Scene, processors: int, busy: int, patience: int) -> None:
    assert scene.weighed(processors, busy) == patience


def test_a_pause_is_looked_through_where_processors_are_idle(scene: Scene) -> None:
    scene.weighed(processors=2, busy=0)
    assert [scene.request(LATER) for _ in range(50)][-1] == 0, "it always takes its time"
    scene.weighed(processors=16, busy=1)
    assert [scene.request(LATER) for _ in range(50)][-1] >= LATER // LOOK
    looks = [scene.request(2 * PATIENT_NS) for _ in range(50)]
    assert looks[0] >= PATIENT_NS // LOOK
    assert looks[-1] == 0


def test_patience_is_paid_for(scene: Scene) -> None:
    scene.weighed(processors=16, busy=1)
    for saved in (PURSE_NS, EARNED_NS):
        assert scene.made.patience == PATIENT_NS
        paid = 0
        while scene.made.patience == PATIENT_NS:
            scene.request(LATER)
            paid += LATER
            assert paid <= saved + 10 * LATER, "it never ends"
        assert paid > saved - LATER
        assert scene.made.patience == BRIEF_NS
        scene.made.weigh()  # with the next second comes some more


def test_the_machine_is_asked_who_runs() -> None:
    assert anticipation.running() >= 1
