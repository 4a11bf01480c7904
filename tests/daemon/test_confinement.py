"""What a worker that somebody has taken over can reach, tried in a process of its own and in real workers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kcachefs.daemon import confinement, landlock, privileges, syscall_filter
from kcachefs.store import Options, Store
from tests.cli.scene import KCACHEFS, Scene, scene
from tests.core.policies.mounts import each_engine
from tests.daemon import break_in
from tests.disks import ext4, need_root
from tests.engines.callers import in_child
from tests.waiting import until

needs_landlock = pytest.mark.skipif(
    landlock.version() < 6, reason="this kernel's Landlock does not cover sockets and signals (Linux 6.12)"
)
WITHOUT_LANDLOCK = (sys.executable, str(Path(__file__).parent / "without_landlock.py"))
PROBE = """
import sys
if "kcachefs.daemon.worker" in sys.orig_argv:
    import json, os, signal
    from pathlib import Path
    from tests.daemon import break_in
    answers = os.open({answers!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    def probe(number, frame):
        outside, sockets, store = map(Path, ({outside!r}, {sockets!r}, {store!r}))
        denied, granted = break_in.attempts(outside, sockets), break_in.needs(store, sockets)
        found = {{"worker": os.getpid(), "denied": denied, "granted": granted}}
        os.write(answers, json.dumps(found).encode() + b"\\n")
    signal.signal(signal.SIGRTMIN, probe)
"""
"""Makes a worker answer SIGRTMIN with what it can do, in its main thread, long after it was confined."""


@pytest.fixture(name="scene")
def a_scene() -> Iterator[Scene]:
    with scene() as place:
        yield place


@needs_landlock
def test_a_confined_process_reaches_the_store_and_nothing_of_the_host(tmp_path: Path) -> None:
    Store(tmp_path / "store", Options(background=False)).close()
    outside, sockets = tmp_path / "outside", tmp_path / "sockets"
    with ExitStack() as open_sockets:
        for one in break_in.make_bait(outside, sockets):
            open_sockets.enter_context(one)

        def confined() -> tuple[list[str], dict[str, str], dict[str, str]]:
            privileges.drop()
            gaps = confinement.confine(tmp_path / "store", sockets)
            return gaps, break_in.attempts(outside, sockets), break_in.needs(tmp_path / "store", sockets)

        unconfined = in_child(lambda: break_in.needs(tmp_path / "store", sockets))
        gaps, denied, granted = in_child(confined)
    assert gaps == []
    assert [name for name, outcome in denied.items() if outcome == break_in.DONE] == []
    assert set(granted.values()) == set(unconfined.values()) == {break_in.DONE}, granted
    assert (outside / "secret").read_bytes() == b"secret"


@need_root
def test_the_attempts_would_succeed_without_it(tmp_path: Path) -> None:
    """Otherwise the test above would show nothing."""
    outside, sockets = tmp_path / "outside", tmp_path / "sockets"
    with ExitStack() as open_sockets:
        for one in break_in.make_bait(outside, sockets):
            open_sockets.enter_context(one)
        found = in_child(lambda: break_in.attempts(outside, sockets))
    refused = {name: outcome for name, outcome in found.items() if outcome != break_in.DONE}
    assert refused == {"reach the network": "Connection refused"}


@pytest.mark.mount
@needs_landlock
@each_engine
def test_a_real_worker_is_confined_and_so_are_its_successors(scene: Scene, engine: str) -> None:
    outside, answers = scene.folder / "outside", scene.folder / "answers"
    places = {"answers": answers, "outside": outside, "sockets": scene.runtime, "store": scene.store}
    scene.in_every_python(PROBE.format(**{name: str(path) for name, path in places.items()}))
    scene.runtime.mkdir(mode=0o700)
    with ExitStack() as open_sockets:
        for one in break_in.make_bait(outside, scene.runtime):
            open_sockets.enter_context(one)
        folder = scene.mount("--engine", engine)
        check(scene, answers)
        (folder / "file").write_text("text")
        if engine == "direct":
            [before] = scene.status()
            os.kill(before["worker_pid"], signal.SIGKILL)
            until(lambda: scene.status()[0]["worker_pid"] not in (None, before["worker_pid"]), "another worker serves")
            check(scene, answers)
            scene.must("reload", scene.mountpoint)
            check(scene, answers)
        assert (folder / "file").read_text() == "text"
        scene.umount()
    assert (outside / "secret").read_bytes() == b"secret"


def check(scene: Scene, answers: Path) -> None:
    """Have the worker that serves now try everything."""
    [state] = scene.status()
    pid = state["worker_pid"]
    for thread in os.listdir(f"/proc/{pid}/task"):
        assert "\nSeccomp:\t2\n" in Path(f"/proc/{pid}/task/{thread}/status").read_text(), thread
    os.kill(pid, signal.SIGRTMIN)

    def answer() -> dict[str, dict[str, str]] | None:
        lines = answers.read_text().splitlines() if answers.exists() else []
        return next((found for found in map(json.loads, lines) if found["worker"] == pid), None)

    found = until(answer, f"worker {pid} answers")
    assert found is not None
    assert [name for name, outcome in found["denied"].items() if outcome == break_in.DONE] == []
    assert set(found["granted"].values()) == {break_in.DONE}, found["granted"]
    assert scene.status()[0]["worker_pid"] == pid, "it serves as before"


@pytest.mark.usefixtures("forked")
@pytest.mark.mount
@need_root
@each_engine
def test_a_store_on_a_disk_of_its_own_is_served_and_checked(scene: Scene, engine: str) -> None:
    with ext4(scene.folder, megabytes=64) as disk:
        store = disk.path / "folder" / "store"
        options = (
            "--store",
            store,
            "--engine",
            engine,
            "--policy",
            "private",
            "--base",
            "--writers",
            "0",
            "--min-free",
            "1M",
        )
        folder = scene.mount(*options)
        (folder / "KEY").mkdir()
        (folder / "KEY" / "kernel").write_bytes(os.urandom(1 << 20))
        scene.must("stats", "--json")
        scene.umount()
        scene.must("fsck", "--store", store)
        scene.mount(*options)
        assert (folder / "KEY" / "kernel").stat().st_size == 1 << 20
        scene.umount()


@pytest.mark.mount
def test_a_kernel_without_landlock_is_named_once_in_the_log_and_by_doctor(scene: Scene) -> None:
    outcome = scene.run("mount", scene.mountpoint, command=(*WITHOUT_LANDLOCK, *KCACHEFS))
    assert (outcome.code, outcome.err) == (0, ""), outcome
    [state] = scene.status()
    os.kill(state["worker_pid"], signal.SIGKILL)
    until(lambda: scene.status()[0]["worker_pid"] not in (None, state["worker_pid"]), "another worker serves")
    (scene.mountpoint / "triton" / "file").write_text("text")
    scene.umount()
    assert Path(state["log"]).read_text().count(confinement.NO_LANDLOCK) == 1
    told = scene.run("doctor", "--json", command=(*WITHOUT_LANDLOCK, *KCACHEFS))
    [found] = [one for one in json.loads(told.out)["findings"] if one["subject"] == "Landlock"]
    assert (found["level"], bool(found["remedy"])) == ("note", True)


@needs_landlock
def test_doctor_says_that_workers_are_confined(scene: Scene) -> None:
    told = scene.run("doctor", "--json")
    [found] = [one for one in json.loads(told.out)["findings"] if one["subject"] == "Landlock"]
    assert found["level"] == "ok"


@needs_landlock
def test_landlock_alone_stops_abstract_sockets_and_the_network() -> None:
    address = f"\0kcachefs-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket() as network:
        abstract.bind(address)
        abstract.listen()
        network.bind(("127.0.0.1", 0))
        network.listen()

        def connect() -> list[str]:
            privileges.drop()
            with landlock.Ruleset() as nothing:
                nothing.enforce()
            said = []
            for family, where in ((socket.AF_UNIX, address), (socket.AF_INET, network.getsockname())):
                with socket.socket(family) as made:
                    try:
                        made.connect(where)
                        said.append("connected")
                    except OSError as error:
                        said.append(type(error).__name__)
            return said

        assert in_child(connect) == ["PermissionError", "PermissionError"]


@pytest.mark.parametrize(
    ("column", "header"),
    [(0, Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")), (1, Path("/usr/include/asm-generic/unistd.h"))],
)
def test_the_numbers_of_system_calls_are_the_kernels(column: int, header: Path) -> None:
    if not header.exists():
        pytest.skip(f"the kernel's headers are not installed: {header}")
    real = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)\b", header.read_text())}
    ours = {name: numbers[column] for name, numbers in (syscall_filter.REFUSED | syscall_filter.JUDGED).items()}
    known = {name: number for name, number in ours.items() if name in real}
    assert known == {name: real[name] for name in known}
    assert len(known) > 30
    newer = {"setxattrat", "removexattrat", "file_setattr", "fchmodat2"}
    assert {name for name in ours if name not in real} - newer == {name for name in ours if ours[name] < 0}
