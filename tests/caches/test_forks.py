"""The lock of a key belongs to the process that took it: no child that is forked meanwhile keeps it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kcachefs import Cache
from kcachefs.caches import process_lock
from kcachefs.caches.process_lock import Attempt, ProcessLock
from tests.waiting import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


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


def test_a_child_forked_by_another_thread_has_no_descriptor_of_a_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "locks" / "key")

    def take() -> None:
        lock, other = ProcessLock(path), ProcessLock(path)
        assert (lock.attempt(), other.attempt()) == (Attempt.HELD, Attempt.BUSY)
        other.release()
        lock.release()

    assert stop_at_each_step(take, check_a_forked_child) > 50
    assert not os.listdir(tmp_path / "locks")


def test_a_child_that_c_code_has_forked_does_not_keep_a_released_lock(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    children: list[int] = []

    def compute() -> bytes:
        child = ctypes.PyDLL(None).fork()  # Python's handlers know nothing of it
        if child == 0:
            signal.pause()
        children.append(child)
        os.link(locked := next((tmp_path / "locks").iterdir()), tmp_path / "locks" / "kept")
        assert ProcessLock(str(locked)).attempt() is Attempt.BUSY
        return b"made"

    try:
        assert cache.get_or_compute("key", compute) == b"made"
        assert ProcessLock(str(tmp_path / "locks" / "kept")).attempt() is Attempt.HELD
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
