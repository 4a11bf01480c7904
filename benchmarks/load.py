"""Many processes at once on one mount: operations per second, and median, 99th percentile and worst latency.

Every process repeats three operations: look up a name that does not exist, read a file that all share, and put a file
of 16 KiB under its own name. Each is timed separately. The same is measured while entries are evicted, while a file of
1 GiB is sealed, and with the worker killed in the middle; operations that fail are counted.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import growth
from benchmarks.clients import Gate, together
from benchmarks.filling import fill
from benchmarks.measure import in_turn
from benchmarks.operations import get, put
from benchmarks.peers import opened
from benchmarks.running import Run
from benchmarks.subjects import ROOT, Kcachefs, Subject
from kcachefs.core.sealing import REST_SECONDS

PROCESSES = (1, 2, 4, 8, 16, 32)
SHARED = 200
MIB = 1 << 20
STOP, STARTED = 0, 1
COLUMNS = {"rate": "operations/s", "p50": "µs", "p99": "µs", "worst": "µs"}


class Load(NamedTuple):
    """What all processes of one turn measured together."""

    rate: float
    p50: float
    p99: float
    worst: float
    failed: int


def part(run: Run) -> None:
    counts = (1, 8) if run.quick else PROCESSES
    seconds = 0.4 if run.quick else 1.0
    base = run.place("load")
    with opened(["bindfs", "direct"], base, run.results.absent) as subjects:
        for subject in subjects.values():
            prepare(subject)
        for count in counts:
            found: dict[str, list[Load]] = {name: [] for name in subjects}
            for name, subject in in_turn(subjects, run.rounds(1 if run.quick else 3, 0.08, f"load, {_title(count)}")):
                found[name].append(load(subject, count, seconds))
            _add(run, count, "", found)
    _disturbed(run, base / "disturbed", counts, seconds)


def _disturbed(run: Run, base: Path, counts: tuple[int, ...], seconds: float) -> None:
    subject = Kcachefs("direct", base, ("--max-size", "100GiB", "--grace", "0"))
    entries = 1_500 if run.quick else 20_000
    run.say(f"load, making {entries:,} entries to evict")
    fill(base / "store", entries, growth.PER_ENTRY, filled=1)
    subject.open()
    try:
        prepare(subject)
        megabytes = 128 if run.quick else 1024
        with _evicting(subject) as evicting:
            for count in counts:
                run.say(f"load, {_title(count)}, during eviction")
                under = load(subject, count, seconds)
                if evicting():
                    _add(run, count, ", during eviction", {"direct": [under]})
                else:
                    run.leave_out(f"{_title(count)}, during eviction", "the eviction was over before")
        for count in counts:
            run.say(f"load, {_title(count)}, with the worker killed")
            found = _while_killed(subject, count, seconds)
            _add(run, count, ", worker restart", {"direct": [found]})
        for count in counts:
            run.say(f"load, {_title(count)}, while {megabytes} MiB are being sealed")
            found = _while_sealing(subject, count, megabytes)
            _add(run, count, f", during sealing of {megabytes} MiB", {"direct": [found]})
    finally:
        subject.close()


def _add(run: Run, count: int, when: str, found: dict[str, list[Load]]) -> None:
    """Add the figures with ratios to bindfs, which is always measured undisturbed."""
    what = _title(count)
    for column, unit in COLUMNS.items():
        values = {name: [float(getattr(one, column)) for one in many] for name, many in found.items()}
        quiet = run.results.find(run.part, f"{what}: {column}", "bindfs")
        better = "more" if column == "rate" else "less"
        reference = quiet.values if quiet is not None else None
        run.add(f"{what}{when}: {column}", unit, values, against="bindfs", better=better, reference=reference)
    failed = {name: [float(sum(one.failed for one in many))] for name, many in found.items()}
    if any(value[0] for value in failed.values()):
        run.add(f"{what}{when}: failed", "operations", failed, against="")


def _title(count: int) -> str:
    return f"{count} process{'es' if count > 1 else ''}"


def prepare(subject: Subject) -> None:
    (subject.folder / "shared").mkdir()
    for number in range(SHARED):
        put(f"{subject.folder}/shared", number)


def load(subject: Subject, count: int, seconds: float, signals: mmap.mmap | None = None) -> Load:
    """Run `count` processes for `seconds`, or until `signals[STOP]` is set; they set `signals[STARTED]`."""
    shared = signals or mmap.mmap(-1, 2)
    folder = subject.folder / f"load{time.monotonic_ns()}"
    folder.mkdir()

    def work(number: int, gate: Gate) -> tuple[list[float], float, int]:
        os.mkdir(f"{folder}/{number}")
        gate()
        shared[STARTED] = 1
        return _one(str(subject.folder / "shared"), f"{folder}/{number}", number, seconds, shared)

    clients = together(count, work)
    subprocess.run(["rm", "-r", str(folder)], check=True)
    every = sorted(one for taken, _, _ in clients for one in taken)
    return Load(
        sum(len(taken) / lasted for taken, lasted, _ in clients),
        every[len(every) // 2] * 1e6,
        every[len(every) * 99 // 100] * 1e6,
        every[-1] * 1e6,
        sum(failed for _, _, failed in clients),
    )


def _one(shared: str, mine: str, number: int, seconds: float, signals: mmap.mmap) -> tuple[list[float], float, int]:
    rng = random.Random(number)
    taken: list[float] = []
    failed = turn = 0
    acts: tuple[Callable[[int], object], ...] = (
        lambda turn: os.path.exists(f"{mine}/none{turn}"),
        lambda turn: get(f"{shared}/f{rng.randrange(SHARED)}"),
        lambda turn: put(mine, turn),
    )
    start = time.perf_counter()
    end = start + seconds
    while time.perf_counter() < end and not signals[STOP]:
        turn += 1
        for act in acts:
            begin = time.perf_counter()
            try:
                act(turn)
            except OSError:
                failed += 1
            taken.append(time.perf_counter() - begin)
    return taken, time.perf_counter() - start, failed


# --- disturbances -----------------------------------------------------------------------------------------------------


@contextmanager
def _evicting(subject: Kcachefs) -> Iterator[Callable[[], bool]]:
    """Evict everything that the store was filled with; yields a function that tells whether this still goes on."""
    command = [sys.executable, "-m", "kcachefs", "prune", "--mount", str(subject.mountpoint), "--unused"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        yield lambda: process.poll() is None
    finally:
        # Killing the worker ends the rest of the eviction, which is not worth waiting for.
        process.terminate()
        process.wait()
        worker = subject.worker()
        os.kill(worker, signal.SIGKILL)
        growth.until_replaced(subject, worker)


def _while_killed(subject: Kcachefs, count: int, seconds: float) -> Load:
    """Kill the worker after a third of the time."""
    worker, signals = subject.worker(), mmap.mmap(-1, 2)

    def kill() -> None:
        while not signals[STARTED]:
            time.sleep(0.005)
        time.sleep(seconds / 3)
        os.kill(worker, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        found = load(subject, count, seconds, signals)
    finally:
        signals[STARTED] = 1  # so that the thread ends even if the clients never started
        killer.join()
    growth.until_replaced(subject, worker)
    return found


def _while_sealing(subject: Kcachefs, count: int, megabytes: int) -> Load:
    """Load from when sealing can begin, two seconds after the last write, until it is done.

    Until then the mount is left alone, because the sealer would wait for a pause.
    """
    path = subject.root / "cupy" / "large"
    pieces = [os.urandom(MIB // 4) * 4 for _ in range(8)]
    with open(path, "wb", buffering=0) as file:
        for number in range(megabytes):
            file.write(number.to_bytes(8, "little") + pieces[number % len(pieces)][8:])
    before = subject.stats()["store"]["unique_bytes"]
    time.sleep(REST_SECONDS + 0.1)
    signals = mmap.mmap(-1, 2)

    def watch() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and subject.stats()["store"]["unique_bytes"] < before + megabytes * MIB:
            time.sleep(0.05)
        signals[STOP] = 1

    watcher = threading.Thread(target=watch)
    watcher.start()
    found = load(subject, count, 60, signals)
    watcher.join()
    path.unlink()
    return found
