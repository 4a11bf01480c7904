"""Which threads cannot go on before another one has ended its work, as their stacks show.

Threads and executors do not hand context variables on before Python 3.14, so a thread does not know for which
computation it works. But a thread that waits for another can be recognized: `Future.result` or `Thread.join` is on its
stack, with the future or thread that it waits for. Waiting by other means (a queue, an event, a task) is not seen.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any


def awaited_threads() -> dict[int, set[int]]:
    """For each thread that waits for others, by `threading.get_ident`: those others."""
    waits: dict[int, list[Any]] = {}
    works: dict[int, int] = {}  # which thread works for a future, by the id of the future
    result, item = _codes_of_futures()
    for ident, top in sys._current_frames().items():
        for frame in _stack(top):
            code = frame.f_code
            if code is threading.Thread.join.__code__ or code in result:
                waits.setdefault(ident, []).extend(_awaited(frame))
            elif code is item:
                works[id(frame.f_locals["self"].future)] = ident
    return {ident: set(_idents(awaited, works)) for ident, awaited in waits.items()}


def _codes_of_futures() -> tuple[frozenset[CodeType], CodeType | None]:
    """The code of the functions that wait for futures, and of the one that works for a future; none as long as nobody
    has imported futures."""
    futures, pools = sys.modules.get("concurrent.futures._base"), sys.modules.get("concurrent.futures.thread")
    if futures is None or pools is None:
        return frozenset(), None
    waiting = (futures.Future.result, futures.Future.exception, futures.wait, futures.as_completed)
    return frozenset(one.__code__ for one in waiting), pools._WorkItem.run.__code__


def _awaited(frame: FrameType) -> list[Any]:
    """The thread or the futures that a frame waits for."""
    names = frame.f_locals
    if names.get("self") is not None:
        return [names["self"]]
    for futures in (names.get("pending"), names.get("fs")):
        if isinstance(futures, set):  # before it becomes a set it may be anything, such as a running generator
            return list(futures)
    return []


def _idents(awaited: list[Any], works: dict[int, int]) -> Iterator[int]:
    for one in awaited:
        ident = one.ident if isinstance(one, threading.Thread) else works.get(id(one))
        if ident is not None:
            yield ident


def _stack(top: FrameType) -> Iterator[FrameType]:
    frame: FrameType | None = top
    while frame is not None:
        yield frame
        frame = frame.f_back
