"""--policy private: every user has their own tree in one store; with --base, over what the writers provide."""

from __future__ import annotations

import errno
import itertools
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcachefs.core import Filesystem, FsOptions
from kcachefs.core.caller import Caller
from kcachefs.core.policies.hidden_numbers import HiddenNumbers
from kcachefs.core.sharing import Sharing
from kcachefs.errors import FsError
from kcachefs.store import Options, Store
from kcachefs.store.inode_numbers import ALIAS_BASE, ROOT_INO, VIRTUAL_BASE
from kcachefs.store.records import META_PRIVATE
from tests import command_server
from tests.cli.scene import holding
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
        (tree,) = [trees / name for name in os.listdir(trees)]
        assert tree.stat().st_uid == ALICE.uid
        os.listdir(tree / "triton")  # root may, and now the kernel knows the names

        def pry() -> None:
            for path in (tree / "triton", tree / "triton" / "KEY" / "kernel.cubin"):
                with pytest.raises((PermissionError, FileNotFoundError)):
                    os.stat(path)
            for attempt in (
                lambda: os.listdir(trees),
                lambda: os.rename(tree, trees / "x"),
                lambda: (mount.mountpoint / "new").mkdir(),
                lambda: os.unlink(mount.mountpoint / "triton"),
                lambda: os.symlink("/", mount.mountpoint / "link"),
                lambda: os.rmdir(tree),
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
            os.rmdir(tree / "triton")


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
        assert where == str(mount.mountpoint / as_user(ALICE, lambda: os.readlink(mount.mountpoint / "triton")))
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
def test_an_entry_of_the_base_that_was_in_use_is_evicted_once_it_is_not(engine: str) -> None:
    """Users see its folder under numbers of their own, and nobody looks at it again."""
    with mounted(engine, *BASED, "--grace", "0") as mount:
        entry = mount.mountpoint / "triton" / "KEY"

        def make() -> None:
            triton_put(entry, "kernel.cubin", b"base")
            (entry / "folder").mkdir()
            (entry / "folder" / "file").write_bytes(b"base")

        as_user(None, make)
        settled(mount)
        evict = partial(command_server.run, "evict", "--mount", mount.mountpoint, "*triton/KEY")
        for name in ("kernel.cubin", "folder/file"):
            with holding("sh", "-c", 'exec 3<"$0"; echo holding; exec cat', str(entry / name), user=BOB.uid):
                assert "in use" in evict().stdout
            until(lambda: evict().returncode == 0, f"the entry of {name} is evicted")
            as_user(None, make)
            settled(mount)


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


def test_a_tree_that_was_looked_for_too_early_is_found_when_its_user_comes(tmp_path: Path) -> None:
    with Store(tmp_path / "store", Options(background=False)) as store:
        fs = Filesystem(store, FsOptions(sharing=Sharing(policy="private")))
        alice = Caller(ALICE.uid, ALICE.gid)
        trees = fs.lookup(alice, ROOT_INO, b".tenants")
        assert trees is not None
        assert fs.policy.numbers is not None
        token = fs.policy.numbers.folder_of(ALICE.uid)
        assert len(store.catalog.get(META_PRIVATE) or b"") == 32
        with pytest.raises(FsError) as caught:  # an error, which the kernel does not remember as it would a miss
            fs.lookup(alice, trees, token)
        assert caught.value.errno == errno.ENOENT
        link = fs.lookup(alice, ROOT_INO, b"triton")
        assert link is not None
        assert fs.readlink(alice, link) == b".tenants/" + token + b"/triton"
        assert fs.lookup(alice, trees, token) is not None


# --- what numbers and names tell --------------------------------------------------------------------------------------


@each_engine
def test_nothing_of_a_users_folder_is_found_by_the_uid(engine: str) -> None:
    with mounted(engine, "--policy", "private") as mount:
        as_user(ALICE, kernel(mount, "KEY", b"alice"))
        tree = mount.mountpoint / ".tenants" / str(ALICE.uid)

        def look() -> None:
            for attempt in (
                lambda: os.stat(tree),
                lambda: os.open(tree, os.O_PATH),
                lambda: os.chdir(tree),
                lambda: os.listdir(tree / "triton"),
                lambda: os.rmdir(tree),
                lambda: os.rename(tree, tree.parent / "x"),
            ):
                with refused(errno.ENOENT, errno.EPERM):
                    attempt()
            assert not tree.exists()

        as_user(BOB, look)
        as_user(None, look)  # not by root either: what root looked up, the kernel would show to all
        as_user(ALICE, look)
        as_user(BOB, look)


@each_engine
def test_the_folders_of_all_do_not_tell_how_many_users_there_are(engine: str) -> None:
    with mounted(engine, "--policy", "private") as mount:

        def look() -> list[tuple[int, int, int]]:
            found = [os.stat(mount.mountpoint / name) for name in (".", ".tenants")]
            return [(state.st_nlink, state.st_mtime_ns, state.st_size) for state in found]

        before = as_user(BOB, look)
        as_user(ALICE, kernel(mount, "KEY", b"alice"))
        reopened(mount, "--policy", "private")
        assert as_user(BOB, look) == before


@each_engine
def test_inode_numbers_do_not_count_what_others_make(engine: str) -> None:
    with mounted(engine, "--policy", "private") as mount:
        folder = mount.mountpoint / "triton" / "KEY"

        def make(start: int, count: int) -> None:
            folder.mkdir(exist_ok=True)
            for number in range(start, start + count):
                (folder / f"f{number}").write_bytes(b"x")

        def numbers() -> dict[str, int]:
            listed = {child.name: child.inode() for child in os.scandir(folder)}
            assert listed == {name: (folder / name).stat().st_ino for name in listed}, "a listing says the same"
            return listed

        as_user(BOB, lambda: make(0, 20))
        as_user(ALICE, lambda: make(0, 50))
        as_user(BOB, lambda: make(20, 20))
        found = as_user(BOB, numbers)
        assert len(set(found.values())) == 40
        in_order = [found[f"f{number}"] for number in range(40)]
        steps = sorted(abs(after - before) for before, after in itertools.pairwise(in_order))
        assert steps[0] > 1 << 32, "neighbours in time are no neighbours in number"
        rises = sum(after > before for before, after in itertools.pairwise(in_order))
        assert 5 < rises < 35, "later ones are not larger"
        as_user(BOB, lambda: os.link(folder / "f0", folder / "again"))
        assert as_user(BOB, numbers)["again"] == found["f0"]
        if engine == "direct":
            replace_worker(mount)
            assert as_user(BOB, numbers).items() >= found.items()
        reopened(mount, "--policy", "private")
        assert as_user(BOB, numbers).items() >= found.items()


@given(
    number=st.integers(ROOT_INO, VIRTUAL_BASE // 2 - 1) | st.integers(ALIAS_BASE, (1 << 64) - 1),
    key=st.binary(max_size=32),
)
def test_every_hidden_number_stands_for_one_inode(number: int, key: bytes) -> None:
    hidden = HiddenNumbers(key)
    shown = hidden.hide(number)
    assert hidden.real(shown) == number
    assert (number == ROOT_INO) == (shown == ROOT_INO)
    assert number == ROOT_INO or not VIRTUAL_BASE <= shown < ALIAS_BASE
