"""Looking ahead for requests: begun by a busy program, ended by a pause, and never while others need the processor."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kcachefs.engines import anticipation
from kcachefs.engines.anticipation import LONG_NS, SHORT_NS, Anticipation, is_quiet, running

SOON = (SHORT_NS + LONG_NS) // 2


class Scene:
    """An anticipation on a pipe, with a clock and a count of its looks."""

    def __init__(self, device: int, patch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.looks = 0
        patch.setattr(anticipation, "_now", lambda: self.now)
        self.made = Anticipation(device)
        poll = self.made._poll

        def counted(timeout: int) -> list[tuple[int, int]]:
            self.looks += 1
            return poll(timeout)

        patch.setattr(self.made, "_poll", counted)

    def request(self, gap: int) -> int:
        """One comes after so many nanoseconds; returns how often it was looked for."""
        before = self.looks
        self.made.look()
        self.now += gap
        self.made.came()
        return self.looks - before


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
    scene.made.is_quiet = False
    assert scene.request(SOON) == 0


def test_one_look_is_enough_when_there_is_something(scene: Scene, pipe: tuple[int, int]) -> None:
    for _ in range(100):
        scene.request(SOON)
    os.write(pipe[1], b"request")
    assert scene.request(SOON) == 1


def test_a_processor_for_each_that_runs_besides_who_asks_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert running() >= 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    for count, quiet in ((1, True), (3, True), (4, False)):
        monkeypatch.setattr(anticipation, "running", lambda count=count: count)
        assert is_quiet() == quiet
