"""Cold reads, large files, and a store of a million files."""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.subjects import Kcachefs, Subject, drop_caches
from kcachefs.core import Filesystem
from kcachefs.store import Options, Store
from kcachefs.store.records import ROOT_INO

MIB = 1 << 20


def first_reads(subjects: dict[str, Subject], rounds: int, files: int) -> dict[str, list[float]]:
    """Microseconds for the first open+read+close of files of 16 KiB after a remount, nothing cached."""
    found: dict[str, list[float]] = {name: [] for name in subjects}
    for subject in subjects.values():
        (subject.folder / "cold").mkdir()
        for i in range(files):
            (subject.folder / "cold" / f"f{i}").write_bytes(os.urandom(8 << 10) * 2)
    for _ in range(rounds):
        for name, subject in subjects.items():
            forget_everything(subject)
            os.listdir(subject.folder)
            begin = time.perf_counter()
            for i in range(files):
                descriptor = os.open(f"{subject.folder}/cold/f{i}", os.O_RDONLY)
                os.read(descriptor, 1 << 17)
                os.close(descriptor)
            found[name].append((time.perf_counter() - begin) / files * 1e6)
    return found


def forget_everything(subject: Subject) -> None:
    """Remount, and have the kernel drop what it knows of the files beneath."""
    subject.close()
    drop_caches()
    subject.open()


def sequential(subjects: dict[str, Subject], rounds: int, megabytes: int) -> dict[str, dict[str, list[float]]]:
    """MB/s of writing a large file and of its first reading, of bytes that do not compress and of text."""
    found: dict[str, dict[str, list[float]]] = {}
    for kind, pieces in (("raw", [os.urandom(MIB) for _ in range(64)]), ("compressed", _text(64))):
        for name, subject in subjects.items():
            row = found.setdefault(f"{name}, {kind}", {"write": [], "read": []})
            for _ in range(rounds):
                path = subject.folder / "large"
                row["write"].append(_write(path, pieces, megabytes))
                forget_everything(subject)
                row["read"].append(_read(path))
                path.unlink()
    return found


def _text(megabytes: int) -> list[bytes]:
    """Something that compresses about as compilers' output does."""
    rng = random.Random(1)
    words = [b"%%%d = add nsw i32 %%%d, %d\n" % (rng.randrange(9999), rng.randrange(9999), i) for i in range(20_000)]
    return [b"".join(rng.choices(words, k=45_000))[:MIB].ljust(MIB) for _ in range(megabytes)]


def _write(path: Path, pieces: list[bytes], megabytes: int) -> float:
    begin = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for number in range(megabytes):
            # Each a little different, so that no two frames are alike.
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
    """Stores of so many files: how soon they are mounted, what a lookup costs, what the daemon needs."""
    return {count: _mounted(Kcachefs("direct", base / str(count)), count, asked) for count in counts}


def _mounted(subject: Kcachefs, count: int, asked: int) -> dict[str, float]:
    begin = time.perf_counter()
    subject.base.mkdir(parents=True)
    fill(subject.base / "store", count)
    found = {"made in s": time.perf_counter() - begin}
    drop_caches()
    begin = time.perf_counter()
    subject.open()
    found["mounted in s"] = time.perf_counter() - begin
    try:
        folders = sorted(os.listdir(subject.folder))
        for folder in folders:
            os.stat(subject.folder / folder)
        rng = random.Random(2)
        names = [f"{subject.folder}/{rng.choice(folders)}/f{rng.randrange(PER_FOLDER)}" for _ in range(asked)]
        names = list(dict.fromkeys(names))
        begin = time.perf_counter()
        for name in names:
            os.stat(name)
        found["lookup in µs"] = (time.perf_counter() - begin) / len(names) * 1e6
        found["RSS in MiB"], found["anonymous in MiB"] = memory_of(subject.worker())
    finally:
        with suppress(OSError):
            subject.close()
    return found


PER_FOLDER = 1000


def fill(store: Path, count: int) -> None:
    """Make files in a store through the core, without a mount."""
    with Store(store, Options()) as opened:
        fs = Filesystem(opened)
        triton = fs.lookup(ROOT_INO, b"triton") or ROOT_INO
        for number in range(count // PER_FOLDER):
            folder, _ = fs.make(triton, b"%08x" % number, 0o040755, 0, 0)
            for i in range(PER_FOLDER):
                fs.create(folder, b"f%d" % i, 0o644, 0, 0)
            while fs.files.seal_next(0):
                pass
        fs.settle()


def memory_of(pid: int) -> tuple[float, float]:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024, int(fields["RssAnon"].split()[0]) / 1024
