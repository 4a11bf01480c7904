"""Measures the library beside its peers, in one run: `python -m benchmarks.library [--quick]`.

Peers take turns within each round, so that whatever else the machine does affects all of them alike; figures are
medians. Trust the ratios rather than the microseconds.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import kernels, tile_kernels
from kcachefs import Cache, cached
from kcachefs.keys import hash_function, program_key

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Row:
    """One line of the table. A limit is met by a figure that is at most that, or at least that for a speed-up."""

    what: str
    figure: float
    unit: str
    limit: float | None = None
    beside: str = ""

    @property
    def is_met(self) -> bool | None:
        if self.limit is None:
            return None
        return self.figure >= self.limit if self.unit == "times faster" else self.figure <= self.limit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: seconds instead of a minute")
    rounds = 200 if parser.parse_args().quick else 2000
    rows = [*imports(), *levels(rounds), *sizes(rounds), *programs(rounds), *keys(rounds)]
    rows += [*handles(rounds), *makes(rounds), *processes(rounds // 2)]
    table = Table("what", "figure", "target", "", "beside", title="kcachefs library")
    for row in rows:
        asked = "" if row.limit is None else f"{row.limit:g}"
        met = {None: "", True: "met", False: "MISSED"}[row.is_met]
        table.add_row(row.what, f"{row.figure:.2f} {row.unit}", asked, met, row.beside)
    Console(width=150).print(table)


def take_turns(rounds: int, *calls: Callable[[], Any], batch: int = 1) -> list[float]:
    """The median of each call in microseconds, each round in another order; very short calls are timed in batches."""
    times: list[list[float]] = [[] for _ in calls]
    turns = list(zip(calls, times, strict=True))
    rng = random.Random(rounds)
    for _ in range(rounds):
        rng.shuffle(turns)
        for call, seen in turns:
            begin = time.perf_counter()
            for _ in range(batch):
                call()
            seen.append((time.perf_counter() - begin) / batch)
    return [statistics.median(seen) * 1e6 for seen in times]


def imports() -> list[Row]:
    """What it costs a program to get at a cache: the best of several processes."""
    rows = []
    for code, limit in (("import kcachefs", None), ("import kcachefs; kcachefs.Cache", 30.0)):
        timed = f"import time; begin = time.perf_counter()\n{code}\nprint(time.perf_counter() - begin)"
        told = [
            float(subprocess.run([sys.executable, "-c", timed], capture_output=True, check=True, cwd=ROOT).stdout)
            for _ in range(10)
        ]
        rows.append(Row(code, min(told) * 1e3, "ms", limit))
    return rows


def levels(rounds: int) -> list[Row]:
    """Hits in memory and in the folder, on real kernels, beside cuda.core's caches."""
    from cuda.core.utils import FileStreamProgramCache, InMemoryProgramCache, make_program_cache_key

    options = kernels.options()

    def our_key(source: str) -> bytes:
        told = program_key(source, ["-lineinfo"], target="cubin", arch="sm_90", compiler_version="nvrtc 13.4")
        return bytes.fromhex(told)

    def their_key(source: str) -> Any:
        return make_program_cache_key(code=source, code_type="c++", options=options, target_type="cubin")

    rows, alone, with_key, in_memory = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        ours, memory = Cache(f"{folder}/ours", memory_entries=0), Cache(f"{folder}/ours")
        theirs, theirs_memory = FileStreamProgramCache(f"{folder}/theirs"), InMemoryProgramCache()
        for source, cubin in kernels.compiled().items():
            key = our_key(source)
            for cache in (ours, memory, theirs, theirs_memory):
                cache[key] = cubin
            theirs[their_key(source)] = cubin
            in_memory.append(
                take_turns(rounds // 4, partial(memory.get, key), partial(theirs_memory.get, key), batch=100)
            )
            hit, their_hit, keyed, their_keyed = take_turns(
                rounds // 2,
                partial(ours.get, key),
                partial(theirs.get, key),
                lambda source=source: ours.get(our_key(source)),  # type: ignore[misc]
                lambda source=source: theirs.get(their_key(source)),  # type: ignore[misc]
            )
            alone.append(hit / their_hit)
            with_key.append(keyed / their_keyed)
            beside = f"FileStream {their_hit:.1f} µs; with the key {keyed:.1f} to {their_keyed:.1f} µs"
            rows.append(Row(f"L2 hit, kernel of {len(cubin) / 1024:.0f} KiB", hit, "µs", None, beside))
    ours_memory, others_memory = (statistics.median(times[index] for times in in_memory) for index in (0, 1))
    return [
        Row("L1 hit", ours_memory, "µs", 2.0, f"InMemoryProgramCache {others_memory:.2f} µs"),
        *rows,
        Row("L2 hit / FileStreamProgramCache hit", statistics.median(alone), "ratio", 0.8, "median over kernels"),
        Row("the same, making the key included", statistics.median(with_key), "ratio", 0.8, "median over kernels"),
    ]


def sizes(rounds: int) -> list[Row]:
    """Hits on disk by size: of a file that this process has read before, and of one that it reads first."""
    from cuda.core.utils import FileStreamProgramCache

    rows = []
    for size, name in ((4 << 10, "4 KiB"), (60 << 10, "60 KiB"), (1 << 20, "1 MiB")):
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = Cache(f"{folder}/ours", memory_entries=0), FileStreamProgramCache(f"{folder}/theirs")
            names = [os.urandom(32) for _ in range(32)]
            for key in names:
                ours[key] = theirs[key] = os.urandom(size)
            time.sleep(0.2)  # a file that has just been written is not taken for verified
            first: list[list[float]] = []
            for _ in range(max(2, rounds // 200)):
                fresh = (Cache(f"{folder}/ours", memory_entries=0), FileStreamProgramCache(f"{folder}/theirs"))
                first += [take_turns(1, *(partial(cache.get, key) for cache in fresh)) for key in names]
            again = take_turns(rounds // 2, partial(ours.get, names[0]), partial(theirs.get, names[0]))
        once = [statistics.median(pair[index] for pair in first) for index in (0, 1)]
        for what, (one, two), limit in (("again", again, 1.0), ("first in a process", once, None)):
            rows.append(Row(f"L2 hit of {name}, {what}", one / two, "ratio", limit, f"{one:.1f} to {two:.1f} µs"))
    return rows


def programs(rounds: int) -> list[Row]:
    """A hit inside `Program.compile`, with ours and with cuda.core's own caches."""
    from cuda.core import Program
    from cuda.core.utils import FileStreamProgramCache, InMemoryProgramCache

    from kcachefs.cuda import ProgramCache

    program = Program(next(iter(kernels.SOURCES.values())), "c++", options=kernels.options())
    with tempfile.TemporaryDirectory() as folder:
        ours, memory, disk, theirs = take_turns(
            rounds,
            *(
                partial(program.compile, "cubin", cache=cache)
                for cache in (
                    ProgramCache(f"{folder}/ours"),
                    InMemoryProgramCache(),
                    ProgramCache(f"{folder}/ours", memory_entries=0),
                    FileStreamProgramCache(f"{folder}/theirs"),
                )
            ),
        )
    return [
        Row("Program.compile hit: ours / FileStream", ours / theirs, "ratio", 1.0, f"{ours:.1f} to {theirs:.1f} µs"),
        Row("the same, from disk", disk / theirs, "ratio", 1.0, f"{disk:.1f} to {theirs:.1f} µs"),
        Row("the same, ours / InMemory", ours / memory, "ratio", 1.0, f"{ours:.1f} to {memory:.1f} µs"),
    ]


def keys(rounds: int) -> list[Row]:
    """The key of a Triton kernel that has not been seen, and of one that has."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("add_kernel", "matmul_kernel"):
            functions = [getattr(_module(folder, number), name) for number in range(max(20, rounds // 20))]
            hash_function(functions.pop())
            first = []
            for function in functions:
                begin = time.perf_counter()
                hash_function(function)
                first.append(time.perf_counter() - begin)
            (again,) = take_turns(rounds // 4, partial(hash_function, functions[0]), batch=20)
            rows += [
                Row(f"key of Triton's {name}, first", statistics.median(first) * 1e6, "µs", 200),
                Row(f"key of Triton's {name}, again", again, "µs", 5),
            ]
        plain = [_module(folder, number).add_kernel.fn for number in range(20)]
        seen = []
        for function in plain:
            begin = time.perf_counter()
            hash_function(function)
            seen.append(time.perf_counter() - begin)
        rows.append(Row("key of add_kernel as a plain function, first", statistics.median(seen) * 1e6, "µs"))
    return rows


def _module(folder: str, number: int) -> Any:
    """The kernels' module, imported from a file of its own, so that nothing is known about its functions yet."""
    path = Path(folder, f"triton_kernels_{number}.py")
    path.write_text((ROOT / "benchmarks" / "triton_kernels.py").read_text() + f"\n# {number}\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def handles(rounds: int) -> list[Row]:
    """Making a kernel handle again, beside making it without a cache."""
    from cuda.core import ObjectCode, Program

    source = next(iter(kernels.SOURCES.values()))

    def make(source: str, arch: str) -> Any:
        return Program(source, "c++", options=kernels.options()).compile("cubin")

    with tempfile.TemporaryDirectory() as folder:

        def fresh() -> Callable[..., Any]:
            return cached(
                cache=Cache(folder),
                encode=lambda made: bytes(made.code),
                decode=lambda code: ObjectCode.from_cubin(code),
            )(make)

        kept = fresh()
        kept(source, "sm_90")
        (without,) = take_turns(max(5, rounds // 100), lambda: make(source, "sm_90"))
        again, next_process = take_turns(rounds // 4, lambda: kept(source, "sm_90"), lambda: fresh()(source, "sm_90"))
    return [
        Row(
            "making a kernel handle again", without / again, "times faster", 100, f"{without:.0f} µs to {again:.1f} µs"
        ),
        Row(
            "the same, first time in a process",
            without / next_process,
            "times faster",
            100,
            f"{without:.0f} to {next_process:.1f} µs, opening the cache included",
        ),
    ]


def makes(rounds: int) -> list[Row]:
    """Calling the `make` of a kernel language again, with fresh tensors each time."""
    from cuda.core import ObjectCode

    with tempfile.TemporaryDirectory() as folder:
        kept = cached(
            cache=Cache(folder),
            encode=lambda made: bytes(made.code),
            decode=lambda code: ObjectCode.from_cubin(code),
            annotations=False,
        )(tile_kernels.make)

        def call(make: Callable[..., Any]) -> Any:
            return make(tile_kernels.arrangement, tile_kernels.application, tile_kernels.tensors())

        first = call(kept)
        (without,) = take_turns(max(5, rounds // 100), lambda: call(tile_kernels.make))
        (again,) = take_turns(rounds // 4, lambda: call(kept))
        assert call(kept) is first
    beside = f"{without:.0f} µs to {again:.1f} µs"
    return [Row("make() of a tiled kernel again", without / again, "times faster", 100, beside)]


def processes(operations: int) -> list[Row]:
    """Mixed operations by one process and by eight on one folder, in the time of a core."""
    cores = len(os.sched_getaffinity(0))
    one, eight, beside = [], [], []
    for _ in range(3):
        one.append(_mixed(1, operations))
        eight.append(_mixed(8, operations))
        # What eight processes cost on these cores if they share nothing: the machine's share of the slow-down.
        beside.append(_mixed(8, operations, shared=False))
    cpu = [statistics.median(cpu for cpu, _ in runs) for runs in (one, eight, beside)]
    wall = [statistics.median(wall for _, wall in runs) for runs in (one, eight, beside)]
    share = cores / 8
    return [
        Row(
            f"8 processes × {operations} mixed: CPU / 1 process's", cpu[1] / cpu[0], "ratio", 2.0, _pair(cpu[1], cpu[0])
        ),
        Row("wall / 8 processes' on folders of their own", wall[1] / wall[2], "ratio", 2.0, _pair(wall[1], wall[2])),
        Row(
            f"wall of {cores} cores / 1 process's",
            wall[1] * share / wall[0],
            "ratio",
            2.0,
            _pair(wall[1] * share, wall[0]),
        ),
    ]


def _pair(one: float, two: float) -> str:
    return f"{one:.0f} to {two:.0f} µs an operation"


def _mixed(count: int, operations: int, shared: bool = True) -> tuple[float, float]:
    """CPU and wall-clock microseconds for one operation of one process, start-up left out."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.mixed"]
        workers = [
            subprocess.Popen(
                [*command, folder if shared else f"{folder}/{number}", str(number), str(operations)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for number in range(count)
        ]
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        told = [worker.communicate()[0].split() for worker in workers]
        assert all(worker.returncode == 0 for worker in workers)
    cpu = statistics.mean(float(words[0]) for words in told)
    wall = max(float(words[1]) for words in told)
    return cpu / operations * 1e6, wall / operations * 1e6


if __name__ == "__main__":
    main()
