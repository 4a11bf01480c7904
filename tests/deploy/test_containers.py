"""One mount and many containers: they find each other's kernels, and do not notice when the daemon dies."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import kcachefs
from kcachefs.frameworks import environment
from tests.deploy.containers import Share
from tests.deploy.hosts import (
    ALICE,
    BOB,
    CAROL,
    INSIDE,
    PYTHON,
    compile_kernels,
    end_without_a_word,
    ending,
    host,
    start_triton,
    state,
    stats,
    triton_of,
    with_compilers,
)
from tests.engines.mounting import Mount
from tests.waiting import until

pytestmark = pytest.mark.mount

KILLS = 5


def test_containers_are_apart_in_all_but_the_mount() -> None:
    with host() as (mount, start):
        alice, bob = (start(name, uid=uid, shared=[mount.mountpoint]) for name, uid in (("a", ALICE), ("b", BOB)))
        spaces = {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in (alice.pid(), bob.pid()) for kind in ("pid", "mnt")}
        assert len(spaces) == 4
        alice.sh(f"echo from alice > {mount.mountpoint}/triton/file; echo $$ > /tmp/mine")
        assert bob.sh(f"id -u; cat {mount.mountpoint}/triton/file; test ! -e /tmp/mine") == f"{BOB}\nfrom alice\n"
        assert (mount.mountpoint / "triton" / "file").stat().st_uid == ALICE
        refused = bob.run("/bin/sh", "-c", f"echo no > {mount.mountpoint}/triton/file")
        assert "Permission denied" in refused.stderr


def test_what_triton_compiled_in_one_container_is_a_hit_in_the_others() -> None:
    with host() as (mount, start):
        alice, bob = with_compilers(start, "a", ALICE, mount), with_compilers(start, "b", BOB, mount)
        cold = compile_kernels(alice, mount, 128, 256)
        assert cold["hits"] == [False, False]
        before = stats(mount)
        warm = compile_kernels(bob, mount, 128, 256)
        assert warm == {**cold, "hits": [True, True]}
        after = stats(mount)
        for change in ("create", "write", "mkdir", "rename2", "unlink"):
            assert after["requests"].get(change, 0) == before["requests"].get(change, 0), change
        assert after["namespaces"]["triton"]["misses"] == before["namespaces"]["triton"]["misses"]
        assert after["namespaces"]["triton"]["hits"] >= before["namespaces"]["triton"]["hits"] + 2
        carol = with_compilers(start, "c", CAROL, mount)
        assert compile_kernels(carol, mount, 128, 512)["hits"] == [True, False]
        assert compile_kernels(alice, mount, 512)["hits"] == [True]


def test_a_library_that_gcc_linked_in_one_container_is_loaded_in_another() -> None:
    with host() as (mount, start):
        alice, bob = with_compilers(start, "a", ALICE, mount), with_compilers(start, "b", BOB, mount)
        library = mount.mountpoint / "inductor" / "answer.so"
        source = "int answer(void) { return 42; }"
        alice.must("/bin/sh", "-euc", f"echo '{source}' > /tmp/a.c; gcc -shared -fPIC -o {library} /tmp/a.c")
        said = bob.must(*PYTHON, "-c", f"import ctypes; print(ctypes.CDLL('{library}').answer())")
        assert said == "42\n"


def test_containers_at_work_do_not_notice_that_the_worker_is_killed() -> None:
    with host() as (mount, start):
        folder = mount.mountpoint / "triton" / "work"
        folder.mkdir()
        folder.chmod(0o777)
        (folder / "lock").touch()
        (folder / "lock").chmod(0o666)
        with ending() as busy:
            for name, uid in (("a", ALICE), ("b", BOB)):
                container = with_compilers(start, name, uid, mount)
                busy.append(container.start(*PYTHON, INSIDE / "deploy" / "inside.py", folder, name))
            for _ in range(KILLS):
                for process in busy:
                    assert process.stdout is not None
                    assert process.stdout.readline() != "", process.communicate()
                kill_worker(mount)
            (folder / "stop").touch()
            end_without_a_word(busy)
        assert state(mount)["restarts"] == KILLS


def test_triton_compiles_in_two_containers_while_the_worker_is_killed() -> None:
    """Each compiles its own kernels: under `shared`, a kernel's folder belongs to whoever compiled it first."""
    with host() as (mount, start):
        alice, bob = with_compilers(start, "a", ALICE, mount), with_compilers(start, "b", BOB, mount)
        hers, his = (16, 64, 256, 1024, 4096), (32, 128, 512, 2048, 8192)
        kills = seen = 0
        with ending() as compiling:
            compiling.append(start_triton(alice, mount, *hers))
            compiling.append(start_triton(bob, mount, *his))

            def is_over() -> bool:
                return all(process.poll() is not None for process in compiling)

            def names() -> int:
                return len(os.listdir(triton_of(mount)))

            def is_next() -> bool:
                return is_over() or names() > seen

            while kills < KILLS and not is_over():
                until(is_next, "another kernel is there", pause=0.005)
                if not is_over():
                    seen, kills = names(), kills + 1
                    kill_worker(mount)
            end_without_a_word(compiling)
        assert kills >= 1  # as many as there was time for
        assert compile_kernels(alice, mount, *his)["hits"] == compile_kernels(bob, mount, *hers)["hits"] == [True] * 5


def kill_worker(mount: Mount) -> None:
    """Kill the worker and return once its successor serves."""
    before = state(mount)
    os.kill(before["worker_pid"], signal.SIGKILL)
    until(lambda: state(mount)["worker_pid"] != before["worker_pid"])


def test_a_user_in_a_container_is_told_the_variables_of_a_mount_that_is_not_his() -> None:
    with host() as (mount, start):
        code = Share(Path(kcachefs.__file__).parent, Path("/opt/code/kcachefs"))
        alice = start("a", uid=ALICE, programs=True, shared=[mount.mountpoint, code])
        words = ("-m", "kcachefs", "env", "--mount", mount.mountpoint, "--format", "json")
        told = json.loads(alice.must(*PYTHON, *words, PYTHONPATH="/opt/code", KCACHEFS_RUNTIME_DIR="/tmp/run"))
        assert told == environment(mount.mountpoint)


def test_a_container_with_users_of_its_own_shares_the_mount() -> None:
    with host() as (mount, start):
        mapped = start("mapped", user_namespace=200_000, shared=[mount.mountpoint])
        file = mount.mountpoint / "triton" / "file"
        mapped.sh(f"id -u; echo text > {file}; ls -ln {file} | grep -q ' 0        0 '")
        assert (file.stat().st_uid, file.read_text()) == (200_000, "text\n")
        assert start("plain", uid=ALICE, shared=[mount.mountpoint]).sh(f"cat {file}") == "text\n"
