"""Bursts of small files: what the imports of a large program ask of a filesystem, by one process and by eight.

4,000 real bytecode files are opened and read in the order of their paths, as `import` does it. Warm is the second time;
cold is after a remount with nothing cached. The imports are those of torch with its compiler, from bytecode that lies
under a prefix on each filesystem; most of a cold one is reading torch's own libraries, which is the same for both.
The last rows are those imports under `kcachefs run`, cold: of a command with a start profile, and of one without.

Alone: python -m benchmarks.bursts [--rounds N]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.measure import in_turn
from benchmarks.running import Run
from benchmarks.subjects import Kcachefs, Subject, kcachefs, workplace

FILES, LARGEST = 4_000, 256 << 10
PROCESSES = (1, 8)
IMPORTS = "import torch, torch._dynamo, torch._inductor.compile_fx"
STARTS, KNOWN = "a start with its imports, cold, by kcachefs run", "known"
ENVIRONMENT = "cpython-0123456789abcdef"
ORDER = ("ext4", "direct", "not read ahead", "read ahead")

_READER = """
import io, sys, time
paths = open(sys.argv[1]).read().splitlines()
print("ready", flush=True)
sys.stdin.readline()
for path in paths:
    with io.open_code(path) as file:
        file.read()
print("done", flush=True)
"""

Values = dict[str, dict[str, list[float]]]
"""Seconds, by what was measured and by filesystem."""


def part(run: Run) -> None:
    found = measure(run.place("bursts"), run.rounds(1 if run.quick else 5, doing="bursts"), imports=not run.quick)
    for what, values in found.items():
        milliseconds = {name: [1000 * one for one in many] for name, many in values.items()}
        run.add(what, "ms", milliseconds, against=next(iter(values)))


def measure(base: Path, rounds: Iterator[int], *, imports: bool) -> Values:
    """Seconds of every burst, on a plain directory and on a mount in turns."""
    subjects: dict[str, Subject] = {"ext4": Subject("ext4", base / "ext4"), "direct": Kcachefs("direct", base / "d")}
    has_torch = imports and importlib.util.find_spec("torch") is not None
    lists = {}
    found: Values = {}
    with contextlib.ExitStack() as scope:
        for name, subject in subjects.items():
            subject.open()
            scope.callback(subject.close)
            # Not in this process: if it used the mount, all commands below it would be one run that began long ago.
            with ProcessPoolExecutor(1) as apart:
                lists[name] = apart.submit(_fill, subject.root / "python" / ENVIRONMENT, base / f"{name}.txt").result()
            if has_torch:
                _import(subject)
        for name, subject in in_turn(subjects, rounds):
            for count in PROCESSES:
                who = "1 process" if count == 1 else f"{count} processes"
                subject.forget()
                for state in ("cold", "warm"):
                    what = f"{FILES:,} modules, {who}, {state}"
                    found.setdefault(what, {}).setdefault(name, []).append(_burst(lists[name], count))
            if has_torch:
                subject.forget()
                for state in ("cold", "warm", "warm", "warm"):
                    what = f"imports of torch and its compiler, {state}"
                    found.setdefault(what, {}).setdefault(name, []).append(_import(subject))
            if has_torch and isinstance(subject, Kcachefs):
                _run(subject, KNOWN)
                for which, command in (("not read ahead", f"{KNOWN} {time.monotonic_ns()}"), ("read ahead", KNOWN)):
                    subject.forget()
                    found.setdefault(STARTS, {}).setdefault(which, []).append(_run(subject, command))
    return {what: {name: values[name] for name in ORDER if name in values} for what, values in found.items()}


def _fill(folder: Path, listed: Path) -> Path:
    """Put real bytecode there, under the paths of its sources, and write down where."""
    paths: list[str] = []
    for library in (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["stdlib"]):
        for source in sorted(Path(library).rglob("__pycache__/*.pyc")):
            if len(paths) < FILES and source.stat().st_size <= LARGEST and ".opt-" not in source.name:
                target = folder / source.parent.parent.relative_to("/") / source.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes())
                paths.append(str(target))
    if len(paths) < FILES:
        raise ValueError(f"there are only {len(paths):,} bytecode files here; run: python -m compileall")
    listed.write_text("\n".join(paths))
    return listed


def _burst(listed: Path, count: int) -> float:
    """Seconds until all processes have read everything; they are started and ready before."""
    readers = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", _READER, str(listed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for reader in readers:
        assert reader.stdout is not None
        reader.stdout.readline()
    began = time.perf_counter()
    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.write("go\n")
        reader.stdin.flush()
    for reader in readers:
        assert reader.stdout is not None
        if reader.stdout.readline() != "done\n":
            raise ValueError("a reader failed")
    taken = time.perf_counter() - began
    for reader in readers:
        reader.communicate()
    return taken


def _import(subject: Subject) -> float:
    prefix = {"PYTHONPYCACHEPREFIX": str(subject.root / "python" / "imports"), "PYTHONDONTWRITEBYTECODE": ""}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], env={**os.environ, **prefix}, check=True)
    return time.perf_counter() - began


def _run(subject: Kcachefs, name: str) -> float:
    """A start by `kcachefs run` under that name."""
    prefix = f"PYTHONPYCACHEPREFIX={subject.root / 'python' / 'imports'}"
    command = ["env", prefix, "PYTHONDONTWRITEBYTECODE=", sys.executable, "-c", IMPORTS]
    began = time.perf_counter()
    kcachefs("run", "--mount", subject.mountpoint, "-q", "--bytecode", "off", "--name", name, "--", *command)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bursts", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-imports", action="store_true", help="only the files")
    parser.add_argument("--directory", type=Path, default=Path(__file__).parent, help="where to work")
    chosen = parser.parse_args()
    with workplace(chosen.directory, ".bench-") as base:
        found = measure(base, iter(range(chosen.rounds)), imports=not chosen.no_imports)
    print("| seconds | ext4, or not read ahead | kcachefs, or read ahead | ratio |\n| --- | --- | --- | --- |")
    for what, values in found.items():
        theirs, mine = values.values()
        ratio = statistics.median(one / other for one, other in zip(mine, theirs, strict=True))
        print(f"| {what} | {statistics.median(theirs):.3f} | {statistics.median(mine):.3f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
