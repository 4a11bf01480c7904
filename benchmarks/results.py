"""The results of a run as a file: figures with their spread, ratios to a peer of the same run, and the machine.

A `median` is that of the rounds, `low` and `high` are their tenth and ninetieth percentile. A `ratio` is the median of
the ratios within each round, so that noise that affects a whole round cancels out.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from itertools import cycle
from pathlib import Path

import msgspec

from benchmarks.measure import tenths
from benchmarks.subjects import ROOT

SCHEMA = 1


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measurement: `part` and `what` say what was measured, `subject` says of which filesystem."""

    part: str
    what: str
    subject: str
    unit: str
    median: float
    low: float
    high: float
    values: list[float]
    better: str = "less"
    against: str = ""
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.part, self.what, self.subject


class Results(msgspec.Struct):
    """Everything that one run measured."""

    schema: int
    host: str
    date: str
    commit: str
    quick: bool
    machine: dict[str, str]
    versions: dict[str, str]
    absent: dict[str, str] = {}
    """Peers that could not take part, and why."""
    left_out: dict[str, str] = {}
    """What was not measured in this run, and why."""
    seconds: dict[str, float] = {}
    """How long each part took."""
    figures: list[Figure] = []

    def add(
        self,
        part: str,
        what: str,
        unit: str,
        values: dict[str, list[float]],
        *,
        against: str = "ext4",
        better: str = "less",
        reference: list[float] | None = None,
    ) -> None:
        """Add a row of figures, one for each subject, with ratios to the subject `against` if it was measured.

        If `against` is not in the row itself, its values are in `reference`.
        """
        for subject, mine in values.items():
            if not mine:
                continue
            theirs = values.get(against, reference) if subject != against else None
            middle, low, high = (_short(value) for value in tenths(mine))
            figure = Figure(part, what, subject, unit, middle, low, high, [_short(one) for one in mine], better)
            if theirs and all(theirs):
                each = [a / b for a, b in zip(mine, theirs if against in values else cycle(theirs), strict=False)]
                ratio, ratio_low, ratio_high = (_short(value) for value in tenths(each))
                figure = msgspec.structs.replace(
                    figure, against=against, ratio=ratio, ratio_low=ratio_low, ratio_high=ratio_high
                )
            self.figures.append(figure)

    def find(self, part: str, what: str, subject: str) -> Figure | None:
        return next((one for one in self.figures if one.key == (part, what, subject)), None)

    def of(self, part: str) -> dict[str, dict[str, Figure]]:
        """The rows of a part, by what was measured and by subject, in the order in which they were added."""
        rows: dict[str, dict[str, Figure]] = {}
        for one in self.figures:
            if one.part == part:
                rows.setdefault(one.what, {})[one.subject] = one
        return rows


def new(host: str | None, quick: bool, directory: Path = ROOT) -> Results:
    machine = describe_machine(directory)
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    return Results(SCHEMA, host or _neutral_name(machine), date, _commit(), quick, machine, versions())


def save(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def load(path: Path) -> Results:
    found = msgspec.json.decode(path.read_bytes(), type=Results)
    if found.schema != SCHEMA:
        raise SystemExit(f"{path} has schema {found.schema}, but this version reads {SCHEMA}; measure again")
    return found


def _short(value: float) -> float:
    """Five digits, more than any measurement here is worth."""
    return float(f"{value:.5g}")


# --- the machine ------------------------------------------------------------------------------------------------------


def describe_machine(folder: Path) -> dict[str, str]:
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    memory = int(fields["MemTotal"].split()[0]) / (1 << 20)
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": found.group(1).strip() if found else platform.machine(),
        "memory": f"{memory:.0f} GiB",
        "kernel": f"Linux {'.'.join(platform.release().split('-')[0].split('.')[:2])}",
        "disk": _disk(folder),
    }


def _disk(folder: Path) -> str:
    """The filesystem that the benchmarks work on."""
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return f"{kind.replace('ext2/ext3', 'ext4') or 'unknown'}, {shutil.disk_usage(folder).total >> 30} GiB"


def _neutral_name(machine: dict[str, str]) -> str:
    """The kind of machine; a host name does not belong in a published result."""
    return f"{machine['cores']}-cores-{machine['memory'].replace(' ', '').lower()}"


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("kcachefs", "pyfuse3", "lmdb", "zstandard", "blake3", "torch", "triton", "cuda-core"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if "kcachefs" not in found:
        import kcachefs

        found["kcachefs"] = kcachefs.__version__
    programs = ("bindfs", "mergerfs", "rclone", "gocryptfs", "mksquashfs", "mkfs.btrfs", "fusermount3")
    for program in programs:
        if number := _version_of(program):
            found[program] = number
    return found


def _version_of(program: str) -> str | None:
    if shutil.which(program) is None:
        return None
    option = "-version" if program == "mksquashfs" else "--version"
    done = subprocess.run([program, option], capture_output=True, text=True, check=False)
    number = re.search(r"\d+\.\d+(\.\d+)*", done.stdout + done.stderr)
    return number.group() if number else None
