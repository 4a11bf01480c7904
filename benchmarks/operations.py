"""The seven operations that caches consist of, each timed over many files: microseconds per operation."""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.subjects import Subject

SIZE = 16 << 10
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
"""How much slower than these the direct engine may be."""

_NOISE = os.urandom(SIZE)
_serial = itertools.count()

Round = dict[str, float]


def measure(subjects: dict[str, Subject], rounds: int, files: int) -> dict[str, list[Round]]:
    """Every subject in turn, again and again: what disturbs the machine disturbs them all."""
    found: dict[str, list[Round]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            found[name].append(_one_round(subject.folder, files))
    return found


def _one_round(base: Path, files: int) -> Round:
    folder = f"{base}/round{next(_serial)}"
    os.mkdir(folder)
    content = bytearray(_NOISE)

    def put(i: int) -> None:
        content[:8] = next(_serial).to_bytes(8, "little")
        temporary = f"{folder}/tmp.{i}"
        descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
        os.write(descriptor, content)
        os.close(descriptor)
        os.replace(temporary, f"{folder}/f{i}")

    def get(i: int) -> None:
        descriptor = os.open(f"{folder}/f{i}", os.O_RDONLY)
        os.read(descriptor, 1 << 17)
        os.close(descriptor)

    def make_and_remove(i: int) -> None:
        os.mkdir(f"{folder}/dir{i}")
        os.rmdir(f"{folder}/dir{i}")

    done = {"put": _timed(put, files)}
    for i in range(files, 1000):  # the listing is of a thousand, however few are timed
        put(i)
    _timed(lambda i: os.stat(f"{folder}/f{i}"), files)
    done["stat"] = _timed(lambda i: os.stat(f"{folder}/f{i}"), files)
    for column in ("miss", "miss again"):
        done[column] = _timed(lambda i: os.path.exists(f"{folder}/none{i}"), files)
    for i in range(files):
        get(i)
    done["get"] = _timed(get, files)
    os.listdir(folder)
    done["listdir"] = _timed(lambda i: os.listdir(folder), 10)
    done["mkdir+rmdir"] = _timed(make_and_remove, files // 3)
    shutil.rmtree(folder)
    return done


def _timed(operation: Callable[[int], object], count: int) -> float:
    begin = time.perf_counter()
    for i in range(count):
        operation(i)
    return (time.perf_counter() - begin) / count * 1e6


def ratio(found: dict[str, list[Round]], name: str, other: str, column: str) -> float:
    """How much slower, in the median of the rounds: each is compared with its neighbour in time."""
    pairs = zip(found[name], found[other], strict=True)
    return statistics.median(mine[column] / theirs[column] for mine, theirs in pairs)


def spread(values: list[float]) -> tuple[float, float, float]:
    """Median, and the tenth and ninetieth percentile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return statistics.median(values), tenths[0], tenths[-1]
