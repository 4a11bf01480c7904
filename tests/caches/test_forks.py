"""The lock of a key belongs to the process that took it: no child that is forked meanwhile keeps it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kcachefs import Cache
from kcachefs.caches.process_lock import Attempt, ProcessLock
from tests.pythons import ROOT
from tests.waiting import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def test_a_child_forked_by_another_thread_has_no_descriptor_of_a_lock(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.caches.fork_at_each_step", str(tmp_path)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
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
