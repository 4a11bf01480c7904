"""What runs beside a measurement."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.clients import busy_loops
from tests.waiting import until


def _children() -> list[Path]:
    return [Path("/proc", pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def test_busy_loops_compute_while_the_block_runs_and_end_with_it() -> None:
    before = set(_children())
    with busy_loops(2):
        loops = set(_children()) - before
        assert len(loops) == 2
        until(lambda: all(int(loop.joinpath("stat").read_text().rsplit(")", 1)[1].split()[11]) > 2 for loop in loops))
    assert not any(loop.exists() for loop in loops)
