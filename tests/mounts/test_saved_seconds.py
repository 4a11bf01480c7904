"""The seconds that a mount says were saved are those that a cold start of real Triton takes longer than a warm one."""

from __future__ import annotations

import os
import subprocess

import pytest

pytest.importorskip("triton")

from kcachefs.core.insight_info import RunInfo
from kcachefs.mounts.insight_reports import InsightReports
from tests.engines.mounting import Mount, temporary_folder
from tests.forked_programs import Program
from tests.waiting import until

pytestmark = pytest.mark.mount

PROGRAM = """
import time
import triton
from tests.triton_kernel import GPUTarget, source
triton.compile(source(32), target=GPUTarget("cuda", 90, 32))  # loads what every compilation needs
began = time.perf_counter()
for block in (64, 128, 256, 512):
    triton.compile(source(block), target=GPUTarget("cuda", 90, 32))
print(time.perf_counter() - began, flush=True)
input()
"""


def compile_on(mount: Mount) -> tuple[float, RunInfo]:
    """How many seconds the program compiled, and what the mount knows of it."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(mount.mountpoint / "triton")}
    reports = InsightReports.of(mount.mountpoint)

    def told() -> RunInfo | None:
        reports.entries(settle=True)
        return next((run for run in reports.runs() if run.pid == program.pid), None)

    file = mount.store.with_name("program.py")
    file.write_text(PROGRAM)
    with Program(file, env=environment, stdin=subprocess.PIPE) as program:
        assert program.stdout is not None
        seconds = float(program.stdout.readline())
        run = until(told)
        assert run is not None
        program.communicate("\n")
    return seconds, run


def test_saved_seconds_are_those_of_a_cold_start_less_those_of_a_warm_one() -> None:
    with temporary_folder() as base, Mount(base / "mount", base / "store", "direct") as mount:
        cold, maker = compile_on(mount)
        first = min(InsightReports.of(mount.mountpoint).entries(), key=lambda one: one.began or 0.0)
        assert (maker.misses, maker.hits, maker.unknown_compiled) == (5, 0, 0)
        assert first.cost is not None
        mount.remount()  # so that the kernel asks for every name again
        warm, reader = compile_on(mount)
        assert (reader.misses, reader.hits, reader.unknown_saved) == (0, 5, 0)
        assert maker.seconds_compiled == pytest.approx(reader.seconds_saved)
        assert reader.seconds_saved - first.cost == pytest.approx(cold - warm, rel=0.3)
