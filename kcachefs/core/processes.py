"""Processes as /proc shows them: who began when, below whom, with which command line.

A worker is confined, but reads /proc. It sees the processes of its own pid namespace and those below it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_DEPTH_MAX = 64
"""Ancestors looked at."""
_START_TIME, _PARENT = 19, 1
"""Places in /proc/PID/stat, counted from behind the command's name, which may contain anything."""
_TICKS = os.sysconf("SC_CLK_TCK")
ARGV_MAX = 200


class Process(NamedTuple):
    """One process and no other: numbers are used again, but not with the same start."""

    pid: int
    ticks: int
    """When it began, in clock ticks since the machine did."""


class Story(NamedTuple):
    """What /proc told of a process."""

    process: Process
    uid: int
    started: int
    """Nanoseconds since 1970."""
    argv: bytes
    ancestors: list[Process]
    """The nearest first."""


def tell(thread: int) -> Story | None:
    """The story of the process that a thread belongs to; None if it is gone, or cannot be seen from here."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{thread}/status").read_text().splitlines())
        pid, uid = int(status["Tgid"]), int(status["Uid"].split()[1])
        process, parent = _look(pid)
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")[:ARGV_MAX]
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, KeyError, IndexError):
        return None
    started = time.time_ns() - int((uptime - process.ticks / _TICKS) * 1e9)
    return Story(process, uid, started, argv, _ancestors(parent))


def name_of(argv: Sequence[str]) -> str:
    """The name of a command: its script or module, else the program; empty for code on the command line.

    >>> name_of(["python3", "-u", "train.py", "--lr", "1"]), name_of(["python", "-m", "vllm.serve"])
    ('train.py', '-m vllm.serve')
    >>> name_of(["/opt/bin/python", "-c", "import torch"]), name_of(["./a.out"])
    ('', './a.out')
    """
    if not argv:
        return ""
    if not os.path.basename(argv[0]).startswith(("python", "pypy")):
        return argv[0]
    rest = iter(argv[1:])
    for word in rest:
        if word == "-m":
            return f"-m {next(rest, '')}"
        if word in ("-X", "-W"):
            next(rest, None)
        elif word.startswith("-c") or word == "-":
            return ""
        elif not word.startswith("-"):
            return word
    return ""


def _ancestors(parent: int) -> list[Process]:
    found: list[Process] = []
    while parent > 0 and len(found) < _DEPTH_MAX:
        try:
            process, parent = _look(parent)
        except (OSError, ValueError, IndexError):
            break
        found.append(process)
    return found


def _look(pid: int) -> tuple[Process, int]:
    """The process of that number, and the number of its parent."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return Process(pid, int(fields[_START_TIME])), int(fields[_PARENT])
