"""Whether a mapping may be written is decided when the file is opened, by who opens it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.core.policies.maps import read_afresh, write_through_map
from tests.core.policies.mounts import (
    ALICE,
    BOB,
    as_user,
    asked,
    each_engine,
    mounted,
    needs_root,
    publish,
    reopened,
    replace_worker,
)
from tests.engines.callers import Identity
from tests.engines.mounting import Mount
from tests.engines.refusals import refused

pytestmark = needs_root

WRITER, GROUP_ZERO = Identity(uid=ALICE.uid, gid=0), Identity(uid=1_000_730_000, gid=0)
HERS = b"a" * 4096


def kernel_of(mount: Mount) -> Path:
    return mount.mountpoint / "triton" / "KEY" / "kernel.cubin"


def put(path: Path) -> Callable[[], None]:
    return lambda: publish(path, HERS)


def meddle(path: Path) -> Callable[[], None]:
    def run() -> None:
        with refused(errno.EROFS, errno.EACCES):
            write_through_map(path, b"evil")

    return run


@each_engine
@pytest.mark.parametrize("who", [None, BOB], ids=["root", "bob"])
def test_who_is_no_writer_cannot_open_a_writers_file_to_map_it(engine: str, who: Identity | None) -> None:
    with mounted(engine, "--policy", "read-only", "--writers", f"uid:{ALICE.uid}") as mount:
        as_user(ALICE, put(kernel_of(mount)))
        as_user(who, meddle(kernel_of(mount)))
        assert read_afresh(kernel_of(mount)) == HERS


@each_engine
def test_a_mask_of_modes_gives_nobody_a_way_to_write(engine: str) -> None:
    writers = ("--writers", f"uid:{ALICE.uid}")
    with mounted(engine, "--policy", "read-only", *writers, "--gid", "0", "--umask", "002") as mount:
        as_user(WRITER, put(kernel_of(mount)))
        assert kernel_of(mount).stat().st_mode & 0o777 == 0o644
        as_user(GROUP_ZERO, meddle(kernel_of(mount)))
        assert read_afresh(kernel_of(mount)) == HERS


@each_engine
def test_who_once_wrote_a_file_of_the_base_cannot_map_it(engine: str) -> None:
    with mounted(engine) as mount:
        as_user(ALICE, put(kernel_of(mount)))
        reopened(mount, "--policy", "private", "--base", "--writers", "uid:0")
        as_user(ALICE, meddle(kernel_of(mount)))
        as_user(ALICE, meddle(mount.mountpoint / ".shared" / "triton" / "KEY" / "kernel.cubin"))
        assert read_afresh(kernel_of(mount)) == HERS


@each_engine
@pytest.mark.parametrize(
    "options",
    [
        ("--policy", "read-only", "--writers", f"uid:{ALICE.uid}"),
        ("--policy", "read-only", "--writers", f"gid:{ALICE.groups[0]}"),
        ("--policy", "private", "--base", "--writers", f"uid:{ALICE.uid}"),
        ("--policy", "private", "--base", "--writers", f"gid:{ALICE.gid}"),
        ("--policy", "publish"),
        ("--policy", "private"),
    ],
    ids=" ".join,
)
def test_a_writer_writes_through_a_map(engine: str, options: tuple[str, ...]) -> None:
    with mounted(engine, *options) as mount:

        def write() -> bytes:
            publish(kernel_of(mount), HERS)
            write_through_map(kernel_of(mount), b"wrote")
            return read_afresh(kernel_of(mount))

        assert as_user(ALICE, write) == b"wrote" + HERS[5:]


@pytest.mark.mount
def test_a_lock_that_all_may_open_is_written_by_no_map() -> None:
    with mounted("direct") as mount:
        lock = mount.mountpoint / "inductor" / "x.lock"
        lock.write_bytes(b"pid 1")
        reopened(mount, "--policy", "read-only")
        fd = os.open(lock, os.O_RDWR)
        os.close(fd)
        with refused(errno.ENODEV):
            write_through_map(lock, b"evil")
        assert read_afresh(lock) == b"pid 1"


@pytest.mark.mount
def test_pages_stay_cached_over_opens_that_are_judged() -> None:
    with mounted("direct", "--policy", "read-only", "--writers", "uid:0") as mount:
        publish(kernel_of(mount), HERS)
        assert as_user(BOB, kernel_of(mount).read_bytes) == HERS
        before = asked(mount, "stats")["requests"]
        for _ in range(5):
            assert as_user(BOB, kernel_of(mount).read_bytes) == HERS
        after = asked(mount, "stats")["requests"]
        assert after["open"] - before["open"] == 5
        assert after.get("read", 0) == before.get("read", 0)


@pytest.mark.mount
def test_who_may_not_write_is_refused_by_the_next_worker_too() -> None:
    with mounted("direct", "--policy", "read-only", "--writers", f"uid:{ALICE.uid}") as mount:
        as_user(ALICE, put(kernel_of(mount)))
        replace_worker(mount)
        as_user(None, meddle(kernel_of(mount)))
        as_user(ALICE, lambda: write_through_map(kernel_of(mount), b"wrote"))
        assert read_afresh(kernel_of(mount))[:5] == b"wrote"


@pytest.mark.mount
def test_a_shared_mount_is_asked_for_no_opens() -> None:
    with mounted("direct") as mount:
        publish(kernel_of(mount), HERS)
        for _ in range(5):
            assert kernel_of(mount).read_bytes() == HERS
        assert asked(mount, "stats")["requests"].get("open", 0) <= 1
