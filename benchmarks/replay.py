"""Replays what real workloads on an H200 did in their cache directories, and measures the time in the filesystem.

Each line of benchmarks/data/h200_requests.jsonl.xz holds the name of a start, a call and its arguments, in the order of
the original calls. Where the compiler did something else in between there is a pause: half a millisecond of computing
that is not counted, but after which the process of a user-space filesystem has to be woken. The file was made from
traces of FUSE requests with the kernel's caches switched off, in which every name on a path is looked up again and
again. `python -m benchmarks.replay TRITON.gz GPT2.gz` turns these walks back into the system calls that caused them; a
file that was opened but whose bytes came from the page cache is read as a whole.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import warm_start
from benchmarks.measure import corpus, in_turn, stretch, work_for
from benchmarks.peers import opened
from benchmarks.running import SUBJECTS, Run
from benchmarks.subjects import empty

DATA = Path(__file__).parent / "data" / "h200_requests.jsonl.xz"
COLD, WARM, MODEL = "triton cold", "triton warm", "gpt2 cold"
WHOLE = 1 << 20
IDLE_SECONDS = 0.0002
"""Requests further apart than this had a pause between them."""
PAUSE_SECONDS = 0.0005
REST_SECONDS = 4.0
"""Longer than a program takes to start again, and than kcachefs takes to seal what was written."""


def part(run: Run) -> None:
    starts, content = recorded(), b"".join(corpus().values())
    taken: dict[str, dict[str, list[float]]] = {}

    def note(what: str, name: str, seconds: float) -> None:
        taken.setdefault(what, {}).setdefault(name, []).append(seconds * 1e3)

    with opened(SUBJECTS, run.place("replay"), run.results.absent) as subjects:
        for name, subject in in_turn(subjects, run.rounds(1 if run.quick else 5, 0.5)):
            root = str(subject.root)
            note("triton, cold start", name, replay(starts[COLD], root, content))
            subject.forget()
            os.listdir(root)
            for state in ("nothing cached", "again"):
                note(f"triton, warm start, {state}", name, replay(starts[WARM], root, content))
            empty(subject.root)
            note("gpt2, cold start", name, replay(starts[MODEL], root, content))
            empty(subject.root)
        calls = warm_start.recorded()
        for number in run.rounds(1 if run.quick else 5, 0.5):
            # Another process reads what was written a moment ago, and computes between its calls.
            for subject in subjects.values():
                warm_start.write_files(calls, subject.root, content)
            time.sleep(REST_SECONDS)
            for name, subject in in_turn(subjects, [number]):
                note("inductor, warm start", name, warm_start.replay(calls, subject.root))
            for subject in subjects.values():
                empty(subject.root)
    for what, values in taken.items():
        run.add(what, "ms", values)


def recorded() -> dict[str, list[list[Any]]]:
    """The calls of each start by its name."""
    starts: dict[str, list[list[Any]]] = {}
    with lzma.open(DATA, "rt") as lines:
        for line in lines:
            start, *call = json.loads(line)
            starts.setdefault(start, []).append(call)
    return starts


def replay(calls: Iterable[list[Any]], base: str, content: bytes) -> float:
    """Make the calls below `base` and return the seconds they took. Calls that failed originally may fail again."""
    player = _Player(base, content)
    begin = time.perf_counter()
    for call in calls:
        player.act[call[0]](*call[1:])
    taken = time.perf_counter() - begin
    player.close()
    return taken - player.paused


class _Player:
    def __init__(self, base: str, content: bytes) -> None:
        self._base, self._content = base, content
        self._open: dict[str, list[int]] = {}
        self.paused = 0.0
        self.act: dict[str, Callable[..., None]] = {
            "stat": self._stat,
            "mkdir": self._mkdir,
            "rmdir": self._rmdir,
            "create": self._create,
            "open": self._open_file,
            "write": self._write,
            "read": self._read,
            "close": self._close,
            "rename": self._rename,
            "list": self._list,
            "pause": self._pause,
        }

    def _stat(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.stat(self._base + path)

    def _mkdir(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._base + path)

    def _rmdir(self, path: str) -> None:
        with contextlib.suppress(OSError):  # Triton tries the folders above too, which are not empty
            os.rmdir(self._base + path)

    def _create(self, path: str) -> None:
        descriptor = os.open(self._base + path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        self._open.setdefault(path, []).append(descriptor)

    def _open_file(self, path: str) -> None:
        self._open.setdefault(path, []).append(os.open(self._base + path, os.O_RDONLY))

    def _write(self, path: str, size: int) -> None:
        os.write(self._open[path][-1], stretch(self._content, size))

    def _read(self, path: str, size: int) -> None:
        os.read(self._open[path][-1], size)

    def _close(self, path: str) -> None:
        os.close(self._open[path].pop())

    def _rename(self, path: str, to: str) -> None:
        os.rename(self._base + path, self._base + to)

    def _list(self, path: str) -> None:
        os.listdir(self._base + path)

    def _pause(self) -> None:
        self.paused += work_for(PAUSE_SECONDS)

    def close(self) -> None:
        for descriptors in self._open.values():
            for descriptor in descriptors:
                os.close(descriptor)


# --- making the file --------------------------------------------------------------------------------------------------


@dataclass
class _Reduction:
    """Turns requests into calls. A walk down a path that nothing follows was a stat."""

    calls: list[list[Any]] = field(default_factory=list)
    _walks: dict[int, str] = field(default_factory=dict)
    _opened: dict[str, int] = field(default_factory=dict)
    _unread: set[str] = field(default_factory=set)
    """Files opened for reading that no read request followed: their bytes were in the page cache."""
    _last: float = math.inf
    _pausing: bool = False

    def request(self, one: dict[str, Any]) -> None:
        op, path, process = one["op"], one["path"], one.get("pid", 0)
        now = one.get("t", self._last)
        self._pausing |= now - self._last > IDLE_SECONDS
        self._last = now
        if op == "lookup":
            if self._walks.get(process, path) != path:
                self._finish(process)
            self._walks[process] = f"{path}/{one['name']}"
            if not one["hit"]:
                self._finish(process)
            return
        act = getattr(self, f"_{op}", None)
        if act is not None:
            if process:
                self._walks.pop(process, None)
            act(path, one)

    def _finish(self, process: int) -> None:
        path = self._walks.pop(process, None)
        if path is not None:
            self._call(["stat", path])

    def _call(self, call: list[Any]) -> None:
        if self._pausing:
            self._pausing = False
            self.calls.append(["pause"])
        self.calls.append(call)

    def _drop_walk(self, *paths: str) -> None:
        """Remove the lookups of these paths and the folders above them that the kernel makes before it acts on them."""
        while self.calls and self.calls[-1][0] == "stat":
            if not any(f"{path}/".startswith(f"{self.calls[-1][1]}/") for path in paths):
                return
            self.calls.pop()

    def _mkdir(self, path: str, one: dict[str, Any]) -> None:
        self._drop_walk(path)
        self._call(["mkdir", path])

    def _rmdir(self, path: str, one: dict[str, Any]) -> None:
        self._drop_walk(path)
        self._call(["rmdir", path])

    def _create(self, path: str, one: dict[str, Any]) -> None:
        self._drop_walk(path)
        self._call(["create", path])
        self._opened[path] = self._opened.get(path, 0) + 1

    def _open(self, path: str, one: dict[str, Any]) -> None:
        self._drop_walk(path)
        self._call(["open", path])
        self._opened[path] = self._opened.get(path, 0) + 1
        self._unread.add(path)

    def _read(self, path: str, one: dict[str, Any]) -> None:
        self._unread.discard(path)
        self._call(["read", path, one["size"]])

    def _write(self, path: str, one: dict[str, Any]) -> None:
        self._call(["write", path, one["size"]])

    def _release(self, path: str, one: dict[str, Any]) -> None:
        if self._opened.get(path):
            self._opened[path] -= 1
            if path in self._unread:
                self._unread.remove(path)
                self._call(["read", path, WHOLE])
            self._call(["close", path])

    def _rename(self, path: str, one: dict[str, Any]) -> None:
        self._drop_walk(path, one["to"])
        self._call(["rename", path, one["to"]])
        self._opened[one["to"]] = self._opened.pop(path, 0)

    def _opendir(self, path: str, one: dict[str, Any]) -> None:
        self._call(["list", path])


def reduce(requests: Iterable[dict[str, Any]]) -> list[list[Any]]:
    """The calls that caused these requests."""
    reduction = _Reduction()
    for one in requests:
        reduction.request(one)
    for process in list(reduction._walks):
        reduction._finish(process)
    return reduction.calls


def _trace(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        for line in lines:
            yield json.loads(line)


def main(triton: Path, gpt2: Path) -> None:
    """Make the data file from the two traces."""
    requests = list(_trace(triton))
    # The second start runs in processes that had no part in the first.
    numbers = [one.get("pid", 0) for one in requests]
    split = next(index for index, number in enumerate(numbers) if number and number >= SECOND_START)
    starts = {COLD: reduce(requests[:split]), WARM: reduce(requests[split:]), MODEL: reduce(_trace(gpt2))}
    with lzma.open(DATA, "wt", preset=9) as file:
        for name, calls in starts.items():
            for call in calls:
                file.write(json.dumps([name, *call], separators=(",", ":")) + "\n")


SECOND_START = 2490


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
