"""Temporary names: who writes them is a process, whichever of its threads makes the requests."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcachefs.core import temporaries
from kcachefs.core.temporaries import Temporaries
from kcachefs.store import Options, Store

SECOND = 1_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", Options(background=False)) as opened:
        yield opened


def writers(store: Store, pids: list[int]) -> list[int]:
    """The process that each of these is found to belong to, asked in this order."""
    kept, found = Temporaries(store), []
    for ino, pid in enumerate(pids, 100):
        with store.transaction() as txn:
            kept.add(txn, ino, pid)
        found.append((kept.writer_of(ino) or (0, -1))[1])
    return found


def test_what_a_thread_writes_is_its_processs(store: Store) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    with subprocess.Popen(["sleep", "infinity"]) as other:
        try:
            me, mine = os.getpid(), thread.native_id or 0
            assert writers(store, [me, mine, mine, other.pid, mine, 0, me, me]) == [
                me,
                me,
                me,
                other.pid,
                me,
                0,
                me,
                me,
            ]
        finally:
            other.kill()
            done.set()
            thread.join()


@pytest.mark.parametrize("later", [2 * SECOND, -SECOND])
def test_a_number_is_not_believed_for_long_and_not_when_the_clock_is_set_back(
    store: Store, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    now, kept = 1000 * SECOND, Temporaries(store)
    monkeypatch.setattr("kcachefs.core.temporaries.time.time_ns", lambda: now)
    monkeypatch.setattr(temporaries, "_is_process", lambda pid: now == 1000 * SECOND)
    monkeypatch.setattr(temporaries, "process_of", lambda pid: 77)
    with store.transaction() as txn:
        kept.add(txn, 100, 55)
    now += later
    with store.transaction() as txn:
        kept.add(txn, 101, 55)
    assert [(kept.writer_of(ino) or (0, 0))[1] for ino in (100, 101)] == [55, 77]
