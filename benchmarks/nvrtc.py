"""NVRTC through cuda.core: the cost of a compile, and of a hit in cuda.core's cache and in ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import kernels
from benchmarks.measure import in_turn
from benchmarks.peers import opened
from benchmarks.running import Run

SOURCE = "polynomial 60"


def part(run: Run) -> None:
    from cuda.core import Program
    from cuda.core.utils import FileStreamProgramCache

    from kcachefs.cuda import ProgramCache

    def make() -> Any:
        return Program(kernels.SOURCES[SOURCE], "c++", options=kernels.options())

    with opened(["ext4", "direct"], run.place("nvrtc")) as subjects:
        plain, mount = (subjects[name].root / "cuda_core" for name in ("ext4", "direct"))
        plain.mkdir()
        caches = {
            "FileStreamProgramCache": FileStreamProgramCache(str(plain / "theirs")),
            "FileStreamProgramCache on the mount": FileStreamProgramCache(str(mount / "theirs")),
            "ours": ProgramCache(str(plain / "ours"), memory_entries=0),
            "ours on the mount": ProgramCache(str(mount / "ours"), memory_entries=0),
            "ours, in memory": ProgramCache(str(plain / "memory")),
        }
        program = make()
        ways: dict[str, tuple[Callable[[], Any], int]] = {"compile": (lambda: make().compile("cubin"), 1)}
        for name, cache in caches.items():
            ways[name] = (partial(program.compile, "cubin", cache=cache), 20)
            ways[name][0]()  # the first compiles
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for name, (call, times) in in_turn(ways, run.rounds(5 if run.quick else 40)):
            begin = time.perf_counter()
            for _ in range(times):
                call()
            taken[name].append((time.perf_counter() - begin) / times * 1e6)
        for cache in caches.values():
            cache.close()
    run.add("a kernel through Program.compile", "µs", taken, against="FileStreamProgramCache")
