"""--policy private: every user has their own tree in one store; with --base, over what the writers provide."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

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
    settled,
    triton_put,
)
from tests.engines.callers import Child
from tests.engines.mounting import Mount
from tests.engines.refusals import refused
from tests.waiting import until

pytestmark = needs_root

BASED = ("--policy", "private", "--base", "--writers", "uid:0")


def kernel(mount: Mount, key: str, data: bytes) -> Callable[[], None]:
    return lambda: triton_put(mount.mountpoint / "triton" / key, "kernel.cubin", data)


def read(mount: Mount, key: str) -> Callable[[], bytes]:
    return (mount.mountpoint / "triton" / key / "kernel.cubin").read_bytes


@each_engine
def test_each_user_sees_only_what_is_theirs(engine: str) -> None:
    with mounted(engine, "--policy", "private") as mount:
        as_user(ALICE, kernel(mount, "KEY", b"alice"))
        as_user(BOB, kernel(mount, "KEY", b"bob"))
        as_user(None, kernel(mount, "KEY", b"root"))
        for _ in range(3):  # in turns, so that nothing the kernel cached for one serves the other
            assert as_user(ALICE, read(mount, "KEY")) == b"alice"
            assert as_user(BOB, read(mount, "KEY")) == b"bob"
            assert as_user(None, read(mount, "KEY")) == b"root"
        assert as_user(BOB, lambda: os.listdir(mount.mountpoint / "cuda")) == []
        assert {"triton", "inductor", ".kcachefs"} <= set(as_user(ALICE, lambda: os.listdir(mount.mountpoint)))
        mount.remount()
        assert as_user(ALICE, read(mount, "KEY")) == b"alice"
        assert as_user(BOB, read(mount, "KEY")) == b"bob"


@each_engine
def test_users_at_work_at_the_same_time_never_meet(engine: str) -> None:
    with mounted(engine, "--policy", "private") as mount:

        def work(mine: bytes) -> Callable[[], int]:
            def run() -> int:
                for number in range(60):
                    kernel(mount, f"K{number % 7}", mine * (number + 1))()
                    assert read(mount, f"K{number % 7}")() == mine * (number + 1)
                return len(os.listdir(mount.mountpoint / "triton"))

            return run

        with Child(work(b"a"), ALICE) as alice, Child(work(b"b"), BOB) as bob, Child(work(b"r")) as root:
            assert (alice.result(), bob.result(), root.result()) == (7, 7, 7)


@each_engine
def test_no_path_leads_into_anothers_tree(engine: str) -> None:
    with mounted(engine, "--policy", "private") as mount:
        as_user(ALICE, kernel(mount, "KEY", b"alice"))
        trees = mount.mountpoint / ".tenants"
        os.listdir(trees / str(ALICE.uid) / "triton")  # root may, and now the kernel knows the names

        def pry() -> None:
            for path in (trees / str(ALICE.uid) / "triton", trees / str(ALICE.uid) / "triton" / "KEY" / "kernel.cubin"):
                with pytest.raises((PermissionError, FileNotFoundError)):
                    os.stat(path)
            for attempt in (
                lambda: os.listdir(trees),
                lambda: os.rename(trees / str(BOB.uid), trees / "x"),
                lambda: (mount.mountpoint / "new").mkdir(),
                lambda: os.unlink(mount.mountpoint / "triton"),
                lambda: os.symlink("/", mount.mountpoint / "link"),
                lambda: os.rmdir(trees / str(ALICE.uid)),
                lambda: (trees / "12345").mkdir(),
            ):
                with pytest.raises((PermissionError, FileNotFoundError)):
                    attempt()

        as_user(BOB, lambda: os.listdir(mount.mountpoint / "triton"))
        as_user(BOB, pry)
        with refused(errno.EPERM):
            (mount.mountpoint / "x").mkdir()
        with refused(errno.EPERM):
            os.unlink(mount.mountpoint / "triton")
        with refused(errno.ENOTEMPTY):
            os.rmdir(trees / str(ALICE.uid) / "triton")


@each_engine
def test_equal_bytes_of_two_users_take_no_more_room(engine: str) -> None:
    with mounted(engine, "--policy", "private") as mount:
        data = os.urandom(300_000)
        as_user(ALICE, kernel(mount, "KEY", data))
        as_user(BOB, kernel(mount, "KEY", data))
        stats = settled(mount)
        assert stats.total.entries == stats.namespaces["triton"].entries == 2
        assert stats.store.objects == 1
        assert stats.store.dedup_ratio == 2.0
        listed = asked(mount, "ls")
        assert {(entry["uid"], entry["namespace"]) for entry in listed} == {(ALICE.uid, "triton"), (BOB.uid, "triton")}

        mine = as_user(ALICE, lambda: json.loads((mount.mountpoint / ".kcachefs" / "stats.json").read_bytes()))
        assert mine["total"]["entries"] == 1
        assert mine["store"]["objects"] == 1
        assert mine["store"]["dedup_ratio"] == 1.0
        assert mine["requests"] == {}
        metrics = as_user(BOB, lambda: (mount.mountpoint / ".kcachefs" / "metrics").read_text())
        assert 'kcachefs_entries{namespace="triton"} 1' in metrics


@each_engine
def test_what_others_store_shows_in_no_number_that_a_user_can_read(engine: str) -> None:
    with mounted(engine, "--policy", "private") as mount:
        data = os.urandom(3_000_000)

        def told() -> tuple[int, int, object]:
            report = json.loads((mount.mountpoint / ".kcachefs" / "stats.json").read_bytes())
            for row in (report["total"], *report["namespaces"].values()):
                row["last_used"] = 0
            state = os.statvfs(mount.mountpoint)
            return state.f_bfree, state.f_ffree, report

        as_user(ALICE, kernel(mount, "KEY", data))
        settled(mount)
        first = as_user(ALICE, told)
        nothing = as_user(BOB, told)
        as_user(BOB, kernel(mount, "OTHER", os.urandom(2_000_000)))
        settled(mount)
        assert as_user(ALICE, told) == first, "she does not see that he stored something"
        as_user(BOB, kernel(mount, "KEY", data))
        settled(mount)
        after = as_user(BOB, told)
        taken = (nothing[0] - after[0]) * 4096
        assert taken >= 5_000_000, "what he stored counts in full, though hers was there already"


@each_engine
def test_an_entry_of_one_user_is_evicted_and_the_others_stay(engine: str) -> None:
    with mounted(engine, "--policy", "private") as mount:
        as_user(ALICE, kernel(mount, "KEY", b"alice"))
        as_user(BOB, kernel(mount, "KEY", b"bob"))
        settled(mount)
        assert asked(mount, "evict", patterns=[f".tenants/{ALICE.uid}/triton/KEY"])["refused"] == []
        with pytest.raises(FileNotFoundError):
            as_user(ALICE, read(mount, "KEY"))
        assert as_user(BOB, read(mount, "KEY")) == b"bob"


def test_the_current_folder_of_one_survives_the_visits_of_another() -> None:
    with mounted("direct", "--policy", "private") as mount:
        as_user(ALICE, kernel(mount, "KEY", b"alice"))

        def stay() -> tuple[str, bytes]:
            os.chdir(mount.mountpoint / "triton")
            with Child(lambda: os.listdir(mount.mountpoint / "triton")) as other:
                other.result()
            return os.getcwd(), Path("KEY/kernel.cubin").read_bytes()

        where, data = as_user(ALICE, stay)
        assert where == str(mount.mountpoint / ".tenants" / str(ALICE.uid) / "triton")
        assert data == b"alice"


# --- over a base ------------------------------------------------------------------------------------------------------


def based(mount: Mount) -> None:
    """What the owner of the mount provides for everyone."""
    root = mount.mountpoint
    for name in ("kernel.cubin", "kernel.json"):
        triton_put(root / "triton" / "BASE", name, b"base")
    (root / "triton" / "BASE" / "deeper").mkdir()
    (root / "triton" / "BASE" / "deeper" / "file").write_bytes(b"deep")
    for name in ("cbase.py", "cbase.so"):
        publish(root / "inductor" / "ab" / name, b"base")
    publish(root / "inductor" / "fxgraph" / "xy" / "fKEY" / "pickle", b"base")
    (root / "inductor" / "locks").mkdir(exist_ok=True)
    (root / "inductor" / "locks" / "x.lock").touch()


@each_engine
def test_the_base_is_seen_by_all_and_changed_by_none(engine: str) -> None:
    with mounted(engine, *BASED) as mount:
        based(mount)
        triton, inductor = mount.mountpoint / "triton", mount.mountpoint / "inductor"

        def use() -> None:
            assert os.listdir(triton) == ["BASE"]
            assert (triton / "BASE" / "kernel.cubin").read_bytes() == b"base"
            assert (triton / "BASE" / "deeper" / "file").read_bytes() == b"deep"
            assert sorted(os.listdir(triton / "BASE")) == ["deeper", "kernel.cubin", "kernel.json"]
            assert sorted(os.listdir(inductor / "ab")) == ["cbase.py", "cbase.so"]
            assert (inductor / "fxgraph" / "xy" / "fKEY" / "pickle").read_bytes() == b"base"
            for attempt in (
                lambda: (triton / "BASE" / "planted").touch(),
                lambda: (triton / "BASE" / "kernel.cubin").unlink(),
                lambda: (triton / "BASE" / "kernel.cubin").write_bytes(b"evil"),
                lambda: (triton / "BASE").rename(triton / "MINE"),
                lambda: (inductor / "ab" / "cbase.py").unlink(),
                lambda: (inductor / "ab" / "cbase.py").rename(inductor / "ab" / "cx.py"),
                lambda: os.truncate(inductor / "ab" / "cbase.py", 0),
            ):
                with pytest.raises(OSError) as caught:
                    attempt()
                assert caught.value.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
            os.close(os.open(inductor / "locks" / "x.lock", os.O_RDWR | os.O_CREAT))

        as_user(ALICE, use)
        as_user(BOB, use)
        as_user(ALICE, kernel(mount, "MINE", b"alice"))
        assert sorted(as_user(ALICE, lambda: os.listdir(triton))) == ["BASE", "MINE"]
        assert as_user(BOB, lambda: os.listdir(triton)) == ["BASE"]
        assert os.listdir(triton) == ["BASE"]


@each_engine
def test_the_base_is_closed_by_every_path_and_to_those_who_once_wrote_it(engine: str) -> None:
    with mounted(engine) as mount:
        hers = mount.mountpoint / "triton" / "HERS" / "kernel.cubin"
        as_user(ALICE, lambda: triton_put(hers.parent, hers.name, b"base"))
        reopened(mount, *BASED)
        shared = mount.mountpoint / ".shared"

        def meddle() -> None:
            path = shared / "triton" / "HERS" / "kernel.cubin"
            attempts: list[Callable[[], object]] = [
                lambda: (shared / "triton" / "EVIL").mkdir(),
                lambda: (shared / "cuda" / "evil").write_bytes(b"x"),
                lambda: (shared / "new").mkdir(),
                lambda: path.unlink(),
                lambda: path.rename(path.parent / "x"),
                lambda: os.rename(mount.mountpoint / "triton" / "MINE", shared / "triton" / "MINE"),
                lambda: path.write_bytes(b"evil"),
                lambda: path.chmod(0o777),
                lambda: hers.write_bytes(b"evil"),
                lambda: hers.unlink(),
                lambda: os.truncate(hers, 0),
                lambda: os.link(hers, mount.mountpoint / "triton" / "linked"),
                lambda: _overwrite(hers),
            ]
            (mount.mountpoint / "triton" / "MINE").mkdir()
            for number, attempt in enumerate(attempts):
                with pytest.raises(OSError) as caught:
                    attempt()
                assert caught.value.errno in (errno.EROFS, errno.EACCES, errno.EPERM), (number, caught.value)
            assert path.read_bytes() == hers.read_bytes() == b"base"

        as_user(ALICE, meddle)
        assert os.listdir(shared / "triton") == ["HERS"]


def _overwrite(path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        os.write(fd, b"evil")
    finally:
        os.close(fd)


@each_engine
def test_an_entry_comes_whole_from_above_or_whole_from_below(engine: str) -> None:
    with mounted(engine, *BASED) as mount:
        based(mount)
        folder = mount.mountpoint / "inductor" / "ab"

        def shadow() -> None:
            assert (folder / "cbase.so").read_bytes() == b"base"
            publish(folder / "cbase.py", b"mine")
            assert (folder / "cbase.py").read_bytes() == b"mine"
            assert os.listdir(folder) == ["cbase.py"]

        as_user(ALICE, shadow)
        mount.remount()
        assert as_user(ALICE, lambda: os.path.exists(folder / "cbase.so")) is False
        assert as_user(BOB, (folder / "cbase.py").read_bytes) == b"base"
        as_user(ALICE, (folder / "cbase.py").unlink)
        assert as_user(ALICE, (folder / "cbase.py").read_bytes) == b"base"


@each_engine
def test_what_comes_into_the_base_later_is_seen_though_it_was_missed_before(engine: str) -> None:
    writers = ("--writers", f"uid:{BOB.uid}")
    with mounted(engine, "--policy", "private", "--base", *writers) as mount:
        path = mount.mountpoint / "triton" / "LATER" / "kernel.cubin"
        assert as_user(ALICE, path.exists) is False
        as_user(BOB, kernel(mount, "LATER", b"base"))
        assert as_user(ALICE, path.read_bytes) == b"base"
        assert as_user(None, path.read_bytes) == b"base", "root has a tree of its own, over the base"
        as_user(None, kernel(mount, "ROOT", b"root"))
        assert as_user(BOB, lambda: os.listdir(mount.mountpoint / "triton")) == ["LATER"]


def test_an_entry_evicted_from_the_base_is_gone_for_all() -> None:
    with mounted("direct", *BASED) as mount:
        based(mount)
        path = mount.mountpoint / "triton" / "BASE" / "kernel.cubin"
        assert as_user(ALICE, path.read_bytes) == b"base"
        settled(mount)
        assert asked(mount, "evict", patterns=["triton/BASE"])["refused"] == []
        _until_gone(path)


def _until_gone(path: Path) -> None:
    """Wait until the kernel has forgotten it: it may trust a name of the base for a second."""

    def is_gone() -> bool:
        try:
            path.read_bytes()
        except FileNotFoundError:
            return True
        return False

    as_user(ALICE, lambda: until(is_gone, f"{path} is gone"))


def test_a_store_that_was_shared_becomes_the_base() -> None:
    with mounted("direct") as mount:
        based(mount)
        reopened(mount, "--policy", "private")
        assert as_user(ALICE, lambda: os.listdir(mount.mountpoint / "triton")) == []
        reopened(mount, *BASED)
        assert as_user(ALICE, read(mount, "BASE")) == b"base"
        reopened(mount)
        assert read(mount, "BASE")() == b"base"


@each_engine
def test_a_tree_that_was_looked_for_too_early_is_found_when_its_user_comes(engine: str) -> None:
    with mounted(engine, "--policy", "private") as mount:
        tree = mount.mountpoint / ".tenants" / str(ALICE.uid)
        assert not tree.exists()
        assert as_user(ALICE, tree.exists) is False
        as_user(ALICE, kernel(mount, "KEY", b"alice"))
        assert as_user(ALICE, read(mount, "KEY")) == b"alice"
        assert tree.exists()
