"""Takes and leaves the lock of a key, and forks before each step of that. As a program: FOLDER; prints how many steps.

A program of its own, because a fork of pytest's process copies everything that it knows of all tests.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from kcachefs.caches import process_lock
from kcachefs.caches.process_lock import Attempt, ProcessLock
from tests.waiting import PATIENCE


def stop_at_each_step(work: Callable[[], object], at_step: Callable[[], object]) -> int:
    """Run `work` in a thread, and `at_step` in this one before each of its steps in `process_lock`; how many."""
    stopped, go_on = threading.Semaphore(0), threading.Semaphore(0)
    is_done = threading.Event()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != process_lock.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            stopped.release()
            assert go_on.acquire(timeout=PATIENCE)
        return trace

    def run() -> None:
        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(None)
            is_done.set()
            stopped.release()

    thread = threading.Thread(target=run)
    thread.start()
    steps = 0
    while stopped.acquire(timeout=PATIENCE) and not is_done.is_set():
        at_step()
        steps += 1
        go_on.release()
    thread.join(PATIENCE)
    return steps


def check_a_forked_child() -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            held = [os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
            code = 2 if any("/locks/" in name for name in held) else 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main() -> None:
    path = f"{sys.argv[1]}/locks/key"

    def take() -> None:
        lock, other = ProcessLock(path), ProcessLock(path)
        assert (lock.attempt(), other.attempt()) == (Attempt.HELD, Attempt.BUSY)
        other.release()
        lock.release()

    failed: list[BaseException] = []
    threading.excepthook = lambda args: failed.append(args.exc_value or args.exc_type())
    steps = stop_at_each_step(take, check_a_forked_child)
    if failed:
        raise failed[0]
    print(steps)


if __name__ == "__main__":
    main()
