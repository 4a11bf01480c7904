"""Replays a recorded start of TorchInductor that finds everything compiled, and measures the time of its calls.

Each line of benchmarks/data/warm_start.jsonl.xz holds the microseconds that the program computed before a call, the
call, its path, and how much it read. It was recorded from the second process to run a training step compiled for sm_90.
The pauses, up to 20 ms, are replayed but not counted: after them, a user-space filesystem has gone to sleep. `python -m
benchmarks.warm_start TRACE.gz` makes the file from a trace of system calls.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import lzma
import os
import sys
import termios
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.measure import stretch, work_for

DATA = Path(__file__).parent / "data" / "warm_start.jsonl.xz"
PAUSE_MAX_US = 20_000
TRACED_US = 18
"""How long tracing delayed each call."""

Call = tuple[int, str, str, int]
"""The pause before the call, the call, its path, and its number of bytes."""


def recorded() -> list[Call]:
    with lzma.open(DATA, "rt") as lines:
        return [tuple(json.loads(line)) for line in lines]


def write_files(calls: Iterable[Call], root: Path, content: bytes) -> None:
    """Make the files and folders that the start finds as a compiler does: under temporary names, then renamed."""
    folders, sizes, offsets = set(), dict[str, int](), dict[str, int]()
    for _, what, path, size in calls:
        if what in ("list", "mkdir"):
            folders.add(path)
        elif what == "open":
            offsets[path] = 0
            sizes.setdefault(path, 0)
        elif what == "read":
            offsets[path] += size
            sizes[path] = max(sizes[path], offsets[path])
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for path, size in sizes.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        temporary = root / f"{path}.tmp.1_2"
        temporary.write_bytes(stretch(content, size))
        temporary.replace(root / path)


def replay(calls: Iterable[Call], root: Path) -> float:
    """Make the calls below `root` and return the seconds they took."""
    opened: dict[str, list[int]] = {}
    buffer = bytearray(64)

    def open_(path: str, size: int) -> None:
        opened.setdefault(path, []).append(os.open(f"{root}/{path}", os.O_RDONLY | os.O_CLOEXEC))

    def close(path: str, size: int) -> None:
        os.close(opened[path].pop())

    acts: dict[str, Callable[[str, int], object]] = {
        "stat": lambda path, size: os.stat(f"{root}/{path}"),
        "mkdir": lambda path, size: os.mkdir(f"{root}/{path}"),
        "list": lambda path, size: os.listdir(f"{root}/{path}"),
        "open": open_,
        "fstat": lambda path, size: os.fstat(opened[path][-1]),
        "seek": lambda path, size: os.lseek(opened[path][-1], 0, os.SEEK_CUR),
        "terminal": lambda path, size: fcntl.ioctl(opened[path][-1], termios.TCGETS, buffer),
        "read": lambda path, size: os.read(opened[path][-1], size),
        "end": lambda path, size: os.read(opened[path][-1], 1),
        "close": close,
    }
    taken, now = 0.0, time.perf_counter
    try:
        for pause, what, path, size in calls:
            work_for(pause / 1e6)
            begin = now()
            with contextlib.suppress(
                OSError
            ):  # a folder that exists, a file that is not a terminal: they failed when recorded, too
                acts[what](path, size)
            taken += now() - begin
    finally:
        for descriptors in opened.values():
            for descriptor in descriptors:
                os.close(descriptor)
    return taken


# --- making the file --------------------------------------------------------------------------------------------------

_NAMES = {"lstat": "stat", "lseek": "seek", "ioctl": "terminal"}
_FOLDERS = {"ind": "inductor", "tri": "triton"}


def reduce(traced: Iterable[dict[str, Any]]) -> list[Call]:
    """The calls of the first process of a trace."""
    calls: list[Call] = []
    last, listed, opened = None, set[str](), dict[str, int]()
    for one in traced:
        if one["pi"] != 0:
            continue
        pause = 0 if last is None else round((one["t"] - last) * 1e6) - TRACED_US
        last = one["t"]
        first, _, rest = one["p"].partition("/")
        path = "/".join(filter(None, (_FOLDERS.get(first, first), rest)))
        what, size = _NAMES.get(one["op"], one["op"]), one.get("r", one.get("n", 0)) if one["op"] == "read" else 0
        if what == "open" and "DIRECTORY" in one.get("f", ""):
            what = "list"  # further calls on the folder are part of it
            listed.add(path)
        elif what == "open":
            listed.discard(path)
            if one.get("e"):
                what = "stat"
            else:
                opened[path] = opened.get(path, 0) + 1
        elif what == "getdents" or (path in listed and what in ("fstat", "close")):
            continue
        elif what in ("fstat", "seek", "terminal", "read", "close") and not opened.get(path):
            continue  # opened before the trace began
        elif what == "read" and size == 0:
            what = "end"
        elif what == "close":
            opened[path] -= 1
        if what in ("stat", "mkdir", "list", "open", "fstat", "seek", "terminal", "read", "end", "close"):
            calls.append((min(max(0, pause), PAUSE_MAX_US), what, path, size))
    return calls


def main(trace: Path) -> None:
    with gzip.open(trace, "rt") as lines:
        calls = reduce(map(json.loads, lines))
    with lzma.open(DATA, "wt", preset=9) as file:
        for call in calls:
            file.write(json.dumps(call, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
