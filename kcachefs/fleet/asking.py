"""Asks a bucket several questions at the same time, in threads that nobody waits for once one has failed.

The threads of a pool would be joined, also when the interpreter exits: an interrupted command would still wait for a
network that hangs.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

IN_FLIGHT = 16
"""How many questions are asked at a time."""

Wanted = TypeVar("Wanted")
Found = TypeVar("Found")
First = TypeVar("First")
Second = TypeVar("Second")


def both(first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """The results of two calls that wait for the network."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    _start(lambda: answers.put(_answer(second)))
    found = first()
    other: Second = _result(answers.get())
    return found, other


def in_parallel(read: Callable[[Wanted], list[Found]], wanted: Sequence[Wanted]) -> list[Found]:
    """All that `read` finds for the wanted items, in the order of the items."""
    if len(wanted) < 2:
        return [one for each in wanted for one in read(each)]
    left = deque(enumerate(wanted))
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def work() -> None:
        while left:
            try:
                number, one = left.popleft()
            except IndexError:  # another thread took the last one
                return
            answers.put((number, _answer(partial(read, one))))

    found: dict[int, list[Found]] = {}
    try:
        for _ in range(min(IN_FLIGHT, len(wanted))):
            _start(work)
        while len(found) < len(wanted):
            number, answer = answers.get()
            found[number] = _result(answer)
    finally:
        left.clear()
    return [one for number in range(len(wanted)) for one in found[number]]


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="kcachefs-records", daemon=True).start()


def _answer(ask: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return ask(), None
    except BaseException as error:
        return None, error


def _result(answer: tuple[Any, BaseException | None]) -> Any:
    result, error = answer
    if error is not None:
        raise error
    return result
