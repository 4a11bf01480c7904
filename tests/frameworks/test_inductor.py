"""Real TorchInductor on the CPU: g++ builds its kernels and precompiled headers in the mount.

The tests share one mount, which `kcachefs warm` fills first: to precompile torch's header takes longer than the rest of
a cold start.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcachefs.frameworks import bytecode, environment, headers
from kcachefs.session import warming
from tests.core.policies.mounts import ALICE, needs_root, reopened, settled
from tests.daemon.kills import KILLS, fsck, kill_while_it_runs
from tests.frameworks.environments import compiled, plain, warm
from tests.frameworks.programs import INDUCTOR, finish_program, start_program
from tests.frameworks.tenants import ran
from tests.frameworks.worlds import World, files_below, world
from tests.pythons import needs_torch

pytestmark = [pytest.mark.mount, pytest.mark.slow]

MODELS = "mlp,training,dynamic,cpp_wrapper"
RANKS = 8
WARM_RANKS = 3
PAUSE = 0.7
"""Seconds between kills, in which most workers have a first heartbeat: without, the next ones are started later."""


@pytest.fixture(scope="module")
def made() -> Iterator[World]:
    with world("direct") as made:
        yield made


def evict_all(made: World) -> None:
    if files_below(made.folder("inductor")):
        made.evict("inductor/*")


@needs_torch
@pytest.mark.timeout(600)
def test_torch_finds_its_header_and_all_bytecode(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    told = warm(made.mount, "--python", sys.executable, "--bytecode", "on")
    assert told["compiled"] == ["TorchInductor's header and probes"]
    assert {path.suffix for path in made.folder("precompiled_headers").glob("*.gch")} == {".gch"}
    assert warm(made.mount, "--python", sys.executable, "--bytecode", "on")["compiled"] == []
    judged = bytecode.judge_command([sys.executable], dict(plain()), "on")
    before = made.changes()
    done = subprocess.run(
        [sys.executable, "-v", "-c", f"{warming._ON_CPU}\nprint(torch._inductor.codecache._HEADER_DIR)"],
        env={**plain(), **environment(made.mount.mountpoint), **bytecode.variables(made.mount.mountpoint, judged)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert compiled(done) == []
    assert "matches" in done.stderr
    assert Path(done.stdout.splitlines()[-1]) == headers.header_folder(), "torch keeps it where we think it does"
    assert made.changes() == before, "the probes found their results, and so did the graph"


@pytest.mark.timeout(600)
def test_a_new_process_finds_every_graph_and_builds_nothing(
    made: World, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = str(tmp_path_factory.mktemp("mega") / "artifacts")
    evict_all(made)
    with monkeypatch.context() as patch:
        patch.delitem(made.environment, "TORCHINDUCTOR_COMPILE_THREADS")
        cold = made.run(INDUCTOR, MODELS, "save", artifacts)
    assert cold["built"] > 0
    assert (cold["graph_hits"], cold["autograd_hits"]) == (0, 0)
    inductor = str(made.folder("inductor"))
    assert cold["mapped"]
    assert all(path.startswith(inductor) for path in cold["mapped"]), "the libraries are loaded from the mount"
    precompiled = [name for name in os.listdir(made.folder("precompiled_headers")) if name.endswith(".gch")]
    assert precompiled, "torch put its precompiled header into the mount"

    before = made.changes()
    assert all(before[name] for name in ("write", "create", "mkdir")), "they were counted when it compiled"
    warm = made.run(INDUCTOR, MODELS, afresh=True)
    assert made.changes() == before, "a full hit writes nothing"
    assert warm["built"] == 0
    assert (warm["graph_misses"], warm["autograd_misses"]) == (0, 0)
    assert warm["graph_hits"] == cold["graph_misses"]
    assert warm["autograd_hits"] == cold["autograd_misses"]
    assert warm["results"] == cold["results"]

    made.evict("inductor/*")
    assert not [name for name in files_below(made.folder("inductor")) if name.endswith(".so")]
    loaded = made.run(INDUCTOR, "mlp", "load", artifacts)
    assert (loaded["graph_hits"], loaded["graph_misses"]) == (1, 0), "a Mega-Cache was loaded into the mount"
    assert loaded["results"]["mlp"] == cold["results"]["mlp"]


@pytest.mark.timeout(600)
def test_many_ranks_start_cold_at_once(made: World) -> None:
    evict_all(made)
    first = made.run(INDUCTOR, f"ranks{RANKS}")["ranks"]
    assert len(first) == RANKS
    assert len({rank["results"]["mlp"] for rank in first}) == 1
    libraries = {name for name in files_below(made.folder("inductor")) if name.endswith(".so")}
    assert len({name.rpartition("/")[2] for name in libraries}) == len(libraries)
    assert {path for rank in first for path in rank["mapped"]} <= {
        str(made.folder("inductor") / name) for name in libraries
    }
    assert not [name for name in files_below(made.folder("inductor")) if name.endswith(".tmp")]

    second = made.run(INDUCTOR, f"ranks{WARM_RANKS}")["ranks"]
    assert len(second) == WARM_RANKS
    for rank in second:
        assert (rank["built"], rank["graph_misses"], rank["autograd_misses"]) == (0, 0, 0)
        assert rank["results"] == first[0]["results"]
    assert {name for name in files_below(made.folder("inductor")) if name.endswith(".so")} == libraries


@needs_root
@pytest.mark.timeout(600)
def test_a_full_hit_needs_no_right_to_write(made: World) -> None:
    before = made.run(INDUCTOR, "mlp")
    locks = made.folder("inductor") / "locks"
    for lock in locks.iterdir():
        lock.unlink()
    settled(made.mount)
    reopened(made.mount, "--read-only")
    warm = ran(made, ALICE, INDUCTOR, "mlp")
    assert (warm["built"], warm["graph_misses"], warm["autograd_misses"]) == (0, 0, 0)
    assert warm["graph_hits"] == before["graph_hits"] + before["graph_misses"] == 1
    assert warm["results"] == before["results"]
    reopened(made.mount)
    assert os.listdir(locks) == [], "its locks were in memory alone"


@pytest.mark.timeout(600)
def test_killed_workers_are_not_noticed(made: World) -> None:
    environment(made.mount.mountpoint)  # links torch's header into the mount again, which may have been mounted anew
    evict_all(made)
    process = start_program(INDUCTOR, made.environment, "mlp")
    killed = kill_while_it_runs(made.mount, process, pause=PAUSE)
    cold = finish_program(process)
    assert killed > 0
    assert cold["built"] > 0
    while killed < 2 * KILLS:  # on a quick machine one run is over before
        process = start_program(INDUCTOR, made.environment, "mlp")
        killed += kill_while_it_runs(made.mount, process, pause=PAUSE)
        warm = finish_program(process)
        assert (warm["built"], warm["graph_misses"], warm["autograd_misses"]) == (0, 0, 0)
        assert warm["results"] == cold["results"]
    made.mount.umount()
    fsck(made.mount.store)
