"""Runs the same work in several processes at the same time; and processes that keep the machine busy beside it."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any, TypeVar

T = TypeVar("T")
Gate = Callable[[], None]
"""A function that returns once all clients have called it."""
PATIENCE = 600.0


def together(count: int, work: Callable[[int, Gate], T]) -> list[T]:
    """Run `work` in `count` processes, each called with its number and a gate they share; returns their results.

    A single client is this process itself.
    """
    if count == 1:
        return [work(0, lambda: None)]
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(count)
    clients = []
    for number in range(count):
        our_end, its_end = context.Pipe(duplex=False)
        process = context.Process(target=_client, args=(work, number, barrier, its_end), daemon=True)
        process.start()
        its_end.close()
        clients.append((process, our_end))
    try:
        results = [_result(pipe) for _, pipe in clients]
    except BaseException:
        for process, _ in clients:
            process.kill()
        raise
    finally:
        for process, pipe in clients:
            process.join()
            pipe.close()
    return results


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """This many processes compute and do nothing else."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _result(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE):
        raise TimeoutError("a client of the benchmark did not answer in time")
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
