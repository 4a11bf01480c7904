"""Two nodes over one bucket: what one compiled, the other finds."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from kcachefs.daemon.bucket_folder import BucketFolder
from kcachefs.fleet import packfile
from tests import forked_programs
from tests.disks import need_root
from tests.engines.callers import Child, Identity
from tests.engines.mounting import Mount, kill, temporary_folder
from tests.fleet.caches import ENTRIES, fill, shown
from tests.fleet.mounts import SCOPE, Fleet, agent_of, fleet_of, log_of, told, wait_for_agent, wait_for_index
from tests.frameworks.commands import kcachefs
from tests.frameworks.conftest import ENGINES
from tests.frameworks.programs import PATIENCE
from tests.frameworks.tenants import open_what_is_closed
from tests.pythons import needs_torch
from tests.waiting import until

ROOT = Path(__file__).parents[2]
NOBODY = Identity(uid=65534, gid=65534)
"""A user whom /etc/passwd names: fusermount3 refuses others."""
Told = dict[str, Any]
every_engine = pytest.mark.parametrize("engine", ENGINES)
pytestmark = pytest.mark.mount


@every_engine
def test_a_second_node_finds_what_the_first_compiled(empty_fleet: Fleet, engine: str) -> None:
    with empty_fleet.publisher("one", engine) as one:
        fill(one.mountpoint)
        there = shown(one.mountpoint)
    assert len(empty_fleet.packs()) == 1
    with empty_fleet.node("two", engine) as two:
        wait_for_index(two)
        assert (two.mountpoint / "triton" / "KEY1" / "add.json").read_bytes() == there["triton/KEY1/add.json"][2]
        until(lambda: fleet_of(two)["entries"] == ENTRIES, "the rest of the pack is here, too")
        assert shown(two.mountpoint) == {name: (mode & ~0o022, *rest) for name, (mode, *rest) in there.items()}
        group = json.loads((two.mountpoint / "triton" / "KEY1" / "__grp__add.json").read_bytes())
        assert set(map(os.path.dirname, group["child_paths"].values())) == {str(two.mountpoint / "triton" / "KEY1")}
        numbers = told(two)
        assert (numbers["total"]["entries"], numbers["total"]["misses"]) == (ENTRIES, 0)
        assert numbers["fleet"]["hits"] == 1
        assert numbers["fleet"]["state"] == "ready"
        assert not fleet_of(two)["published"]
    assert "could not" not in log_of(two)


@every_engine
def test_names_that_form_no_entry_are_never_asked_for(fleet: Fleet, engine: str) -> None:
    with fleet.node("two", engine) as two:
        wait_for_index(two)
        own = two.mountpoint / "triton" / "OWN"
        own.mkdir()
        for path in ("triton/KEY.lock", "triton/tmp.pid_1", "inductor/ab/x.tmp", "triton/OWN/KEY1", "none", "nvrtc/a"):
            assert not (two.mountpoint / path).exists()
        assert [path.name for path in (two.mountpoint / "triton").iterdir()] == ["OWN"]
        assert (two.mountpoint / "inductor" / "ab").is_dir(), "a folder that leads to entries is there"
        told = fleet_of(two)
        assert (told["packs"], told["given_up"], told["waited_seconds"]) == (0, 0, 0)


def test_what_is_here_already_stays_as_it_is(fleet: Fleet) -> None:
    with fleet.node("two") as two:
        wait_for_index(two)
        own = two.mountpoint / "triton" / "KEY0"
        with pytest.raises(FileExistsError):  # the lookup before the mkdir brings it in
            own.mkdir()
        until(lambda: fleet_of(two)["entries"] == ENTRIES)
        before = fleet_of(two)["packs"]
        assert not (two.mountpoint / "inductor" / "ab" / "cabc.cubin").exists()
        assert fleet_of(two)["packs"] == before, "the rest of the group is here, so nobody has this file"
        (own / "add.ptx").write_bytes(b"changed here")
        shutil.rmtree(two.mountpoint / "triton" / "KEY1")
        assert (two.mountpoint / "triton" / "KEY1" / "add.ptx").exists(), "what was removed comes back when asked for"
        assert (own / "add.ptx").read_bytes() == b"changed here"


@pytest.fixture(scope="module")
def with_kernels(own_keys: None) -> Iterator[Callable[[str], Fleet]]:
    """A fleet whose first node compiled Triton's kernels on a mount of that engine."""
    pytest.importorskip("triton")
    with temporary_folder() as folder:

        @cache
        def made(engine: str) -> Fleet:
            (folder / engine).mkdir()
            fleet = Fleet(folder / engine)
            with fleet.publisher("one", engine) as one:
                assert compile_kernels(one.mountpoint)["hits"] == [False, False]
            return fleet

        yield made


@every_engine
def test_a_second_node_compiles_no_triton_kernel(
    empty_fleet: Fleet, with_kernels: Callable[[str], Fleet], engine: str
) -> None:
    empty_fleet.take(with_kernels(engine))
    with empty_fleet.node("two", engine) as two:
        wait_for_index(two)
        warm = compile_kernels(two.mountpoint)
        assert warm["hits"] == [True, True]
        assert all(kernel["there"] for kernel in warm["kernels"])
        assert told(two)["total"]["misses"] == 0


@every_engine
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_second_node_of_another_user_compiles_no_triton_kernel(
    empty_fleet: Fleet, with_kernels: Callable[[str], Fleet], engine: str
) -> None:
    """Its own user, store, mount path and agent: nothing of the first node's is shared but the bucket."""
    empty_fleet.take(with_kernels(engine))
    warm, numbers = on_a_node_of_another_user(empty_fleet, engine, compile_kernels)
    assert warm["hits"] == [True, True]
    assert all(kernel["there"] for kernel in warm["kernels"])
    assert (numbers["total"]["misses"], numbers["total"]["entries"]) == (0, 2)
    assert numbers["fleet"]["hits"] >= 1


def on_a_node_of_another_user(fleet: Fleet, engine: str, program: Callable[[Path], Told]) -> tuple[Told, Told]:
    """What a program found on a mount of another user's, and the mount's numbers."""
    for folder in (fleet.folder, *fleet.bucket.rglob("*")):
        folder.chmod(0o755)
    home = fleet.folder / f"another_{engine}"
    home.mkdir()
    os.chown(home, NOBODY.uid, NOBODY.gid)
    forked_programs.keep()  # the child does not last
    with Child(lambda: as_another_user(fleet, home, engine, program)) as child:
        found: tuple[Told, Told] = child.result(PATIENCE)
        return found


def as_another_user(fleet: Fleet, home: Path, engine: str, program: Callable[[Path], Told]) -> tuple[Told, Told]:
    forked_programs.reach()
    open_what_is_closed(home)
    device = home / "fuse"  # in a mount namespace of our own, where everybody may open it
    os.mknod(device, stat.S_IFCHR, os.stat("/dev/fuse").st_rdev)
    device.chmod(0o666)
    subprocess.run(["mount", "--bind", device, "/dev/fuse"], check=True)
    NOBODY.assume()
    names = ("RUNTIME_DIR", "LOG_DIR", "SYSTEM_CONFIG")
    places = {f"KCACHEFS_{name}": str(home / name.lower()) for name in names}
    places |= {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG")}
    os.environ.update({**places, "HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": str(ROOT)})
    os.chdir(home)
    mount = home / "kernels"
    options = ["--store", str(home / "store"), "--engine", engine, "--fleet", fleet.url, "--fleet-scope", SCOPE]
    run("mount", str(mount), *options, "--trust", fleet.public)
    try:
        until(lambda: numbers_of(mount)["fleet"]["index_keys"], "the index is loaded")
        return program(mount), numbers_of(mount)
    finally:
        run("umount", str(mount))


def run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "kcachefs", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def numbers_of(mount: Path) -> Told:
    found: Told = json.loads((mount / ".kcachefs" / "settled.json").read_bytes())
    return found


def compile_kernels(mount: Path) -> Told:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(mount / "triton"), "PYTHONPATH": str(ROOT)}
    with forked_programs.Program(ROOT / "tests" / "triton_kernel.py", "64", "128", env=environment) as ran:
        out, errors = ran.communicate(timeout=PATIENCE)
    assert ran.returncode == 0, errors
    numbers: Told = json.loads(out)
    return numbers


@needs_torch
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_second_node_of_another_user_compiles_nothing_of_a_torch_model(empty_fleet: Fleet) -> None:
    with torch_model() as compile_model:
        with empty_fleet.publisher("one") as one:
            cold = compile_model(one.mountpoint)
            assert (cold["hits"], cold["misses"]) == (0, 1)
        for engine in ("direct", "pyfuse3"):
            warm, numbers = on_a_node_of_another_user(empty_fleet, engine, compile_model)
            assert (warm["hits"], warm["misses"], warm["result"]) == (1, 0, cold["result"])
            assert numbers["total"]["misses"] == 0


@contextlib.contextmanager
def torch_model() -> Iterator[Callable[[Path], Told]]:
    """Compiles a model on a mount, as the user and in the mount namespace of whoever calls it."""
    settings = {
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "LOGNAME": "somebody",
    }
    program, ours = ROOT / "tests" / "fleet" / "torch_model.py", os.getpid()
    with forked_programs.Program(program, env={**os.environ, **settings}, stdin=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        asked, answers = server.stdin, server.stdout

        def compile_model(mount: Path) -> Told:
            places = {"TORCHINDUCTOR_CACHE_DIR": mount / "inductor", "TRITON_CACHE_DIR": mount / "triton"}
            environment = {**os.environ, **settings, **{name: str(place) for name, place in places.items()}}
            wanted = {
                "environment": {**environment, "TMPDIR": str(mount.parent)},
                "beside": None if os.getpid() == ours else os.getpid(),
                "uid": os.getuid(),
                "gid": os.getgid(),
            }
            print(json.dumps(wanted), file=asked, flush=True)
            numbers: Told = json.loads(answers.readline())
            assert "error" not in numbers, numbers["error"]
            return numbers

        yield compile_model


def test_what_arrives_is_the_owners_and_nobody_else_writes_to_it(fleet: Fleet) -> None:
    with fleet.node("two") as two:
        wait_for_index(two)
        entry = two.mountpoint / "triton" / "KEY0"
        for path in (entry, *entry.iterdir()):
            found = path.stat()
            assert found.st_uid == os.getuid()
            assert not stat.S_IMODE(found.st_mode) & 0o022


def test_what_rests_only_because_the_mount_ends_is_published_too(empty_fleet: Fleet) -> None:
    """As gcc's precompiled header, which gcc opens twice: on a mount it is sealed after a minute."""
    with empty_fleet.publisher("one") as one:
        header = one.mountpoint / "precompiled_headers" / "ab.h.gch"
        header.write_bytes(b"precompiled")
        with open(header, "r+b") as file:
            file.write(b"PRE")
    with empty_fleet.node("two") as two:
        wait_for_index(two)
        assert (two.mountpoint / "precompiled_headers" / "ab.h.gch").read_bytes() == b"PREcompiled"


def test_what_a_killed_worker_had_not_queued_is_published_by_the_next(empty_fleet: Fleet) -> None:
    with empty_fleet.publisher("one") as one:
        fill(one.mountpoint)
        assert told(one)["total"]["entries"] == ENTRIES
        kill(one.daemon()[1])
        wait_for_agent(one)
    with packfile.opened(empty_fleet.packs()[0], (), to_look=True) as pack:
        assert len(pack.manifest.entries) == ENTRIES


def test_the_queue_survives_a_mount_that_could_not_publish(empty_fleet: Fleet) -> None:
    away = empty_fleet.folder / "away"
    with empty_fleet.publisher("one") as one:
        empty_fleet.bucket.rename(away)
        fill(one.mountpoint)
    away.rename(empty_fleet.bucket)
    assert not empty_fleet.packs()
    queue = json.loads((one.store / "fleet" / "queue.json").read_bytes())
    assert sum(len(batch["entries"]) for batch in queue) == ENTRIES
    with empty_fleet.publisher("one") as one:
        until(empty_fleet.packs, "what waited is published")
        until(lambda: not fleet_of(one)["queue"])
    assert json.loads((one.store / "fleet" / "queue.json").read_bytes()) == []


def make_again(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def mount_over(folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)


def mount_again(folder: Path) -> None:
    subprocess.run(["umount", folder], check=True)
    mount_over(folder)


@pytest.mark.parametrize(
    "change", [make_again, pytest.param(mount_over, marks=need_root), pytest.param(mount_again, marks=need_root)]
)
def test_a_folder_that_comes_after_the_agent_is_published_to(
    empty_fleet: Fleet, change: Callable[[Path], None]
) -> None:
    """Landlock ties the right to write to the folder that was there when the agent started."""
    bucket = empty_fleet.bucket
    if change is mount_again:
        mount_over(bucket)
    try:
        with empty_fleet.publisher("one") as one:
            first, before = agent_of(one), BucketFolder(empty_fleet.url)
            change(bucket)
            if change is mount_again and not before.is_another():
                pytest.skip("this kernel gives the next mount the numbers of the last (Linux 6.8 does not)")
            until(lambda: is_another_agent(one, first), "another agent runs")
            until(lambda: fleet_of(one)["state"] == "ready")
            fill(one.mountpoint)
        assert empty_fleet.packs()
        assert "ERROR" not in log_of(one)
        assert "starting the fleet's agent again in 0.2 s" in log_of(one), "not at once"
    finally:
        subprocess.run(["umount", "-q", bucket], check=False)


def bind(disk: Path, folder: Path) -> None:
    subprocess.run(["mount", "--bind", disk, folder], check=True)


@need_root
def test_nothing_is_published_where_the_disk_of_the_bucket_should_be(empty_fleet: Fleet) -> None:
    """The next mount of the disk would hide it."""
    bucket, disk = empty_fleet.bucket, empty_fleet.folder / "disk"
    (disk / "v1").mkdir(parents=True)
    bind(disk, bucket)
    try:
        with empty_fleet.publisher("one") as one:
            first = agent_of(one)
            until(lambda: subprocess.run(["umount", bucket], capture_output=True).returncode == 0)
            until(lambda: fleet_of(one)["why"] or is_another_agent(one, first), "the agent has noticed")
            numbers = fleet_of(one)
            assert (numbers["state"], "holds nothing any more; mount the disk" in numbers["why"]) == ("closed", True)
            fill(one.mountpoint)
        assert os.listdir(bucket) == []
        queue = json.loads((one.store / "fleet" / "queue.json").read_bytes())
        assert sum(len(batch["entries"]) for batch in queue) == ENTRIES
        bind(disk, bucket)
        with empty_fleet.publisher("one"):
            until(empty_fleet.packs, "what waited is published")
    finally:
        subprocess.run(["umount", "-q", "--lazy", bucket], check=False)


def test_a_reload_replaces_the_agent_which_alone_has_the_credentials(
    empty_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {"AWS_SECRET_ACCESS_KEY": "hidden", "AZURE_STORAGE_ACCOUNT_KEY": "hidden", "https_proxy": "http://u:p@h"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    with empty_fleet.node("one") as one:
        wait_for_agent(one)
        for _ in range(2):
            first = agent_of(one)
            kcachefs("reload", one.mountpoint)
            until(partial(is_another_agent, one, first), "another agent runs")
            until(lambda: len(workers_of(one)) == 2, "there is a standby")
            assert secrets.items() <= environment_of(agent_of(one)).items()
            for worker in workers_of(one):
                found = environment_of(worker)
                assert found["KCACHEFS_LOG_DIR"] == os.environ["KCACHEFS_LOG_DIR"]
                assert not secrets.keys() & found.keys()
    assert "ERROR" not in log_of(one)


def is_another_agent(mount: Mount, first: int) -> bool:
    return agent_of(mount) not in (0, first)


def environment_of(pid: int) -> dict[str, str]:
    pairs = (os.fsdecode(pair).partition("=") for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    return {name: value for name, _, value in pairs if name}


def workers_of(mount: Mount) -> list[int]:
    """The one that serves, and its standby."""
    found = []
    children = Path(f"/proc/{mount.daemon()[0]}/task").glob("*/children")
    for pid in (int(pid) for file in children for pid in file.read_text().split()):
        with contextlib.suppress(OSError):
            if b"kcachefs.daemon.worker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
    return found
