"""Processes as /proc shows them: when each began, its ancestors, its command line.

A worker is confined, but reads /proc. It sees the processes of its own pid namespace and those below it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import NamedTuple

_DEPTH_MAX = 64
"""How many ancestors are looked at."""
_START_TIME, _PARENT = 19, 1
"""Positions in /proc/PID/stat, counted from after the command's name, which may contain anything."""
_PROCESS = b"\nTgid:"
_TICKS = os.sysconf("SC_CLK_TCK")
ARGV_MAX = 200


class Process(NamedTuple):
    """One process, identified beyond doubt: a number is used again, but not with the same start."""

    pid: int
    ticks: int
    """When it began, in clock ticks since the machine was started."""


class Story(NamedTuple):
    """What /proc says of a process."""

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
        status = _read(f"/proc/{thread}/status")
        pid, uid = int(_field(status, _PROCESS)[0]), int(_field(status, b"\nUid:")[1])
        process, parent = _look(pid)
        argv = _read(f"/proc/{pid}/cmdline")[:ARGV_MAX].rstrip(b"\0").replace(b"\0", b" ")
        uptime = float(_read("/proc/uptime").split()[0])
    except (OSError, ValueError, IndexError):
        return None
    started = time.time_ns() - int((uptime - process.ticks / _TICKS) * 1e9)
    return Story(process, uid, started, argv, _ancestors(parent))


def process_of(thread: int) -> int:
    """The number of the process that a thread belongs to: requests carry the thread's number."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_field(_read(f"/proc/{thread}/status"), _PROCESS)[0])
    return thread


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
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return Process(pid, int(fields[_START_TIME])), int(fields[_PARENT])


def _field(status: bytes, name: bytes) -> list[bytes]:
    """The words after a name in /proc/PID/status; raises ValueError if the name is not there."""
    begin = status.index(name) + len(name)
    return status[begin : status.index(b"\n", begin)].split()


def _read(path: str) -> bytes:
    """The beginning of a file of /proc. A process waits for this, so it does only the minimum."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 8192)
    finally:
        os.close(descriptor)
