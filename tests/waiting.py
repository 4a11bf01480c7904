"""Waiting for a state, never for a clock: the deadline only makes sure that a failing test ends."""

from __future__ import annotations

import inspect
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_SOON_SECONDS = 20
PATIENCE = 150.0
"""Seconds after which a test gives up: far more than anything takes, also on a machine busy with other work."""


def until(condition: Callable[[], T], what: str = "", *, seconds: float = PATIENCE, pause: float = 0.01) -> T:
    """Return what `condition` returns once that is true; fail, saying `what` never happened, after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:.0f} s still not true: {what or _text(condition)}")
        time.sleep(pause)
    return found


def until_gone(*pids: int, seconds: float = PATIENCE) -> None:
    """Return once all these processes have ended, whoever started them."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([handle], [], [], seconds)[0]:
                raise AssertionError(f"after {seconds:.0f} s process {pid} still runs")
        finally:
            os.close(handle)


def _text(condition: Callable[[], object]) -> str:
    """The condition as it is written in the test, if its source can be found."""
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)


@contextmanager
def ending_soon() -> Iterator[None]:
    """Fail if it takes far longer than reading anything real."""

    def fail(*_: object) -> None:
        raise AssertionError("it does not end")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(_SOON_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
