"""Cold reads, large files, and a store of a million files."""

from __future__ import annotations

import os
import random
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.filling import fill
from benchmarks.subjects import Kcachefs, Subject, drop_caches

MIB = 1 << 20


def first_reads(subjects: dict[str, Subject], rounds: int, files: int) -> dict[str, list[float]]:
    """Microseconds for the first open, read and close of 16 KiB files after a remount with nothing cached."""
    found: dict[str, list[float]] = {name: [] for name in subjects}
    for subject in subjects.values():
        (subject.folder / "cold").mkdir()
        for i in range(files):
            (subject.folder / "cold" / f"f{i}").write_bytes(os.urandom(8 << 10) * 2)
    for _ in range(rounds):
        for name, subject in subjects.items():
            subject.forget()
            os.listdir(subject.folder)
            begin = time.perf_counter()
            for i in range(files):
                descriptor = os.open(f"{subject.folder}/cold/f{i}", os.O_RDONLY)
                os.read(descriptor, 1 << 17)
                os.close(descriptor)
            found[name].append((time.perf_counter() - begin) / files * 1e6)
    return found


def sequential(subjects: dict[str, Subject], rounds: int, megabytes: int) -> dict[str, dict[str, list[float]]]:
    """MB/s of writing a large file and of reading it the first time, for incompressible bytes and for text."""
    found: dict[str, dict[str, list[float]]] = {}
    for kind, pieces in (("raw", [os.urandom(MIB) for _ in range(64)]), ("compressed", _text(64))):
        for name, subject in subjects.items():
            row = found.setdefault(f"{name}, {kind}", {"write": [], "read": []})
            for _ in range(rounds):
                path = subject.folder / "large"
                row["write"].append(_write(path, pieces, megabytes))
                subject.forget()
                row["read"].append(_read(path))
                path.unlink()
    return found


def _text(megabytes: int) -> list[bytes]:
    """Text that compresses about as well as compiler output."""
    rng = random.Random(1)
    words = [b"  %%%d = fmul <8 x float> %%%d, %%x%d, !dbg !%d\n" % (i, rng.randrange(999), i, i) for i in range(1_000)]
    return [b"".join(rng.choices(words, k=32_000))[:MIB].ljust(MIB) for _ in range(megabytes)]


def _write(path: Path, pieces: list[bytes], megabytes: int) -> float:
    begin = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for number in range(megabytes):
            # Each piece differs a little, so that no two frames are equal.
            file.write(number.to_bytes(8, "little") + pieces[number % len(pieces)][8:])
    return megabytes * MIB / 1e6 / (time.perf_counter() - begin)


def _read(path: Path) -> float:
    buffer = bytearray(MIB)
    total, begin = 0, time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total / 1e6 / (time.perf_counter() - begin)


def many_files(base: Path, counts: list[int], asked: int) -> dict[int, dict[str, float]]:
    """For stores of these sizes: how soon they are mounted, what a lookup costs, how much memory the daemon takes."""
    found: dict[int, dict[str, float]] = {count: {} for count in counts}
    with ExitStack() as stack:
        subjects = {count: Kcachefs("direct", base / str(count)) for count in counts}
        for count, subject in subjects.items():
            begin = time.perf_counter()
            fill(subject.base / "store", count // PER_FOLDER, PER_FOLDER, filled=0)
            found[count]["made in s"] = time.perf_counter() - begin
        drop_caches()
        for count, subject in subjects.items():
            begin = time.perf_counter()
            subject.open()
            found[count]["mounted in s"] = time.perf_counter() - begin
            stack.callback(subject.close)
        names = {count: _some_names(subject, 2 * asked) for count, subject in subjects.items()}
        for column in ("cold lookup in µs", "lookup in µs"):
            costs: dict[int, list[float]] = {count: [] for count in counts}
            for _ in range(asked // CHUNK):
                for count in counts:
                    chunk, names[count] = names[count][:CHUNK], names[count][CHUNK:]
                    costs[count].append(_stat_all(chunk))
            for count, subject in subjects.items():
                found[count][column] = statistics.median(costs[count])
                (
                    subject.base / "store" / "catalog" / "data.mdb"
                ).read_bytes()  # into the page cache, so that the disk is not measured from here on
        time.sleep(2)  # the daemon trims its memory every second
        for count, subject in subjects.items():
            found[count] |= memory_of(subject.worker())
    return found


def _some_names(subject: Kcachefs, wanted: int) -> list[str]:
    """Random distinct paths in folders that the kernel knows."""
    folders = os.listdir(subject.folder)
    for folder in folders:
        os.stat(subject.folder / folder)
    every = [f"{subject.folder}/{folder}/f{number}" for folder in folders for number in range(PER_FOLDER)]
    return random.Random(2).sample(every, min(wanted, len(every)))


def _stat_all(names: list[str]) -> float:
    begin = time.perf_counter()
    for name in names:
        os.stat(name)
    return (time.perf_counter() - begin) / len(names) * 1e6


CHUNK = 250
PER_FOLDER = 1000


def memory_of(pid: int) -> dict[str, float]:
    """A process's resident memory now, at its peak, and the part of it that is not from files."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    names = {"RSS in MiB": "VmRSS", "peak in MiB": "VmHWM", "anonymous in MiB": "RssAnon"}
    return {name: int(fields[field].split()[0]) / 1024 for name, field in names.items()}
