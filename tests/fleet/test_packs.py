"""`kcachefs pack` and `unpack`: what one mount holds appears in another, whole, with its times, at another path."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcachefs.fleet import packfile, unpacking
from kcachefs.fleet.targets import MountTarget
from kcachefs.session import account
from tests.core.policies.mounts import settled
from tests.disks import ext4, need_root, tmpfs
from tests.engines.callers import OTHER, Child
from tests.engines.mounting import Mount, kill, temporary_folder
from tests.fleet.caches import ENTRIES, FILES, fill, key, packed, shown
from tests.frameworks.commands import KCACHEFS, PATIENCE, kcachefs
from tests.frameworks.conftest import ENGINES
from tests.frameworks.programs import TRITON, run_program
from tests.store.damage import flip

pytestmark = pytest.mark.mount


def told(*arguments: str | Path) -> Any:
    return json.loads(kcachefs(*arguments, "--json").stdout)


@pytest.mark.parametrize("engine", ENGINES)
def test_another_mount_gets_everything_as_it_was_and_its_own_paths(base: Path, engine: str) -> None:
    secret, public = key(base)
    with Mount(base / "one", base / "store one", engine) as one, Mount(base / "two", base / "store two", engine) as two:
        fill(one.mountpoint)
        made = told("pack", base / "all.kcp", "--key", secret, "--level", "3", "--mount", one.mountpoint)
        assert (made["entries"], made["files"], made["key"], made["left_out"]) == (ENTRIES, FILES, public, [])
        done = told("unpack", base / "all.kcp", "--trust", public, "--mount", two.mountpoint)
        assert (done["unpacked"], done["present"], done["files"]) == (ENTRIES, 0, FILES)
        found = shown(two.mountpoint)
        assert found == shown(one.mountpoint)
        assert len(found) == FILES
        assert b'"@/triton/KEY0/add.ptx"' in found["triton/KEY0/__grp__add.json"][2]
        assert not (two.mountpoint / "torch_extensions" / "fused" / "lock").exists(), "it would be waited for"


@pytest.mark.parametrize("engine", ENGINES)
def test_real_triton_compiles_nothing_on_the_second_mount(base: Path, engine: str) -> None:
    secret, public = key(base)
    with Mount(base / "one", base / "store one", engine) as one, Mount(base / "2", base / "store two", engine) as two:
        cold = run_program(TRITON, {"TRITON_CACHE_DIR": str(one.mountpoint / "triton")}, folder=base)
        assert cold["compiled"] == 4
        made = told("pack", base / "all.kcp", "triton", "--key", secret, "--level", "9", "--mount", one.mountpoint)
        assert made["bytes"] > 5 * made["packed_bytes"]
        facts = told("pack", "ls", base / "all.kcp")["facts"]
        assert facts["target"] == ["cuda 90"]
        assert facts["triton"]
        one.umount()
        shutil.rmtree(one.store)
        kcachefs("unpack", base / "all.kcp", "--trust", public, "--mount", two.mountpoint)
        warm = run_program(TRITON, {"TRITON_CACHE_DIR": str(two.mountpoint / "triton")}, folder=base)
        assert warm == {**cold, "compiled": 0}


@need_root
def test_a_pack_stays_where_nothing_can_be_read(base: Path) -> None:
    room = ("--min-free", "1MiB")  # by default it is more than this disk has
    with ext4(base, megabytes=48) as disk, Mount(base / "one", disk.path / "store", "direct", *room) as one:
        fill(one.mountpoint)
        kcachefs("pack", base / "all.kcp", "--level", "3", "--mount", one.mountpoint)
        good = (base / "all.kcp").read_bytes()
        one.remount()  # which forgets what it has read
        disk.die()
        done = kcachefs("pack", base / "all.kcp", "--mount", one.mountpoint, check=False)
        assert (done.returncode, done.stdout) == (3, "")
        assert f"left out because reading failed: {ENTRIES} entries" in done.stderr
        assert (base / "all.kcp").read_bytes() == good
        kill(*one.daemon())


def test_what_cannot_be_read_is_told_and_the_rest_is_packed(base: Path) -> None:
    """Also by a run that packs what it used, which says that there is a pack."""
    store, contents = base / "store", [os.urandom(5000) for _ in range(3)]
    with Mount(base / "one", store, "direct") as one:
        for number, content in enumerate(contents):
            (one.mountpoint / "triton" / f"KEY{number}").mkdir()
            (one.mountpoint / "triton" / f"KEY{number}" / "add.cubin").write_bytes(content)
            (one.mountpoint / "triton" / f"KEY{number}" / "add.json").write_text(str(number))
        settled(one)
    [volume] = (store / "volumes").iterdir()
    flip(volume, volume.read_bytes().index(contents[1]), 5000)
    done = kcachefs("pack", base / "all.kcp", "--level", "3", "--store", store, check=False)
    assert done.returncode == 3, done.stderr
    assert "left out because reading failed: 1 entry" in done.stderr
    assert [one["path"] for one in told("pack", "ls", base / "all.kcp")["entries"]] == ["triton/KEY0", "triton/KEY2"]
    with Mount(base / "one", store, "direct") as one:
        use = ("sh", "-c", 'cat "$TRITON_CACHE_DIR"/*/add.json')
        done = kcachefs("run", "--mount", one.mountpoint, "--pack", base / "used.kcp", "--", *use, check=False)
    assert done.returncode == 3, done.stderr
    assert "packed 2 entries" in done.stderr
    assert "kcachefs: left out because reading failed: 1 entry" in done.stderr
    assert "not packed" not in done.stderr
    assert told("pack", "ls", base / "used.kcp") == told("pack", "ls", base / "all.kcp")


def test_what_a_small_quota_evicts_again_is_told(base: Path) -> None:
    secret, public = key(base)
    with Mount(base / "one", base / "store one", "direct") as one:
        for number in range(20):
            entry = one.mountpoint / "triton" / f"LARGE{number}"
            entry.mkdir(parents=True)
            (entry / "add.cubin").write_bytes(os.urandom(1 << 18))
        told("pack", base / "all.kcp", "--key", secret, "--level", "3", "--mount", one.mountpoint)
    with Mount(base / "two", base / "store two", "direct", "--max-size", "2MiB", "--grace", "0") as two:
        done = told("unpack", base / "all.kcp", "--trust", public, "--mount", two.mountpoint)
        assert done["unpacked"] == 20
        assert 0 < done["evicted"] <= 20 - len(os.listdir(two.mountpoint / "triton"))
        words = kcachefs("unpack", base / "all.kcp", "--trust", public, "--mount", two.mountpoint).stdout
        assert "evicted again: the cache has no room for all" in words


def test_the_same_entries_give_the_same_bytes_wherever_they_are(mount: Mount, base: Path) -> None:
    secret, public = key(base)
    fill(mount.mountpoint)
    packs = [base / f"{name}.kcp" for name in ("first", "again", "elsewhere", "at rest", "at rest elsewhere")]
    common = ("--key", secret, "--level", "5")
    for out in packs[:2]:
        kcachefs("pack", out, *common, "--mount", mount.mountpoint)
    with Mount(base / "other", base / "other store", "direct") as other:
        kcachefs("unpack", packs[0], "--trust", public, "--mount", other.mountpoint)
        kcachefs("pack", packs[2], *common, "--mount", other.mountpoint)
    mount.umount()
    kcachefs("pack", packs[3], *common, "--store", mount.store)
    with Mount(base / "third", base / "third store", "direct"):
        pass
    kcachefs("unpack", packs[0], "--trust", public, "--store", base / "third store")
    kcachefs("pack", packs[4], *common, "--store", base / "third store")
    assert len({out.read_bytes() for out in packs}) == 1


def test_a_store_at_rest_gets_entries_for_where_it_will_be_mounted(mount: Mount, base: Path) -> None:
    fill(base / "caches")
    packed(base / "caches", base / "all.kcp")
    mount.umount()
    done = told("unpack", base / "all.kcp", "--allow-unsigned", "--store", mount.store)
    assert (done["unpacked"], done["files"]) == (ENTRIES, FILES)
    kcachefs("fsck", "--store", mount.store)
    mount.start()
    assert shown(mount.mountpoint) == shown(base / "caches")
    account.read(mount.mountpoint)
    rows = told("stats", "--mount", mount.mountpoint)["namespaces"]
    assert {name: (row["entries"], row["misses"]) for name, row in rows.items()} == {
        "triton": (3, 0),
        "inductor": (2, 0),
        "torch_extensions": (1, 0),
    }


def test_a_store_is_made_for_a_pack_where_there_is_none(base: Path) -> None:
    """As in an image that is built: nothing was ever mounted there."""
    fill(base / "caches")
    packed(base / "caches", base / "all.kcp")
    store = base / "image" / "store"
    refused = kcachefs("unpack", base / "all.kcp", "--store", store, check=False)
    assert refused.returncode == 6
    assert not store.exists()
    assert told("unpack", base / "all.kcp", "--allow-unsigned", "--store", store)["unpacked"] == ENTRIES
    with Mount(base / "another mount", store, "direct") as mount:
        assert shown(mount.mountpoint).keys() == shown(base / "caches").keys()


def test_a_store_at_rest_is_filled_for_the_place_that_is_named(base: Path) -> None:
    fill(base / "caches")
    packed(base / "caches", base / "all.kcp")
    (base / "real").mkdir()
    (base / "link").symlink_to(base / "real")
    into = ("--allow-unsigned", "--store", base / "store")
    done = kcachefs("unpack", base / "all.kcp", *into, "--mount", base / "link" / "place")
    assert done.stdout.splitlines()[1] == f"these entries refer to files below {base}/real/place: mount the store there"
    assert told("unpack", base / "all.kcp", *into)["mount"] == f"{base}/real/place", "the store keeps it"
    with Mount(base / "real" / "place", base / "store", "direct") as mount:
        assert shown(mount.mountpoint) == shown(base / "caches")
        refused = kcachefs("unpack", base / "all.kcp", *into, "--mount", base / "elsewhere", check=False)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert f"is mounted at {base}/real/place; leave out --mount" in refused.stderr
        assert told("unpack", base / "all.kcp", *into, "--mount", mount.mountpoint)["present"] == ENTRIES
    inside = kcachefs("unpack", base / "all.kcp", *into, "--mount", base / "store" / "mount", check=False)
    assert (inside.returncode, "cannot be inside each other" in inside.stderr) == (2, True)


def test_a_store_says_so_when_it_is_mounted_elsewhere_than_it_was_unpacked_for(base: Path) -> None:
    fill(base / "caches")
    packed(base / "caches", base / "all.kcp")
    into = ("--allow-unsigned", "--store", base / "store")
    done = kcachefs("unpack", base / "all.kcp", *into)
    assert done.stderr == ""
    assert done.stdout.splitlines()[1].startswith(
        f"these entries refer to files below {base}/store.mount: mount the store "
    )
    again = kcachefs("unpack", base / "all.kcp", *into, "--mount", base / "other")
    assert f"unpacked for, {base}/store.mount: " in again.stderr, "those that are there keep their paths"
    said = kcachefs("mount", base / "other", "--store", base / "store").stderr
    kcachefs("umount", base / "other")
    assert f"unpacked for, {base}/store.mount: " in said
    assert f"so at {base}/other what is in it may be compiled again" in said


def test_real_triton_compiles_nothing_where_a_store_is_mounted_that_was_unpacked_for_it(base: Path) -> None:
    secret, public = key(base)
    with Mount(base / "one", base / "store one", "direct") as one:
        cold = run_program(TRITON, {"TRITON_CACHE_DIR": str(one.mountpoint / "triton")}, folder=base)
        told("pack", base / "all.kcp", "triton", "--key", secret, "--level", "3", "--mount", one.mountpoint)
    place, store = base / "other", base / "image" / "store"
    kcachefs("unpack", base / "all.kcp", "--trust", public, "--store", store, "--mount", place)
    with Mount(place, store, "direct"):
        warm = run_program(TRITON, {"TRITON_CACHE_DIR": str(place / "triton")}, folder=base)
    assert warm == {**cold, "compiled": 0}


def test_what_is_there_is_left_alone_and_nothing_counts_as_compiled_or_used(mount: Mount, base: Path) -> None:
    fill(base / "caches")
    packed(base / "caches", base / "all.kcp")
    own = mount.mountpoint / "triton" / "KEY1"
    own.mkdir()
    (own / "add.cubin").write_bytes(b"compiled here")
    for unpacked in (ENTRIES - 1, 0):
        done = told("unpack", base / "all.kcp", "--allow-unsigned", "--mount", mount.mountpoint)
        assert (done["unpacked"], done["present"]) == (unpacked, ENTRIES - unpacked)
    assert {path.name: path.read_bytes() for path in own.iterdir()} == {"add.cubin": b"compiled here"}
    account.read(mount.mountpoint)  # waits until all of it is sealed and counted
    rows = told("stats", "--mount", mount.mountpoint)["namespaces"]
    assert {name: (row["entries"], row["hits"], row["misses"]) for name, row in rows.items()} == {
        "triton": (3, 0, 1),
        "inductor": (2, 0, 0),
        "torch_extensions": (1, 0, 0),
    }


MANY = 100
WATCHED = """
import os, signal, sys, threading, time
from kcachefs.cli import main

def interrupt(number, target):
    while sum(name.startswith("KEY") for name in os.listdir(target)) < 10:
        time.sleep(0.001)
    os.kill(os.getpid(), number)

number, target = int(sys.argv.pop(1)), sys.argv.pop(1)
threading.Thread(target=interrupt, args=(number, target), daemon=True).start()
main()
"""
"""A command that sends itself a signal when some entries are there: it cannot be done before anybody notices."""


@pytest.fixture(scope="module")
def many() -> Iterator[Path]:
    """A folder with the pack of so many kernels that a command takes a while to unpack them, and the kernels."""
    with temporary_folder() as folder:
        fill(folder / "caches", kernels=MANY)
        packed(folder / "caches", folder / "all.kcp")
        yield folder


def unpack_until(number: signal.Signals, many: Path, mount: Mount) -> subprocess.CompletedProcess[str]:
    """Unpack it, and send that signal in the middle."""
    command = [sys.executable, "-c", WATCHED, str(int(number)), str(mount.mountpoint / "triton")]
    command += ["unpack", str(many / "all.kcp"), "--allow-unsigned", "--mount", str(mount.mountpoint)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)


def test_an_interruption_leaves_whole_entries_and_the_next_run_goes_on(mount: Mount, many: Path) -> None:
    ended = unpack_until(signal.SIGINT, many, mount)
    assert ended.returncode == 130
    assert "run it again" in ended.stdout
    target = mount.mountpoint / "triton"
    done = os.listdir(target)
    assert 0 < len(done) < MANY
    assert all(name.startswith("KEY") and len(os.listdir(target / name)) == 4 for name in done)
    kcachefs("unpack", many / "all.kcp", "--allow-unsigned", "--mount", mount.mountpoint)
    assert shown(mount.mountpoint) == shown(many / "caches")


def test_a_kill_leaves_nothing_that_looks_like_an_entry(mount: Mount, many: Path) -> None:
    assert unpack_until(signal.SIGKILL, many, mount).returncode == -signal.SIGKILL
    target = mount.mountpoint / "triton"
    done = [name for name in os.listdir(target) if not name.startswith(".staging-adopt-")]
    assert all(name.startswith("KEY") and len(os.listdir(target / name)) == 4 for name in done)
    assert len(done) < MANY
    kcachefs("unpack", many / "all.kcp", "--allow-unsigned", "--mount", mount.mountpoint)
    assert {name for name in os.listdir(target) if name.startswith("KEY")} == {f"KEY{n}" for n in range(MANY)}


def test_another_user_packs_and_unpacks_through_the_mounts(mount: Mount, base: Path) -> None:
    fill(mount.mountpoint)
    work = base / "work"
    work.mkdir()
    os.chown(work, OTHER.uid, OTHER.gid)

    def carry() -> dict[str, Any]:
        packed(mount.mountpoint, work / "all.kcp")
        done = unpacking.Unpacked()
        with packfile.opened(work / "all.kcp", (), allow_unsigned=True) as pack:
            unpacking.unpack(pack, MountTarget(other.mountpoint), done)
        return {"unpacked": done.unpacked}

    with Mount(base / "other", base / "other store", "direct", "--policy", "publish") as other:
        with Child(carry, OTHER) as child:
            assert child.result(PATIENCE) == {"unpacked": ENTRIES}
        assert {name: row[2] for name, row in shown(other.mountpoint).items()} == {
            name: row[2] for name, row in shown(mount.mountpoint).items()
        }
        assert (other.mountpoint / "triton" / "KEY0").stat().st_uid == OTHER.uid


def test_a_run_packs_exactly_what_it_used(mount: Mount, base: Path) -> None:
    fill(mount.mountpoint)
    account.read(mount.mountpoint)
    triton = mount.mountpoint / "triton"
    for path in (triton / "KEY0" / "add.ptx", triton / "KEY1" / "add.ptx"):
        kcachefs("run", "-q", "--mount", mount.mountpoint, "--", "cat", path)
    script = f"cat {triton}/KEY1/add.cubin; mkdir {triton}/NEW; echo cubin >{triton}/NEW/add.cubin"
    options = ("--pack", base / "used.kcp", "--mount", mount.mountpoint)
    said = kcachefs("run", *options, "--", "sh", "-c", script).stderr
    assert "packed 2 entries" in said
    assert {one["path"] for one in told("pack", "ls", base / "used.kcp")["entries"]} == {"triton/KEY1", "triton/NEW"}
    failed = kcachefs("run", "--pack", base / "failed.kcp", "--mount", mount.mountpoint, "--", "false", check=False)
    assert (failed.returncode, (base / "failed.kcp").exists()) == (1, False)


def test_one_chooses_entries_as_with_ls(mount: Mount, base: Path) -> None:
    fill(mount.mountpoint)
    listed = {}
    for pattern in ("inductor", "add1", "triton/KEY*"):
        kcachefs("pack", base / "some.kcp", pattern, "--level", "1", "--mount", mount.mountpoint)
        listed[pattern] = {one["path"] for one in told("pack", "ls", base / "some.kcp")["entries"]}
    assert listed == {
        "inductor": {"inductor/ab/cabc", "inductor/ab/cdef"},
        "add1": {"triton/KEY1"},
        "triton/KEY*": {"triton/KEY0", "triton/KEY1", "triton/KEY2"},
    }
    refused = kcachefs("pack", base / "none.kcp", "softmax", "--mount", mount.mountpoint, check=False)
    assert (refused.returncode, (base / "none.kcp").exists()) == (2, False)
    assert "softmax: no entry is called that" in refused.stderr


def test_what_is_not_carried_is_told_in_a_line_each(mount: Mount, base: Path) -> None:
    fill(mount.mountpoint, kernels=1)
    (mount.mountpoint / "cuda" / "a" / "b").mkdir(parents=True)
    (mount.mountpoint / "cuda" / "a" / "b" / "cubin").write_bytes(b"driver's")
    (mount.mountpoint / "miopen" / "gfx942" / "v1").mkdir(parents=True)
    (mount.mountpoint / "miopen" / "gfx942" / "v1" / "find.ukdb").write_bytes(b"SQLite format 3\0" + bytes(100))
    (mount.mountpoint / "triton" / "LINKED").mkdir()
    (mount.mountpoint / "triton" / "LINKED" / "add.cubin").symlink_to("/etc/passwd")
    huge = mount.mountpoint / "deep_gemm" / "cache" / "kernel.huge"
    huge.mkdir(parents=True)
    with open(huge / "kernel.cubin", "wb") as file:
        file.truncate((256 << 20) + 1)
    done = kcachefs("pack", base / "all.kcp", "--level", "1", "--mount", mount.mountpoint)
    lines = sorted(line.removeprefix("kcachefs: ") for line in done.stderr.splitlines())
    assert lines == [
        "cuda: is not packed: it is the driver's own cache, which it changes in place",
        "deep_gemm/cache/kernel.huge: is not packed: it has more than 256 MiB",
        "miopen/gfx942/v1/find.ukdb: is not packed: find.ukdb is a database, which is changed in place",
        "triton/LINKED: is not packed: it holds a link, or a name that packs do not carry",
    ]
    assert "packed 4 entries" in done.stdout


def test_a_bar_is_drawn_for_a_terminal(mount: Mount, base: Path) -> None:
    fill(mount.mountpoint)
    script = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
    environment = {**os.environ, "TERM": "xterm"}
    for verb, option in (("pack", "--level=1"), ("unpack", "--allow-unsigned")):
        done = subprocess.run(
            [sys.executable, "-c", script, *KCACHEFS, verb, str(base / "all.kcp"), option, "--mount", mount.mountpoint],
            capture_output=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
            check=True,
            env=environment,
        )
        assert f"{verb}ing".encode() in done.stdout
        assert f"{ENTRIES} ".encode() in done.stdout


def test_the_help_tells_both_ways_to_call_it() -> None:
    text = " ".join(kcachefs("pack", "--help").stdout.split())
    assert "pack [OPTIONS] OUT.kcp [PATTERN]... | COMMAND" in text
    assert "which is short for kcachefs pack make" in text.replace("│", "").replace("  ", " ")


def test_a_pack_that_is_there_stays_if_its_image_has_no_place(mount: Mount, base: Path) -> None:
    fill(mount.mountpoint, size=100)
    (base / "warm.kcp").write_bytes(b"before")
    for place in (base / "warm.kcp", base):
        done = kcachefs("pack", base / "warm.kcp", "--mount", mount.mountpoint, "--oci", place, check=False)
        assert (done.returncode, done.stderr.count("\n"), str(place) in done.stderr) == (2, 1, True)
    assert (base / "warm.kcp").read_bytes() == b"before"


@need_root
def test_a_pack_for_which_the_disk_is_too_small_is_named(mount: Mount, base: Path) -> None:
    fill(mount.mountpoint, size=100)
    with tmpfs(base, "disk", 1) as disk:
        disk.fill()
        out = disk.path / "out.kcp"
        done = kcachefs("pack", out, "--mount", mount.mountpoint, check=False)
    assert (done.returncode, done.stderr) == (5, f"kcachefs: {out}: the disk is full; free some space and try again\n")
