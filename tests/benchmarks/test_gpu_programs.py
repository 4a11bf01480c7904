"""How a measured program ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks import gpu_programs
from tests.cli.scene import runs
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import subprocess, sys
from benchmarks import gpu_programs
# In a session of its own, and with a child of a child, like TorchInductor's workers.
helper = "import subprocess; one = subprocess.Popen(['sleep', '1000']); print(one.pid, flush=True); one.wait()"
child = subprocess.Popen(
    [sys.executable, "-c", helper],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,  # a process that held the program's own would be waited for
    text=True,
    start_new_session=True,
)
print(child.pid, child.stdout.readline().strip())
gpu_programs._end()
"""


def test_a_program_ends_with_all_that_it_started() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60)
    assert done.stderr == ""
    started = [int(pid) for pid in done.stdout.split()]
    assert len(started) == 2
    until(lambda: not any(runs(pid) for pid in started))  # they were killed, which takes a moment


def test_who_started_nothing_has_no_descendants() -> None:
    sleeper = subprocess.Popen(["sleep", "1000"])
    try:
        assert gpu_programs._descendants(sleeper.pid) == []
        assert sleeper.pid in gpu_programs._descendants(os.getpid())
    finally:
        sleeper.kill()
        sleeper.wait()
