"""Policies between containers: what one tenant can do to another, tried from inside with real compilers."""

from __future__ import annotations

import pytest

from tests.deploy.containers import Container
from tests.deploy.hosts import (
    ALICE,
    BOB,
    compile_kernels,
    end_without_a_word,
    ending,
    host,
    start_triton,
    stats,
    with_compilers,
)

pytestmark = pytest.mark.mount


def refused(container: Container, script: str) -> bool:
    """Whether a command fails in the container for lack of permission, or because others' folders are not there."""
    said = container.run("/bin/sh", "-c", script)
    reasons = ("ermitted", "denied", "ead-only", "/.tenants/")
    assert said.returncode == 0 or any(reason in said.stderr for reason in reasons), said.stderr
    return said.returncode != 0


def test_what_one_container_published_the_others_read_and_cannot_change() -> None:
    with host("--policy", "publish") as (mount, start):
        alice, bob = (start(name, uid=uid, shared=[mount.mountpoint]) for name, uid in (("a", ALICE), ("b", BOB)))
        mapped = start(
            "mapped", user_namespace=200_000, shared=[mount.mountpoint]
        )  # root in its own namespace, not on the host
        entry = mount.mountpoint / "triton" / "ENTRY"
        alice.sh(f"mkdir {entry}; echo compiled > {entry}/tmp.pid_1_x; mv {entry}/tmp.pid_1_x {entry}/kernel.cubin")
        for other in (bob, mapped):
            assert other.sh(f"cat {entry}/kernel.cubin") == "compiled\n"
            other.sh(f"echo evil > {mount.mountpoint}/triton/tmp.pid_2_evil")
            for attempt in (
                f"echo evil > {entry}/kernel.cubin",
                f"rm -f {entry}/kernel.cubin",
                f"mv -f {mount.mountpoint}/triton/tmp.pid_2_evil {entry}/kernel.cubin",
                f"mv {entry} {entry}.gone",
                f"chmod 777 {entry}/kernel.cubin",
            ):
                assert refused(other, attempt), attempt
            other.sh(f"rm {mount.mountpoint}/triton/tmp.pid_2_evil")
        assert alice.sh(f"cat {entry}/kernel.cubin") == "compiled\n"


def test_two_users_who_compile_the_same_kernels_at_once_both_get_them() -> None:
    with host("--policy", "publish") as (mount, start):
        alice, bob = with_compilers(start, "a", ALICE, mount), with_compilers(start, "b", BOB, mount)
        blocks = (32, 64, 128, 256)
        with ending() as compiling:
            compiling += [start_triton(one, mount, *blocks) for one in (alice, bob)]
            end_without_a_word(compiling)
        assert compile_kernels(alice, mount, *blocks)["hits"] == [True] * 4
        assert compile_kernels(bob, mount, *blocks)["hits"] == [True] * 4


def test_private_containers_do_not_see_each_other_and_share_the_bytes() -> None:
    with host("--policy", "private") as (mount, start):
        alice, bob = with_compilers(start, "a", ALICE, mount), with_compilers(start, "b", BOB, mount)
        hers = compile_kernels(alice, mount, 64)
        before = stats(mount)
        assert bob.sh(f"ls {mount.mountpoint}/triton") == ""
        assert compile_kernels(bob, mount, 64) == hers
        assert hers["hits"] == [False]
        after = stats(mount)
        assert after["total"]["plain_bytes"] > 1.9 * before["total"]["plain_bytes"], (before, after)
        assert after["store"]["unique_bytes"] < 1.1 * before["store"]["unique_bytes"], (before, after)
        assert refused(bob, f"cat {mount.mountpoint}/.tenants/{ALICE}/triton/*/*.cubin")


def test_a_container_that_may_only_read_hits_what_a_writer_compiled_and_takes_locks() -> None:
    with host("--policy", "read-only", "--writers", f"uid:{ALICE}") as (mount, start):
        alice, bob = with_compilers(start, "a", ALICE, mount), with_compilers(start, "b", BOB, mount)
        assert compile_kernels(alice, mount, 64)["hits"] == [False]
        assert compile_kernels(bob, mount, 64)["hits"] == [True]
        assert refused(bob, f"echo evil > {mount.mountpoint}/triton/evil")
        assert refused(bob, f"rm -rf {mount.mountpoint}/triton/*")
        lock = mount.mountpoint / "inductor" / "locks" / "x.lock"
        bob.sh(f"mkdir -p {lock.parent}; exec 9>{lock}; flock -n 9")
        assert compile_kernels(alice, mount, 64)["hits"] == [True]
