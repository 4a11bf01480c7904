"""A cache of 5,000 files shaped like real ones: unpacked, read back and removed, in files per second.

Unpacking does what `tar` does: it makes folders, and writes and closes files under their final names. Sealing and
writing back happen later in the background, for every filesystem. The cache is read back after a remount with nothing
cached, and removed by `rm -r`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

from benchmarks.measure import corpus, in_turn, stopwatch
from benchmarks.peers import opened
from benchmarks.running import SUBJECTS, Run
from benchmarks.subjects import Kcachefs, empty

ACTS = ("unpack", "read back", "rm -r")
TRIES = 20


class WrongBytes(ValueError):
    """A file does not hold what was written to it."""


def part(run: Run) -> None:
    tree = cache_of(855 if run.quick else 5_000)
    rates: dict[str, dict[str, list[float]]] = {act: {} for act in ACTS}
    wrong: set[str] = set()
    with opened(SUBJECTS, run.place("files"), run.results.absent) as subjects:
        for name, subject in in_turn(subjects, run.rounds(1 if run.quick else 5, doing="files")):
            if name in wrong:
                continue
            seconds = {"unpack": unpack(tree, subject.root)}
            subject.forget()
            try:
                seconds["read back"] = read_back(tree, subject.root)
            except WrongBytes:
                if isinstance(subject, Kcachefs):
                    raise
                wrong.add(name)  # rclone does this: it is still writing back after the remount
                run.leave_out(name, "after a remount it returned other bytes than were written")
                continue
            with stopwatch() as removing:
                _remove(subject.root)
            seconds["rm -r"] = removing[0]
            for act, taken in seconds.items():
                rates[act].setdefault(name, []).append(len(tree) / taken)
    for act in ACTS:
        right = {name: values for name, values in rates[act].items() if name not in wrong}
        run.add(f"{act} of {len(tree):,} files", "files/s", right, better="more")


def _remove(root: Path) -> None:
    """Try again on failure: rclone may still list files that it has removed, and then refuses to remove the folder."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(subprocess.CalledProcessError):
            empty(root)
            return
    empty(root)


def cache_of(count: int) -> list[tuple[str, bytes]]:
    """The corpus repeated under new names and with changed bytes, so that no two files are equal."""
    files = sorted(corpus().items())
    made: list[tuple[str, bytes]] = []
    for copy in range(-(-count // len(files))):
        for path, data in files:
            namespace, _, rest = path.partition("/")
            stamp = b"%08d" % copy if copy else b""
            made.append((f"{namespace}/{copy}{rest}", stamp + data[len(stamp) :]))
    return made[:count]


def unpack(tree: list[tuple[str, bytes]], base: Path) -> float:
    begin = time.perf_counter()
    known: set[str] = set()
    for path, data in tree:
        folder = os.path.dirname(path)
        if folder not in known:
            os.makedirs(base / folder, exist_ok=True)
            known.add(folder)
        descriptor = os.open(f"{base}/{path}", os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
        os.write(descriptor, data)
        os.close(descriptor)
    return time.perf_counter() - begin


def read_back(tree: list[tuple[str, bytes]], base: Path) -> float:
    """Read everything and compare it with what was written; the comparison is not timed."""
    begin = time.perf_counter()
    found = []
    for path, _ in tree:
        with open(f"{base}/{path}", "rb", buffering=0) as file:
            found.append(file.readall())
    taken = time.perf_counter() - begin
    for (path, data), read in zip(tree, found, strict=True):
        if read != data:
            raise WrongBytes(path)
    return taken
