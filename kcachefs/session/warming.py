"""`kcachefs warm`: compiles the parts that every start needs, whatever its model, before the first job does.

Each step is a process of the Python to be warmed, with its caches in the mount; that Python need not have kcachefs.
The entries that a step leaves there are listed in a file beside the environment's bytecode. A step runs again only if
one of those entries was evicted, or if another environment (other versions, another interpreter) is to be warmed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kcachefs.errors import CompileFailed, UsageError
from kcachefs.frameworks import bytecode
from kcachefs.frameworks.bytecode import Judgement
from kcachefs.frameworks.interpreters import Installed, normalized

RECORD = "warm.json"
_REMEMBERED = 256
"""The most entries of a step that are looked for the next time."""
_WATCHED = ("inductor", "precompiled_headers", "triton")

_ON_CPU = """
import torch
print(0, 2, flush=True)
import torch._dynamo, torch._inductor.compile_fx
print(1, 2, flush=True)
x = torch.ones(64)
torch.compile(lambda x: torch.softmax(x * 2 + 1, 0))(x)
print(2, 2, flush=True)
"""
"""Compiles a graph of one kernel, which, like every graph, needs the processor's probes and the precompiled header."""

_ON_GPU = """
import sys
import torch
if not torch.cuda.is_available():
    sys.exit("torch finds no GPU")
print(0, 2, flush=True)
import torch._dynamo, torch._inductor.compile_fx
print(1, 2, flush=True)
x = torch.ones(4096, device="cuda")
torch.compile(lambda x: torch.softmax(x * 2 + 1, 0))(x)
torch.cuda.synchronize()
print(2, 2, flush=True)
"""
"""Compiles the same graph on the GPU, which needs Triton's driver and launcher."""

_BYTECODE = """
import importlib.util, os, py_compile, struct, sys
paths = sys.stdin.read().split("\\0")
for number, path in enumerate(paths):
    if number % 50 == 0:
        print(number, len(paths), flush=True)
    target = importlib.util.cache_from_source(path)
    try:
        found = os.stat(path)
        with open(target, "rb") as file:
            head = file.read(16)
        known = struct.pack("<II", int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF)
        if head[:4] == importlib.util.MAGIC_NUMBER and head[8:] == known:
            continue
    except OSError:
        pass
    try:
        py_compile.compile(path, doraise=True)
    except (py_compile.PyCompileError, OSError, ValueError):
        pass  # templates and tests with broken syntax are installed too, and nobody imports them
print(len(paths), len(paths), flush=True)
"""

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, how many of its parts are done, and how many parts it has."""


@dataclass(frozen=True, slots=True)
class Step:
    """A program that the Python to be warmed runs to compile something."""

    name: str
    program: str
    input: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The names of the steps that were run, and of those that had been done before."""

    done: tuple[str, ...]
    known: tuple[str, ...]


def steps(judged: Judgement, distributions: Iterable[str], *, gpu: bool) -> list[Step]:
    """The steps for an environment; raises UsageError for a distribution that is not installed."""
    installed = {normalized(one.name): one for one in judged.distributions}
    found = []
    if "torch" in installed:
        found.append(Step("TorchInductor's header and probes", _ON_CPU))
        if gpu:
            found.append(Step("Triton's driver and launcher", _ON_GPU))
    elif gpu:
        raise UsageError("--gpu: needs torch, and that Python has none; choose another one with --python")
    for name in distributions:
        one = installed.get(normalized(name))
        if one is None:
            raise UsageError(f"{name}: is not installed for that Python; choose another one with --python")
        if judged.is_used:
            found.append(Step(f"bytecode of {one.name} {one.version}", _BYTECODE, "\0".join(_sources(one))))
    return found


def warm(
    mount: Path, python: str, folder: Path, wanted: list[Step], values: Mapping[str, str], tell: Progress
) -> Outcome:
    """Run the steps that were not done yet, or whose results are gone. `folder` is the environment's folder."""
    records = _read(folder / RECORD)
    done, known = [], []
    for step in wanted:
        left = records.get(step.name)
        if left and all(os.path.lexists(mount / path) for path in left):
            known.append(step.name)
            continue
        before = set(_things(mount, folder))
        _take(step, python, values, tell)
        after = _things(mount, folder)
        # An earlier job may have compiled everything already: then we remember all entries that exist.
        records[step.name] = ([path for path in after if path not in before] or after)[:_REMEMBERED]
        _write(folder / RECORD, records)
        done.append(step.name)
    return Outcome(tuple(done), tuple(known))


def _take(step: Step, python: str, values: Mapping[str, str], tell: Progress) -> None:
    tell(step.name, 0, 1)
    with (
        tempfile.TemporaryFile("w+", errors="replace") as complaints,
        subprocess.Popen(
            [python, "-c", step.program],
            env={**values},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            errors="surrogateescape",
            cwd="/",
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(step.input)
            process.stdin.close()
        for line in process.stdout:
            number, _, total = line.strip().partition(" ")
            if number.isdigit() and total.isdigit():
                tell(step.name, int(number), int(total))
        if process.wait() != 0:
            complaints.seek(0)
            said = complaints.read().strip().splitlines()
            raise CompileFailed(f"{step.name}: {said[-1] if said else f'it ended with {process.returncode}'}")


def _sources(distribution: Installed) -> list[str]:
    """The modules in a distribution's list of files, as far as they exist."""
    listed = bytecode.listed_files(distribution)
    names = (os.path.join(distribution.site, name) for name in listed if name.endswith(".py") and ".." not in name)
    return [name for name in names if os.path.exists(name)]


def _things(mount: Path, environment: Path) -> list[str]:
    """The entries that compilers keep in the mount, and folders with entries, as paths relative to the mount."""
    found = []
    for namespace in _WATCHED:
        for top in _names(mount / namespace):
            below = _names(top) if namespace == "inductor" else []
            found += [str(one.relative_to(mount)) for one in (top, *below) if ".lock" not in one.name]
    return found + [str(path.relative_to(mount)) for path in environment.rglob("site-packages/*")]


def _names(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> dict[str, list[str]]:
    """The record that earlier calls left, by step; empty if it cannot be read."""
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(raw, dict):
        return {}
    return {
        name: left
        for name, left in raw.items()
        if isinstance(left, list) and all(isinstance(one, str) and not os.path.isabs(one) for one in left)
    }


def _write(path: Path, records: Mapping[str, list[str]]) -> None:
    unfinished = path.with_name(f"tmp.{os.getpid()}")
    with contextlib.suppress(OSError):  # root's folder, or a full disk: the steps run again the next time
        unfinished.write_text(json.dumps(records, indent=1), encoding="utf-8", errors="surrogateescape")
        unfinished.replace(path)
