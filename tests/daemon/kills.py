"""Kills a mount's worker again and again under writers and readers, none of which may notice.

As a script: scripts/kill_worker [KILLS [SEED]] [--reload]
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from kcachefs.daemon import registry
from kcachefs.daemon.registry import MountState
from tests import command_server
from tests.daemon.users import OWN, Reader, User, Writer
from tests.engines.callers import Child
from tests.engines.mounting import Mount, kill, temporary_folder
from tests.waiting import until

WRITERS = READERS = 8
KILLS = 10
OPTIONS = ("--max-size", "12MiB", "--grace", "1", "--floor", f"{OWN}=11MiB")
"""A quota so small that entries are evicted all the time, but none of those that the writers keep to themselves."""


class Outcome(NamedTuple):
    """What happened during the kills."""

    kills: int
    steps: int
    longest_pause: float
    """The most seconds from a kill until a request made after it was answered."""
    restarts: int
    reloads: int
    evictions: int


def run(kills: int, seed: int, *, reload: bool = False) -> Outcome:
    """Kill the worker this often; raises whatever error a writer or reader saw."""
    choose = random.Random(seed)
    pauses: list[float] = []
    with temporary_folder() as base:
        with Mount(base / "mount", base / "store", "direct", *OPTIONS) as mount:
            root = mount.mountpoint
            (root / OWN).mkdir()
            (root / OWN / "counter").write_bytes(b"%020d" % 0)
            users: list[User] = [Writer(root, base / "stop", number, seed) for number in range(WRITERS)]
            users += [Reader(root, base / "stop", 100 + number, seed) for number in range(READERS)]
            with log_told_on_failure(root), ExitStack() as scope:
                children = [scope.enter_context(Child(user.run)) for user in users]
                try:
                    for _ in range(kills):
                        time.sleep(choose.uniform(0, 0.3))
                        pauses.append(reload_worker(mount) if reload else kill_worker(mount))
                finally:
                    (base / "stop").touch()
                results = [child.result() for child in children]
                assert int((root / OWN / "counter").read_bytes()) == sum(result.locked for result in results)
                state = registry.read(str(root))
                assert state is not None
                evictions = numbers(mount)["total"]["evictions"]
                leave_nothing(mount)
        fsck(base / "store")
    steps = sum(result.turns for result in results)
    return Outcome(kills, steps, max(pauses), state.restarts, state.reloads, evictions)


@contextmanager
def log_told_on_failure(root: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        print(registry.log_path(str(root)).read_text()[-20_000:])
        raise


def kill_worker(mount: Mount) -> float:
    """Kill the worker, wait until the next one serves, and return how long that took."""
    before = registry.read(str(mount.mountpoint))
    assert before is not None
    began = time.monotonic()
    kill(before.worker_pid)
    os.statvfs(mount.mountpoint)  # always asks the daemon
    pause = time.monotonic() - began
    wait_for_another(mount, before.worker_pid)
    return pause


def kill_while_it_runs(mount: Mount, process: subprocess.Popen[str], pause: float = 0.3) -> int:
    """Kill the worker at most `KILLS` times, with pauses; returns how many times the process still ran afterwards."""
    killed = 0
    while killed < KILLS and process.poll() is None:
        kill_worker(mount)
        killed += process.poll() is None
        with suppress(subprocess.TimeoutExpired):
            process.wait(pause)
    return killed


def wait_for_another(mount: Mount, worker: int) -> MountState:
    """The state of the mount once it names another worker, which is a moment after that one began to serve."""

    def another() -> MountState | None:
        now = registry.read(str(mount.mountpoint))
        return now if now is not None and now.worker_pid != worker else None

    found = until(another, f"another worker took over from process {worker}", pause=0.001)
    assert found is not None
    return found


def reload_worker(mount: Mount) -> float:
    """Reload, and return how long the slowest request took meanwhile."""
    longest = 0.0
    with ThreadPoolExecutor(1) as beside:
        reload = beside.submit(command_server.run, "reload", mount.mountpoint)
        while not reload.done():
            began = time.monotonic()
            os.statvfs(mount.mountpoint)
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.001)
        assert reload.result().returncode == 0, reload.result()
    return longest


def leave_nothing(mount: Mount) -> None:
    """Remove everything, and wait until the daemon has nothing left either."""
    things = [str(thing) for folder in mount.mountpoint.glob("[!.]*") for thing in folder.iterdir()]
    subprocess.run(["xargs", "-0", "rm", "-rf", "--"], input="\0".join(things).encode(), check=True)

    def left() -> tuple[int, int, int]:
        now = numbers(mount)
        return now["total"]["entries"], now["total"]["files"], now["store"]["nameless"]

    until(lambda: left() == (0, 0, 0), lambda: f"no entry, file or nameless file is left, but {left()} are", pause=0.2)


def numbers(mount: Mount) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads((mount.mountpoint / ".kcachefs" / "stats.json").read_bytes())
    return found


def fsck(store: Path) -> None:
    done = command_server.run("fsck", "--store", store)
    assert done.returncode == 0, done.stdout


def main() -> None:
    counts = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    kills = counts[0] if counts else 200
    seed = counts[1] if len(counts) > 1 else random.SystemRandom().getrandbits(32)
    print(f"{kills} rounds, seed {seed}", flush=True)
    outcome = run(kills, seed, reload="--reload" in sys.argv)
    what = f"{outcome.kills} {'reloads' if outcome.reloads else 'kills'} under {WRITERS} writers and {READERS} readers"
    print(f"{what}: {outcome.steps:,} steps, {outcome.evictions:,} entries evicted, no error")
    print(f"longest pause: {outcome.longest_pause * 1000:.0f} ms")


if __name__ == "__main__":
    main()
