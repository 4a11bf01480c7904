"""How many processors this process could use right now without taking them from anybody.

Up to three things limit that, and each is judged separately:

- The machine: its processors, minus the threads of others that run or could run. If there are more threads than
  processors, the difference is the number of waiting threads.
- A set of processors that this process is confined to (taskset, or a cpuset of Kubernetes or Slurm). Threads on the
  machine's other processors do not matter, and the number of running threads does not say where they run. So we
  measure how long the set's own processors were busy since the last look.
- A quota of time, of this process's cgroup or of one above it. On a node with a hundred processors many threads run
  that take nothing from the quota. So we measure how much time the group used since the last look.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_STAT, _LOADAVG, _OWN_GROUPS = Path("/proc/stat"), Path("/proc/loadavg"), Path("/proc/self/cgroup")
_NS = 1_000_000_000
_LOOK_NS = 250_000_000
"""The kernel counts idle time in hundredths of a second: over an interval shorter than this, it says little."""
_KINDS, _IDLE, _WAITING_FOR_DISK = 8, 3, 4
"""A processor's row of /proc/stat shows how its time was spent; further columns are already included in these."""
_MEASURED_TO = 0.05
"""The error of such a measurement, as a share of the whole."""


@dataclass(frozen=True)
class Allowance:
    """The limit that the machine, a set or a quota imposes."""

    processors: float
    """How many processors this process may use, together with the others that share them."""
    free: float
    """How many of the processors are left free by others. Below 0: threads wait for one."""


class FreeProcessors:
    """Each user needs an instance of its own: it measures activity since its own last look."""

    def __init__(self) -> None:
        self._looked = self._own = 0
        self._used: dict[object, int] = {}
        """By set or group: how many nanoseconds of processor time were used, as of the last look."""
        self._allowances: list[Allowance] = []
        """The allowances that are measured by time."""
        self._is_in_set = False
        """Whether one of the allowances is for a set of processors: then the machine as a whole does not matter."""
        self._measure()

    def look(self, at_work: int = 1) -> list[Allowance]:
        """All current allowances; `at_work` threads of this process run right now, including the calling one."""
        if time.monotonic_ns() - self._looked >= _LOOK_NS:
            self._measure()
        if self._is_in_set:
            return self._allowances
        count = len(os.sched_getaffinity(0))
        return [Allowance(count, count - (_running() - at_work)), *self._allowances]

    def _measure(self) -> None:
        now, own = time.monotonic_ns(), time.process_time_ns()
        took = now - self._looked
        used: dict[object, int] = {}
        allowances = []
        for kept_to, processors, spent in _measured():
            before, used[kept_to] = self._used.get(kept_to, spent), spent
            of_others = max(0, spent - before - (own - self._own)) / took
            # If nothing is left, threads may be waiting; the kernel does not say whether any are.
            left = processors - (spent - before) / took
            allowances.append(Allowance(processors, processors - of_others if left > _MEASURED_TO * processors else -1))
        self._looked, self._own, self._used, self._allowances = now, own, used, allowances
        self._is_in_set = any(isinstance(kept_to, frozenset) for kept_to in used)


def _measured() -> Iterator[tuple[object, float, int]]:
    """Each set or group, the number of processors it is worth, and the nanoseconds used on them so far."""
    allowed = frozenset(os.sched_getaffinity(0))
    if len(allowed) < (os.cpu_count() or 1) and (busy := _busy(allowed)) is not None:
        yield allowed, len(allowed), busy
    with contextlib.suppress(OSError, ValueError):
        lines = [line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines()]
        yield from _quotas({controller: path for _, names, path in lines for controller in names.split(",")})


def _busy(processors: frozenset[int]) -> int | None:
    """The total nanoseconds that these were busy; None if the kernel does not report each of them."""
    tick, busy, left = _NS // os.sysconf("SC_CLK_TCK"), 0, set(processors)
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in _STAT.read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu" and (number := int(name[3:])) in left:
                spent = [int(field) for field in fields[:_KINDS]]
                busy += (sum(spent) - spent[_IDLE] - spent[_WAITING_FOR_DISK]) * tick
                left.remove(number)
    return None if left else busy


def _quotas(own: dict[str, str]) -> Iterator[tuple[Path, float, int]]:
    """The cgroups with a quota, from this process's `own` ones upwards: of version 2, which has no name, and version 1.

    In a container, the topmost visible group may be the container's own.
    """
    for group in _upwards(_CGROUPS, own.get("", "/")):
        with contextlib.suppress(OSError, ValueError, KeyError):  # the root group has no quota; "max" is not a number
            quota, period = map(int, (group / "cpu.max").read_text().split())
            counts = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
            yield group, quota / period, int(counts["usage_usec"]) * 1000
    if own.get("cpu") != own.get("cpuacct"):
        return
    for group in _upwards(_CGROUPS / "cpu", own.get("cpu", "/")):
        with contextlib.suppress(OSError, ValueError):
            quota = int((group / "cpu.cfs_quota_us").read_text())
            if quota > 0:  # -1 means no quota
                period = int((group / "cpu.cfs_period_us").read_text())
                account = _CGROUPS / "cpuacct" / group.relative_to(_CGROUPS / "cpu")
                yield group, quota / period, int((account / "cpuacct.usage").read_text())


def _upwards(top: Path, path: str) -> Iterator[Path]:
    """The folder of a group, and those above it up to `top`."""
    group = top / path.lstrip("/")
    yield group
    for above in group.parents:
        if above.is_relative_to(top):
            yield above


def _running() -> int:
    """The number of threads of all programs that run, or could run."""
    try:
        return int(_LOADAVG.read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 1 << 30
