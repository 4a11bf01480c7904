"""Measures everything side by side in one run: benchmarks/run [--quick] [--only PART ...].

Writes benchmarks/results/<host>-<date>.json with every figure, and a Markdown table and charts next to it. A whole run
also updates the tables in README.md and benchmarks/README.md. benchmarks/compare compares two results.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from benchmarks import (
    bursts,
    compilers,
    daemon,
    disk,
    files,
    growth,
    load,
    nvrtc,
    operations,
    phases,
    replay,
    report,
    results,
)
from benchmarks.running import Run
from benchmarks.subjects import workplace

FOLDER = Path(__file__).parent / "results"


class Part(NamedTuple):
    """A function that measures, and about how many seconds it has in a whole run and in a quick one."""

    measure: Callable[[Run], None]
    seconds: float
    quick_seconds: float


PARTS = {
    "operations": Part(operations.part, 120, 20),
    "files": Part(files.part, 80, 15),
    "bursts": Part(bursts.part, 120, 25),
    "replay": Part(replay.part, 100, 20),
    "compilers": Part(compilers.part, 280, 15),
    "phases": Part(phases.part, 300, 1),
    "nvrtc": Part(nvrtc.part, 10, 3),
    "disk": Part(disk.part, 30, 8),
    "scale": Part(growth.part, 120, 10),
    "load": Part(load.part, 140, 12),
    "daemon": Part(daemon.part, 130, 12),
}

ALONE = 3
"""A part chosen with --only may take this many times as long, which is enough for all its rounds."""


def main() -> int:
    chosen = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that no mount is left behind
    if chosen.show is not None:
        print(report.markdown(results.load(chosen.show)))
        return 0
    if chosen.publish is not None:
        published = results.load(chosen.publish)
        if published.quick or PARTS.keys() - published.seconds.keys():
            raise SystemExit(f"{chosen.publish} is not from a whole run; make one with: benchmarks/run")
        report.publish(published)
        return 0
    found = results.new(chosen.host, chosen.quick, chosen.directory)
    parts = {name: part for name, part in PARTS.items() if not chosen.only or name in chosen.only}
    whole = not chosen.quick and not chosen.only
    fine = _measure(found, parts, chosen.directory, 1 if whole or chosen.quick else ALONE)
    path = chosen.out / f"{found.host}-{found.date}{'' if whole else '-quick' if chosen.quick else '-part'}.json"
    results.save(found, path)
    path.with_suffix(".md").write_text(report.markdown(found))
    report.draw(found, path.parent, "" if whole else path.stem + "-")
    print(report.markdown(found))
    print(f"every figure: {path}", file=sys.stderr)
    if whole and fine and not chosen.keep_readme:
        report.publish(found)
    return 0 if fine else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/run", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="under two minutes: one round of each, fewer files")
    parser.add_argument(
        "--only",
        choices=PARTS,
        nargs="+",
        metavar="PART",
        help=f"measure only these, with time for more rounds: {', '.join(PARTS)}",
    )
    parser.add_argument("--host", help="name of this machine in the results; by default its kind")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where to write the results")
    parser.add_argument(
        "--directory",
        type=Path,
        default=FOLDER.parent,
        help="where to work; its filesystem appears as ext4 in the results",
    )
    parser.add_argument("--keep-readme", action="store_true", help="do not update the tables in the READMEs")
    parser.add_argument("--show", type=Path, metavar="FILE", help="only print the tables of this result")
    parser.add_argument("--publish", type=Path, metavar="FILE", help="only put this result into the charts and READMEs")
    return parser


def _measure(found: results.Results, parts: dict[str, Part], directory: Path, patience: int) -> bool:
    """Measure the parts; returns whether all succeeded. A part that fails loses only its own figures."""
    fine = True
    budgets = {name: part.quick_seconds if found.quick else part.seconds * patience for name, part in parts.items()}
    with workplace(directory, ".bench-") as base, Display(budgets) as display:
        run = Run(found, base, found.quick, display.say)
        for name, part in parts.items():
            run.begin(name, budgets[name])
            display.begin(name)
            try:
                part.measure(run)
            except Exception as error:
                traceback.print_exc()
                run.leave_out(
                    "everything missing", f"it failed: {str(error).splitlines()[0] if str(error) else error!r}"
                )
                fine = False
            found.seconds[name] = round(time.monotonic() - run.started, 1)
            display.end(name, found.seconds[name])
    return fine


class Display:
    """Shows what is being measured, the progress of the run, and the time it took; plain lines without a terminal.

    It is drawn only between measurements, because a thread that draws would disturb them.
    """

    def __init__(self, budgets: dict[str, float]) -> None:
        self._budgets = budgets
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, auto_refresh=False, transient=True)
        self._task = self._progress.add_task("", total=sum(budgets.values()))
        self._before = 0.0
        self._started = time.monotonic()

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def begin(self, part: str) -> None:
        self._part, self._started = part, time.monotonic()
        self.say(part)

    def say(self, what: str) -> None:
        within = min(time.monotonic() - self._started, self._budgets[self._part])
        self._progress.update(self._task, description=what, completed=self._before + within)
        if self._console.is_terminal:
            self._progress.refresh()

    def end(self, part: str, seconds: float) -> None:
        self._before += self._budgets[part]
        self._console.print(f"{part}: {seconds:.0f} s", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
