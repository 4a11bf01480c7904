"""A clock for tests that can be set: nobody can set the real one for one test."""

from __future__ import annotations

import time

import pytest

from kcachefs.core import future_uses


class Clock:
    """The clock of this process, as far ahead as a test says: nobody can set the real one for one test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        seconds, nanoseconds = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: seconds() + self.ahead)
        monkeypatch.setattr(time, "time_ns", lambda: nanoseconds() + int(self.ahead * 1e9))
        monkeypatch.setattr(future_uses, "WATCHED_NS", 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)
