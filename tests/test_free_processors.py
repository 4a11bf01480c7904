"""Free processors: of a machine, of a set and of a quota, each by itself, on made-up and on real cgroups."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kcachefs import free_processors
from kcachefs.free_processors import Allowance, FreeProcessors
from tests.waiting import until

SECOND = 1_000_000_000
SPIN = "while True: pass"


class Machine:
    """A kernel's files and clocks, made up: how many threads run, for how long each processor was busy."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *, allowed: set[int], processors: int = 8) -> None:
        self.folder = folder
        self.groups = folder / "cgroup"
        self.now = self.own = SECOND
        self.busy = [0] * processors
        self.others_run = 0
        (folder / "own").write_text("0::/pod/one\n")
        patch.setattr(free_processors, "_CGROUPS", self.groups)
        for constant, name in (("_STAT", "stat"), ("_LOADAVG", "loadavg"), ("_OWN_GROUPS", "own")):
            patch.setattr(free_processors, constant, folder / name)
        patch.setattr(time, "monotonic_ns", lambda: self.now)
        patch.setattr(time, "process_time_ns", lambda: self.own)
        patch.setattr(os, "sched_getaffinity", lambda pid: allowed)
        patch.setattr(os, "cpu_count", lambda: processors)
        self.write()
        self.made = FreeProcessors()

    def write(self) -> None:
        (self.folder / "loadavg").write_text(f"9.99 9.99 9.99 {self.others_run + 1}/999 4711\n")
        rows = [
            f"cpu{number} {busy} 0 0 {self.now // 10**7 - busy} 0 0 0 0 77 77" for number, busy in enumerate(self.busy)
        ]
        (self.folder / "stat").write_text("\n".join(["cpu 1 1 1 1 1 1 1 1 1 1", *rows, "intr 7 7 7", "ctxt 9"]) + "\n")

    def group(self, name: str, limit: str, used_seconds: float) -> None:
        folder = self.groups / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.max").write_text(limit + "\n")
        (folder / "cpu.stat").write_text(f"usage_usec {round(used_seconds * 1e6)}\nuser_usec 1\nnr_throttled 5\n")

    def after(self, seconds: float, *, busy: dict[int, float] | None = None, own: float = 0.0) -> list[Allowance]:
        """What is free after so long, in which processors were busy, and this process was, for so many seconds."""
        self.now += round(seconds * SECOND)
        self.own += round(own * SECOND)
        for number, spent in (busy or {}).items():
            self.busy[number] += round(spent * 100)
        self.write()
        return [Allowance(allowance.processors, round(allowance.free, 2)) for allowance in self.made.look()]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch, allowed=set(range(8)))


@pytest.fixture
def in_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Kept to processors 4 and 6 of eight."""
    return Machine(tmp_path, monkeypatch, allowed={4, 6})


def test_a_machine_of_one_s_own_goes_by_the_threads_that_run(machine: Machine) -> None:
    assert machine.after(1) == [Allowance(8, 8)]
    machine.others_run = 3
    assert machine.after(0, busy={4: 1.0}) == [Allowance(8, 5)]
    machine.others_run = 10
    assert machine.after(1) == [Allowance(8, -2)]
    assert machine.made.look(at_work=3)[0].free == 0


def test_what_runs_beside_a_set_does_not_count(in_a_set: Machine) -> None:
    in_a_set.others_run = 100
    assert in_a_set.after(1, busy=dict.fromkeys((0, 1, 2, 3, 5, 7), 1.0)) == [Allowance(2, 2)]


def test_what_others_run_in_a_set_counts(in_a_set: Machine) -> None:
    assert in_a_set.after(2, busy={4: 1.0, 6: 1.0}) == [Allowance(2, 1)]
    assert in_a_set.after(2, busy={4: 1.0, 6: 1.0}, own=1.0) == [Allowance(2, 1.5)], "half of that was ours"
    assert in_a_set.after(2, busy={4: 1.0, 6: 1.0}, own=9.0) == [Allowance(2, 2)]


def test_a_set_of_which_nothing_is_left_has_none_to_give(in_a_set: Machine) -> None:
    assert in_a_set.after(2, busy={4: 2.0, 6: 1.95}, own=1.0) == [Allowance(2, -1)]


def test_a_moment_is_too_short_to_tell(in_a_set: Machine) -> None:
    assert in_a_set.after(1, busy={4: 1.0}) == [Allowance(2, 1)]
    assert in_a_set.after(0.2) == [Allowance(2, 1)]
    assert in_a_set.after(0.8, busy={6: 0.5}) == [Allowance(2, 1.5)]


def test_where_the_processors_of_a_set_are_not_told_apart_all_that_runs_counts(in_a_set: Machine) -> None:
    in_a_set.busy = in_a_set.busy[:5]
    in_a_set.others_run = 1
    in_a_set.after(1)
    assert in_a_set.after(1) == [Allowance(2, 1)]


def test_a_quota_goes_by_what_its_group_used(machine: Machine) -> None:
    machine.group("pod/one", "200000 100000", used_seconds=100)
    machine.others_run = 5
    machine.after(1)
    assert machine.after(2) == [Allowance(8, 3), Allowance(2, 2)]
    machine.group("pod/one", "200000 100000", used_seconds=103)
    assert machine.after(2, own=1.0) == [Allowance(8, 3), Allowance(2, 1)]
    machine.group("pod/one", "200000 100000", used_seconds=107)
    assert machine.after(2, own=4.0) == [Allowance(8, 3), Allowance(2, -1)]


@pytest.mark.parametrize(
    ("limits", "quotas"),
    [
        ({"": "max 100000", "pod": "max 100000"}, []),
        ({"pod/one": "250000 100000"}, [2.5]),
        ({"pod": "50000 100000", "pod/one": "max 100000"}, [0.5]),
        ({"": "400000 100000", "pod": "300000 100000", "pod/one": "200000 100000"}, [2.0, 3.0, 4.0]),
        ({"pod/other": "50000 100000"}, []),
        ({"pod/one": "nonsense"}, []),
    ],
)
def test_quotas_are_those_of_the_own_group_and_of_all_above(
    machine: Machine, limits: dict[str, str], quotas: list[float]
) -> None:
    for name, limit in limits.items():
        machine.group(name, limit, 1.0)
    machine.after(1)
    assert [allowance.processors for allowance in machine.after(1)] == [8, *quotas]


@pytest.mark.parametrize("missing", ["own", "loadavg", "stat"])
def test_a_kernel_that_says_nothing_is_survived(in_a_set: Machine, missing: str) -> None:
    in_a_set.write = lambda: (in_a_set.folder / missing).unlink(missing_ok=True)  # type: ignore[method-assign]
    assert in_a_set.after(1)
    assert in_a_set.after(1)


def test_the_machine_is_asked_who_runs() -> None:
    assert 1 <= free_processors._running() < 1 << 30
    assert FreeProcessors().look()[0].processors <= len(os.sched_getaffinity(0))


def test_the_real_kernel_tells_of_each_processor_how_long_it_was_busy() -> None:
    number = max(os.sched_getaffinity(0))
    before = free_processors._busy(frozenset({number}))
    assert before is not None
    with spinning(lambda: os.sched_setaffinity(0, {number})) as used:
        until(lambda: used() > 0.3)
        after = free_processors._busy(frozenset({number}))
    assert after is not None
    assert after - before > 0.2 * SECOND


def test_a_real_quota_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A hundredth of a processor, so that a loop uses all of it however busy the machine is."""
    with real_group(0.01) as (own, join):
        (tmp_path / "own").write_text(own)
        monkeypatch.setattr(free_processors, "_OWN_GROUPS", tmp_path / "own")
        looking = FreeProcessors()
        assert looking.look()[-1] == Allowance(0.01, 0.01)
        with spinning(join):
            until(lambda: looking.look()[-1] == Allowance(0.01, -1))
        until(lambda: looking.look()[-1].free > 0)


@contextmanager
def spinning(prepare: Callable[[], None]) -> Iterator[Callable[[], float]]:
    """A process that only computes; what is yielded tells for how many seconds it has."""
    process = subprocess.Popen([sys.executable, "-c", SPIN], preexec_fn=prepare)
    try:
        stat = Path(f"/proc/{process.pid}/stat")
        yield lambda: sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")
    finally:
        process.kill()
        process.wait()


@contextmanager
def real_group(processors: float) -> Iterator[tuple[str, Callable[[], None]]]:
    """A cgroup with that quota, as the lines that would name it as one's own; and how to join it."""
    name, quota = f"kcachefs-test-{os.getpid()}", round(processors * 100_000)
    first, second = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    version_1 = (first / "cpu.cfs_quota_us").exists() or (first / "cpu.shares").exists()
    folders = [first / name, Path("/sys/fs/cgroup/cpuacct") / name] if version_1 else [second / name]
    try:
        for folder in folders:
            folder.mkdir(exist_ok=True)  # cpu and cpuacct may be one
        if version_1:
            (folders[0] / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (folders[0] / "cpu.max").write_text(f"{quota} 100000")
    except OSError as error:
        for folder in {folder.resolve() for folder in folders if folder.exists()}:
            folder.rmdir()
        pytest.skip(f"no cgroup with a quota can be made here: {error}")

    def join() -> None:
        for folder in folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    try:
        yield f"4:cpu,cpuacct:/{name}\n" if version_1 else f"0::/{name}\n", join
    finally:
        for folder in {folder.resolve() for folder in folders}:
            folder.rmdir()
