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


def until(
    condition: Callable[[], T], what: str | Callable[[], str] = "", *, seconds: float = PATIENCE, pause: float = 0.01
) -> T:
    """Return what `condition` returns once that is true; fail, saying `what` never happened, after `seconds`.

    A function as `what` is called then, to tell how things stand.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        _check(deadline, seconds, condition, what)
        time.sleep(pause)
    return found


async def until_async(
    condition: Callable[[], T], what: str | Callable[[], str] = "", *, seconds: float = PATIENCE, pause: float = 0.01
) -> T:
    """As `until`, in a task of asyncio or of trio: the other tasks go on meanwhile."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        _check(deadline, seconds, condition, what)
        await _sleep(pause)
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


def _check(deadline: float, seconds: float, condition: Callable[[], object], what: str | Callable[[], str]) -> None:
    if time.monotonic() > deadline:
        told = what if isinstance(what, str) else what()
        raise AssertionError(f"after {seconds:.0f} s still not true: {told or _text(condition)}")


async def _sleep(seconds: float) -> None:
    """In whichever library runs. Both are imported here: most who wait have no use for them."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        import trio

        await trio.sleep(seconds)
    else:
        await asyncio.sleep(seconds)


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
