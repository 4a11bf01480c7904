"""Many processes compile and publish the same Triton kernels into one cold directory at once (triton#11512).

In each round the directory is emptied, all processes meet at a barrier, and each runs triton.compile for every kernel.
On a network filesystem some of these compilations crashed; here none may. Triton's own code does everything, but the
results of its compiler passes are remembered from a first compilation: the time goes into publishing, not ptxas.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import multiprocessing
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource

PATIENCE = 600.0
Memo = dict[tuple[str, str], tuple[str | bytes, dict[str, Any]]]


@triton.jit  # type: ignore[untyped-decorator]
def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


def compile_kernel(number: int) -> str:
    """Compile one of the kernels for sm_90 and return the digest of its cubin."""
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(add, signature, {"BLOCK": 32 << number})
    return hashlib.sha256(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]).hexdigest()


def storm(directory: Path, scratch: Path, processes: int, kernels: int, rounds: int) -> dict[str, Any]:
    """Run the storm; returns how many compilations there were and a line for each that failed."""
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
    os.environ["TRITON_CACHE_DIR"] = str(scratch)
    remember_passes({})
    expected = [compile_kernel(number) for number in range(kernels)]
    context = multiprocessing.get_context("fork")
    barrier, failures = context.Barrier(processes + 1), context.SimpleQueue()
    children = [
        context.Process(target=_compile_rounds, args=(directory, expected, rounds, number, barrier, failures))
        for number in range(processes)
    ]
    for child in children:
        child.start()
    started = time.monotonic()
    entries = []
    failed, told = 0, list[str]()
    try:
        for _ in range(rounds):
            _empty(directory)
            barrier.wait(PATIENCE)  # all start at once
            barrier.wait(PATIENCE)  # all are done
            entries.append(len(os.listdir(directory)))
            while not failures.empty():
                several, first = failures.get()
                failed += several
                told.append(first)
    except BaseException:
        barrier.abort()
        raise
    finally:
        for child in children:
            child.join(PATIENCE)
            child.kill()
            child.join()
    return {
        "compilations": processes * kernels * rounds,
        "failed": failed,
        "failures": told[:10],
        "seconds": round(time.monotonic() - started, 1),
        "left": sorted(name for name in _below(directory) if "tmp." in name),
        "entries": sorted(set(entries)),
    }


def _compile_rounds(
    directory: Path, expected: list[str], rounds: int, number: int, barrier: Barrier, failures: Any
) -> None:
    os.environ["TRITON_CACHE_DIR"] = str(directory)
    for round_number in range(rounds):
        barrier.wait(PATIENCE)
        failed = []
        for kernel, cubin in enumerate(expected):
            try:
                if compile_kernel(kernel) != cubin:
                    raise AssertionError("the cubin differs from the one compiled first")
            except Exception:
                failed.append(f"process {number}, round {round_number}: {traceback.format_exc(limit=-3)}")
        if failed:
            failures.put((len(failed), failed[0][:2000]))  # all together fit into a pipe, which is read later
        barrier.wait(PATIENCE)


def remember_passes(memo: Memo) -> None:
    """Make each pass of the backend run once per kernel and remember its result and its metadata; and the first IR."""
    add_stages, make_ir = CUDABackend.add_stages, ASTSource.make_ir
    written: dict[str, str] = {}

    def remembering_ir(self: Any, *arguments: Any, **keywords: Any) -> Any:
        key = self.hash()
        if key in written:
            return written[key]
        module = make_ir(self, *arguments, **keywords)
        written[key] = str(module)
        return module

    def remembering(self: Any, stages: dict[str, Any], options: Any, language: Any) -> None:
        add_stages(self, stages, options, language)
        for name, stage in list(stages.items()):
            stages[name] = functools.partial(_once, memo, name, stage)

    CUDABackend.add_stages, ASTSource.make_ir = remembering, remembering_ir


def _once(memo: Memo, name: str, stage: Callable[..., Any], module: Any, metadata: dict[str, Any]) -> Any:
    key = (metadata["hash"], name)
    if key in memo:
        result, noted = memo[key]
        metadata.update(noted)
        return result
    module = stage(module, metadata)
    memo[key] = (module if isinstance(module, bytes) else str(module), dict(metadata))
    return module


def _empty(directory: Path) -> None:
    for child in directory.iterdir():
        shutil.rmtree(child)


def _below(directory: Path) -> list[str]:
    return [name for _, folders, names in os.walk(directory) for name in (*folders, *names)]


def main() -> int:
    parser = argparse.ArgumentParser(description="A storm of Triton compilations into one cold directory.")
    parser.add_argument("--engine", default="both", choices=("direct", "pyfuse3", "both"))
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--kernels", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--directory", type=Path, help="an empty directory to storm instead of a mount")
    arguments = parser.parse_args()
    size = (arguments.processes, arguments.kernels, arguments.rounds)
    from tests.engines.mounting import Mount, temporary_folder

    if arguments.directory is not None:
        with temporary_folder() as base:
            return report(str(arguments.directory), storm(arguments.directory, base, *size))
    worst = 0
    for engine in ("direct", "pyfuse3") if arguments.engine == "both" else (arguments.engine,):
        with temporary_folder() as base, Mount(base / "mount", base / "store", engine) as mount:
            worst |= report(engine, storm(mount.mountpoint / "triton", base / "scratch", *size))
    return worst


def report(name: str, told: dict[str, Any]) -> int:
    print(f"{name}: {told['failed']} errors of {told['compilations']:,} compilations, {told['seconds']} s", flush=True)
    for failure in told["failures"]:
        print(failure, file=sys.stderr)
    return 1 if told["failed"] or told["left"] else 0


if __name__ == "__main__":
    sys.exit(main())
