"""Several processes that do something at the same time."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any, TypeVar

T = TypeVar("T")
Gate = Callable[[], None]
"""Waits for all the others."""
PATIENCE = 600.0


def together(count: int, work: Callable[[int, Gate], T]) -> list[T]:
    """What each of so many processes made of `work`, called with its number and the gate that they share.

    One client alone is this process itself.
    """
    if count == 1:
        return [work(0, lambda: None)]
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(count)
    clients = []
    for number in range(count):
        mine, its = context.Pipe(duplex=False)
        process = context.Process(target=_client, args=(work, number, barrier, its), daemon=True)
        process.start()
        its.close()
        clients.append((process, mine))
    try:
        told = [_told(mine) for _, mine in clients]
    except BaseException:
        for process, _ in clients:
            process.kill()
        raise
    finally:
        for process, mine in clients:
            process.join()
            mine.close()
    return told


def _told(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE):
        raise TimeoutError("a client of the benchmark does not answer")
    done, result = pipe.recv()
    if not done:
        raise RuntimeError(f"a client of the benchmark failed:\n{result}")
    return result


def _client(work: Callable[[int, Gate], Any], number: int, barrier: Barrier, pipe: Connection) -> None:
    def gate() -> None:
        barrier.wait(PATIENCE)

    try:
        pipe.send((True, work(number, gate)))
    except BaseException:
        barrier.abort()
        pipe.send((False, traceback.format_exc()))
