"""The seven operations that a cache directory has to serve, each timed over many files, in microseconds.

Warm: the kernel has seen the names and files before. Cold: after a remount and with the kernel's caches dropped, each
name and file is new. With several clients, each has its own folders, except that all list the same one; all do the same
operation at the same time, and the figure is how long one of them waits.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.clients import Gate, busy_loops, together
from benchmarks.measure import in_turn
from benchmarks.peers import opened
from benchmarks.running import SUBJECTS, Run
from benchmarks.subjects import Subject

SIZE = 16 << 10
LISTED = 1000
COLUMNS = ("put", "stat", "miss", "miss again", "get", "listdir", "mkdir+rmdir")
TITLES = {
    "put": "create+write 16 KiB+close+replace",
    "stat": "stat, warm",
    "miss": "first ENOENT",
    "miss again": "ENOENT again",
    "get": "open+read 16 KiB+close, warm",
    "listdir": "listdir of 1,000",
    "mkdir+rmdir": "mkdir+rmdir",
}
TARGETS = {
    "ext4": {"put": 4.0, "stat": 1.3, "miss": 3.0, "get": 1.6, "listdir": 1.0, "mkdir+rmdir": 1.7},
    "bindfs": {"put": 1.3, "stat": 1.0, "miss": 1.0, "get": 0.35, "listdir": 0.5, "mkdir+rmdir": 0.9},
}
"""How many times as long as these the direct engine may take."""

BUSY_LOOPS = 2
"""Processes that compute and do nothing else, for what is measured beside load."""
_NOISE = os.urandom(SIZE)
_serial = itertools.count()

Round = dict[str, float]


def part(run: Run) -> None:
    with opened(SUBJECTS, run.place("operations"), run.results.absent) as subjects:
        for clients, kind, way, beside, share in (
            (1, "warm", measure, 0, 0.15),
            (1, "cold", measure_cold, 0, 0.2),
            (8, "warm", measure, 0, 0.2),
            (8, "cold", measure_cold, 0, 0.25),
            (1, "warm", measure, BUSY_LOOPS, 0.1),
            (1, "cold", measure_cold, BUSY_LOOPS, 0.1),
        ):
            title = f"{clients} client{'s' if clients > 1 else ''}, {kind}{', beside load' if beside else ''}"
            if run.quick and (beside or title == "8 clients, cold"):
                run.leave_out(title, "a quick run has no time for it")
                continue
            most = 1 if run.quick else 15
            files = 60 if clients > 1 or run.quick else 300
            with busy_loops(beside):
                found = way(subjects, run.rounds(most, share, f"operations, {title}"), files, clients)
            for column in COLUMNS:
                if column in next(iter(found.values()))[0]:
                    values = {name: [each[column] for each in rounds] for name, rounds in found.items()}
                    run.add(f"{column}, {title}", "µs", values)


def measure(
    subjects: dict[str, Subject], rounds: Iterable[int], files: int, clients: int = 1
) -> dict[str, list[Round]]:
    """Measure every subject in turn in each round, so that noise affects them all."""
    found: dict[str, list[Round]] = {name: [] for name in subjects}
    for name, subject in in_turn(subjects, rounds):
        folders = [f"{subject.folder}/round{next(_serial)}" for _ in range(clients)]

        def work(number: int, gate: Gate, folders: list[str] = folders) -> Round:
            return _warm_round(folders, number, files, gate)

        found[name].append(_mean(together(clients, work)))
        for folder in folders:
            shutil.rmtree(
                folder, ignore_errors=True
            )  # rclone may still be busy with its files; nothing uses the folder again
    return found


def measure_cold(
    subjects: dict[str, Subject], rounds: Iterable[int], files: int, clients: int = 1
) -> dict[str, list[Round]]:
    """The same for names and files that are new to the kernel; there is no second miss then."""
    found: dict[str, list[Round]] = {name: [] for name in subjects}
    cold = f"cold{next(_serial)}"
    for subject in subjects.values():
        _prepare(subject.folder / cold, files, clients)
    for name, subject in in_turn(subjects, rounds):
        subject.forget()
        os.listdir(subject.folder)
        turn = next(_serial)

        def work(number: int, gate: Gate, base: str = f"{subject.folder}/{cold}", turn: int = turn) -> Round:
            return _cold_round(base, number, turn, files, gate)

        found[name].append(_mean(together(clients, work)))
    for subject in subjects.values():
        shutil.rmtree(subject.folder / cold, ignore_errors=True)
    return found


def _warm_round(folders: list[str], number: int, files: int, gate: Gate) -> Round:
    folder, listed = folders[number], folders[0]
    os.mkdir(folder)
    done: Round = {}
    done["put"] = _timed(gate, lambda i: put(folder, i), files)
    if folder == listed:
        for i in range(files, LISTED):  # the listing always has a thousand names
            put(folder, i)
    for _ in range(2):
        done["stat"] = _timed(gate, lambda i: os.stat(f"{folder}/f{i}"), files)
    for column in ("miss", "miss again"):
        done[column] = _timed(gate, lambda i: os.path.exists(f"{folder}/none{i}"), files)
    for i in range(files):
        get(f"{folder}/f{i}")
    done["get"] = _timed(gate, lambda i: get(f"{folder}/f{i}"), files)
    os.listdir(listed)
    done["listdir"] = _timed(gate, lambda i: os.listdir(listed), 10)
    done["mkdir+rmdir"] = _timed(gate, lambda i: _make_and_remove(folder, i), max(1, files // 3))
    return done


def _prepare(base: Path, files: int, clients: int) -> None:
    """Make each client's folders for stat and get, and the one that all clients list."""
    for name, count in [
        *((f"{kind}{number}", files) for kind in ("stat", "get") for number in range(clients)),
        ("listed", LISTED),
    ]:
        (base / name).mkdir(parents=True)
        for i in range(count):
            put(f"{base}/{name}", i)


def _cold_round(base: str, number: int, turn: int, files: int, gate: Gate) -> Round:
    mine = f"{base}/new{number}-{turn}"
    os.mkdir(mine)
    stat, got = f"{base}/stat{number}", f"{base}/get{number}"
    return {
        "stat": _timed(gate, lambda i: os.stat(f"{stat}/f{i}"), files),
        "miss": _timed(gate, lambda i: os.path.exists(f"{stat}/none{turn}-{i}"), files),
        "get": _timed(gate, lambda i: get(f"{got}/f{i}"), files),
        "listdir": _timed(gate, lambda i: os.listdir(f"{base}/listed"), 1),
        "put": _timed(gate, lambda i: put(mine, i), files),
        "mkdir+rmdir": _timed(gate, lambda i: _make_and_remove(mine, i), max(1, files // 3)),
    }


def put(folder: str, i: int) -> None:
    """Write a file as frameworks do: under a temporary name, then renamed. No two contents are equal."""
    temporary = f"{folder}/tmp.{i}"
    descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
    os.write(descriptor, b"%d %d " % (os.getpid(), next(_serial)) + _NOISE[32:])
    os.close(descriptor)
    os.replace(temporary, f"{folder}/f{i}")


def get(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.read(descriptor, 1 << 17)
    os.close(descriptor)


def _make_and_remove(folder: str, i: int) -> None:
    os.mkdir(f"{folder}/dir{i}")
    os.rmdir(f"{folder}/dir{i}")


def _timed(gate: Gate, operation: Callable[[int], object], count: int) -> float:
    gate()
    begin = time.perf_counter()
    for i in range(count):
        operation(i)
    return (time.perf_counter() - begin) / count * 1e6


def _mean(rounds: list[Round]) -> Round:
    return {column: statistics.fmean(each[column] for each in rounds) for column in rounds[0]}


def ratio(found: dict[str, list[Round]], name: str, other: str, column: str) -> float:
    """The median of the ratios of neighbouring rounds."""
    pairs = zip(found[name], found[other], strict=True)
    return statistics.median(mine[column] / theirs[column] for mine, theirs in pairs)
