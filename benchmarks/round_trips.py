"""Where the time of a request through a mount goes: the client, the daemon's own code, the kernel, and waking up.

The kernel says how much processor time client and daemon took in their own code and in system calls; the rest of the
time that the client waited is waking up: of the daemon for the request, and of the client for the reply. Folding and
sealing, which go on beside the requests, are the daemon's too.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.subjects import Kcachefs


class Trip(NamedTuple):
    """Microseconds per operation."""

    whole: float
    client: float
    """Processor time of the client, its system calls included."""
    daemon: float
    """Processor time of the daemon in its own code: the interpreter and LMDB."""
    kernel: float
    """Processor time of the daemon in system calls."""

    @property
    def waking(self) -> float:
        """What is left; too little while the daemon polls, because polling counts as work."""
        return max(0.0, self.whole - self.client - self.daemon - self.kernel)


def measure(base: Path, count: int) -> dict[str, Trip]:
    """One kind of request after the other, each with names that the kernel does not know."""
    subject = Kcachefs("direct", base)
    subject.open()
    try:
        folder = subject.folder / "trips"
        folder.mkdir()
        worker, place = subject.worker(), str(folder)
        return {
            "lookup, a miss": _trip(worker, count, lambda i: os.path.exists(f"{place}/absent{i}")),
            "mkdir": _trip(worker, count, lambda i: os.mkdir(f"{place}/d{i}")),
            "rmdir": _trip(worker, count, lambda i: os.rmdir(f"{place}/d{i}")),
            "create, write 16 KiB, close": _trip(worker, count, lambda i: _write(f"{place}/f{i}")),
            "rename": _trip(worker, count, lambda i: os.rename(f"{place}/f{i}", f"{place}/g{i}")),
            "unlink": _trip(worker, count, lambda i: os.unlink(f"{place}/g{i}")),
        }
    finally:
        subject.close()


def _write(path: str, data: bytes = bytes(16 << 10)) -> None:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.write(fd, data)
    os.close(fd)


def _trip(worker: int, count: int, act: Callable[[int], object]) -> Trip:
    user, kernel = _times(worker)
    used, begin = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for number in range(count):
        act(number)
    whole, now = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
    client = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    later_user, later_kernel = _times(worker)
    per = 1e6 / count
    return Trip(whole * per, client * per, (later_user - user) * per, (later_kernel - kernel) * per)


def _times(pid: int) -> tuple[float, float]:
    """Processor seconds of a process in its own code and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / tick, int(fields[12]) / tick
