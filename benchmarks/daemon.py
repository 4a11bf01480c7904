"""What the daemon behind a mount costs: its processor time, and its memory over an hour of churn.

Processor time: user and system seconds of the daemon's processes (for kcachefs including the supervisor) for 10,000
operations and the eight seconds after them, in which files are sealed or written back. A third of the operations each
looks up a missing name, reads a known file of 16 KiB, and puts a file of 16 KiB.

Memory: resident memory over an hour compressed into 60 cold starts, one for each minute. Each start writes the 148
files of a Triton start and reads them back, while the files from three starts before are removed. `growth` is the
memory at the end divided by the memory after a quarter of the time: 1 is flat.

Memory near a quota: the worker's resident memory, at its peak and at the end, while four processes write and read
entries of six files each, from a hundred bytes to four megabytes, under a quota of 64 MiB, until ten times as much has
been written.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

from benchmarks.clients import Gate, together
from benchmarks.measure import corpus, in_turn
from benchmarks.operations import get, put
from benchmarks.peers import opened
from benchmarks.running import SUBJECTS, Run
from benchmarks.scale import memory_of
from benchmarks.subjects import Kcachefs, Subject

DAEMONS = [name for name in SUBJECTS if name not in ("ext4", "tmpfs")]
OPERATIONS = 10_000
STARTS = 60
FILES = 148
KEPT = 3
AFTER = 8.0
WRITERS = 4
QUOTA_MIB = 64
ENTRIES = 150
"""Entries that each writer makes near the quota: ten times the quota together."""


def part(run: Run) -> None:
    with opened(DAEMONS, run.place("daemon"), run.results.absent) as subjects:
        _processor(run, subjects)
    compared = ["bindfs", "rclone", "direct"]
    with opened(compared, run.place("churn"), run.results.absent) as subjects:
        _memory(run, subjects)
    _memory_near_quota(run)


def _processor(run: Run, subjects: dict[str, Subject]) -> None:
    operations = OPERATIONS // (10 if run.quick else 1)
    spent: dict[str, list[float]] = {name: [] for name in subjects}
    # Looked up once: nothing restarts the processes while this runs.
    pids = {name: subject.pids() for name, subject in subjects.items()}
    for number in run.rounds(1 if run.quick else 3, 0.4, "daemon, processor time"):
        before = {name: _seconds(pids[name]) for name in subjects}
        for _, subject in in_turn(subjects, [number]):
            _operate(str(subject.folder / f"round{number}"), operations)
        time.sleep(1 if run.quick else AFTER)
        for name in subjects:
            spent[name].append((_seconds(pids[name]) - before[name]) * OPERATIONS / operations)
    run.add("processor time per 10,000 operations", "s", spent, against="bindfs")


def _operate(folder: str, operations: int) -> None:
    os.mkdir(folder)
    for number in range(operations // 3):
        os.path.exists(f"{folder}/none{number}")
        put(folder, number)
        get(f"{folder}/f{number}")


def _seconds(pids: list[int]) -> float:
    """User and system time so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory(run: Run, subjects: dict[str, Subject]) -> None:
    starts = 6 if run.quick else STARTS
    files = [data for path, data in sorted(corpus().items()) if path.startswith("triton/")][:FILES]
    pids = {name: subject.pids() for name, subject in subjects.items()}
    seen: dict[str, list[float]] = {name: [] for name in subjects}
    for start in run.rounds(starts, 0.45, "daemon, churn"):
        for name, subject in in_turn(subjects, [start]):
            _start(subject.folder, start, files)
            seen[name].append(sum(memory_of(pid)["RSS in MiB"] for pid in pids[name]))
    ends = {name: [values[-1]] for name, values in seen.items()}
    growth = {name: [values[-1] / values[len(values) // 4]] for name, values in seen.items()}
    if (done := len(next(iter(seen.values())))) < STARTS:
        run.leave_out("an hour of churn", f"there was time for only {done} of {STARTS} cold starts")
    run.add("memory after an hour's cold starts", "MiB", ends, against="bindfs")
    run.add("growth of memory over the last three quarters of it", "times", growth, against="")


def _start(base: Path, number: int, files: list[bytes]) -> None:
    folder = base / f"start{number}"
    folder.mkdir()
    for index, data in enumerate(files):
        temporary = folder / f"tmp.{index}"
        temporary.write_bytes(b"%08d" % number + data[8:])
        temporary.rename(folder / f"kernel{index}")
    for index in range(len(files)):
        (folder / f"kernel{index}").read_bytes()
    if number >= KEPT:
        shutil.rmtree(base / f"start{number - KEPT}")


def _memory_near_quota(run: Run) -> None:
    subject = Kcachefs("direct", run.place("quota"), ("--max-size", f"{QUOTA_MIB}MiB"))
    entries = ENTRIES // (10 if run.quick else 1)
    subject.open()
    try:
        run.say("daemon, churn near a quota")
        together(WRITERS, lambda number, gate: _write_entries(subject.folder, number, entries, gate))
        memory = memory_of(subject.worker())
    finally:
        subject.close()
    run.add("memory after churn near a quota", "MiB", {"direct": [memory["RSS in MiB"]]}, against="")
    run.add("memory at the peak of it", "MiB", {"direct": [memory["peak in MiB"]]}, against="")


def _write_entries(base: Path, writer: int, entries: int, gate: Gate) -> None:
    chosen = random.Random(writer)
    gate()
    for number in range(entries):
        folder = base / f"K{writer}.{number}"
        folder.mkdir()
        for part in range(6):
            temporary = folder / f"tmp.{part}"
            temporary.write_bytes(chosen.randbytes(int(10 ** chosen.uniform(2, 6.6))))
            temporary.rename(folder / f"part{part}")
        for part in range(6):
            (folder / f"part{part}").read_bytes()
