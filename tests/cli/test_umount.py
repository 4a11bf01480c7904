"""`kcachefs umount`: waits until everything is on disk, and names whoever is in the way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kcachefs.core import Filesystem
from kcachefs.core.caller import Caller
from kcachefs.engines import mounting
from kcachefs.errors import MountBusy
from kcachefs.mounts import ending
from tests.cli.scene import KCACHEFS, Scene, holding, kill_and_wait
from tests.disks import ext4, need_root
from tests.engines.mounting import delete_in_use
from tests.waiting import until

pytestmark = pytest.mark.mount

ROOT = Caller(0, 0)


@pytest.mark.parametrize("engine", ["direct", "pyfuse3"])
def test_the_store_is_whole_and_free_as_soon_as_it_returns(scene: Scene, engine: str) -> None:
    folder = scene.mount("--engine", engine)
    for number in range(300):
        (folder / f"file{number}").write_bytes(b"%d" % number * 1000)
    scene.umount()
    assert scene.is_over()
    with scene.open_store() as store:
        assert store.recovered == 0, "something was left in the journal"
        fs = Filesystem(store)
        triton = fs.lookup(ROOT, 1, b"triton")
        assert triton is not None
        for number in range(300):
            ino = fs.lookup(ROOT, triton, b"file%d" % number)
            assert ino is not None
            assert fs.read(ino, 0, 1 << 20) == b"%d" % number * 1000
        assert fs.unsealed.files() == []


HOLDERS = {
    "an open file": "f = open(path)",
    "a working directory": "os.chdir(os.path.dirname(path))",
    "a mapping": "f = open(path); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); f.close()",
    "a program": "",
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_busy_mount_is_refused_with_whoever_uses_it(scene: Scene, holder: str) -> None:
    folder = scene.mount()
    file = folder / "a file, mapped"
    file.write_bytes(Path("/bin/sleep").read_bytes())
    file.chmod(0o755)
    path = str(folder) if holder == "a working directory" else str(file)
    script = f"import mmap, os; path = {str(file)!r}; {HOLDERS[holder]}; print('holding', flush=True); input()"
    command = [sys.executable, "-c", script]
    if holder == "a program":
        command = ["sh", "-c", f"echo holding; exec '{file}' 1000"]
    with holding(*command) as process:
        until(lambda: os.readlink(f"/proc/{process.pid}/exe") == path or holder != "a program")
        outcome = scene.run("umount", scene.mountpoint)
        outcome.refused_with(4, str(scene.mountpoint), f"({process.pid}): {path};", "--lazy")
        assert scene.mounted() == [str(scene.mountpoint)]
    scene.umount()
    assert scene.is_over()


def test_a_lazy_one_hides_the_mount_at_once_and_it_ends_when_it_is_let_go(scene: Scene) -> None:
    folder = scene.mount()
    with open(folder / "file", "w+") as file:
        file.write("before")
        file.flush()
        scene.umount("--lazy")
        assert scene.mounted() == []
        assert os.listdir(scene.mountpoint) == []
        file.write(" and after")
        file.flush()
        scene.run("mount", "other").refused_with(
            3, str(scene.store), "still in use", str(scene.status()[0]["worker_pid"])
        )
        assert not (scene.folder / "other").exists()
    until(scene.is_over)
    scene.mount()
    assert (folder / "file").read_text() == "before and after"


def test_more_users_than_fit_on_a_line_are_counted(scene: Scene) -> None:
    folder = scene.mount()
    processes = [subprocess.Popen(["sleep", "1000"], cwd=folder) for _ in range(8)]
    try:
        scene.run("umount", scene.mountpoint).refused_with(4, "sleep (", " and 3 more; ")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_whoever_only_looks_at_it_is_not_in_the_way(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    file = (scene.mount() / "file").open("w")
    busy: list[Path] = []

    def unmount(mountpoint: Path, *, lazy: bool = False) -> None:
        try:
            take_away(mountpoint, lazy=lazy)
        except MountBusy:
            busy.append(mountpoint)
            file.close()
            raise

    take_away = mounting.unmount
    monkeypatch.setattr(mounting, "unmount", unmount)
    monkeypatch.setenv("KCACHEFS_RUNTIME_DIR", scene.environment["KCACHEFS_RUNTIME_DIR"])
    monkeypatch.chdir(scene.folder)  # which it changes
    ending.unmount(scene.mountpoint)
    assert busy == [scene.mountpoint]
    assert scene.is_over()


def test_of_two_at_once_both_wait_for_the_daemon(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    (scene.mount() / "file").write_bytes(os.urandom(1 << 20))

    def unmount(mountpoint: Path, *, lazy: bool = False) -> None:
        take_away(mountpoint, lazy=lazy)  # as the other does at this moment
        take_away(mountpoint, lazy=lazy)

    take_away = mounting.unmount
    monkeypatch.setattr(mounting, "unmount", unmount)
    monkeypatch.setenv("KCACHEFS_RUNTIME_DIR", scene.environment["KCACHEFS_RUNTIME_DIR"])
    monkeypatch.chdir(scene.folder)  # which it changes
    ending.unmount(scene.mountpoint)
    assert scene.is_over()


def test_a_mount_inside_is_named(scene: Scene) -> None:
    folder = scene.mount()
    (folder / "inner").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", folder / "inner"], check=True)
    scene.run("umount", scene.mountpoint).refused_with(4, f"a mount: {folder}/inner")
    subprocess.run(["umount", folder / "inner"], check=True)
    scene.umount()


def test_a_mount_that_is_bound_elsewhere_is_refused_until_that_is_undone(scene: Scene) -> None:
    folder = scene.mount()
    (folder / "file").write_text("text")
    elsewhere = scene.bind("elsewhere")
    scene.run("umount", scene.mountpoint).refused_with(4, str(scene.mountpoint), f"a mount: {elsewhere};", "--lazy")
    assert (folder / "file").read_text() == "text"
    scene.must("umount", elsewhere)
    assert (folder / "file").read_text() == "text"
    scene.umount()
    assert scene.is_over()


def test_it_may_be_run_from_inside(scene: Scene) -> None:
    folder = scene.mount()
    scene.must("umount", "..", cwd=folder)
    assert scene.is_over()


def test_a_dead_mount_is_taken_away(scene: Scene) -> None:
    scene.mount()
    for pid in scene.daemons():
        kill_and_wait(pid)
    scene.umount()
    assert scene.is_over()
    assert scene.status() == []


@pytest.mark.parametrize("what", ["/proc", "/", "plain", "absent", "file"])
def test_what_is_no_mount_of_ours_is_left_alone(scene: Scene, what: str) -> None:
    (scene.folder / "plain").mkdir()
    (scene.folder / "file").touch()
    outcome = scene.run("umount", what)
    outcome.refused_with(4, str(scene.folder / what), "is not a kcachefs mount", "kcachefs status")


def test_it_returns_only_when_a_long_seal_is_done(scene: Scene) -> None:
    folder = scene.mount()
    content = os.urandom(1 << 20) * 64
    (folder / "large").write_bytes(content)
    before = time.monotonic()
    scene.umount()
    with scene.open_store() as store:
        assert store.objects.totals().plain >= len(content), f"not sealed after {time.monotonic() - before:.1f} s"


COPY_HOLDER = """
import errno, os, sys
file = open(sys.argv[1], "wb", buffering=0)
file.write(b"written through the copy")
os.fsync(file.fileno())
print("holding", flush=True)
input()
try:
    file.write(b"more")
    os.fsync(file.fileno())
    os.stat(sys.argv[1])
    print("still served", flush=True)
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
"""


@pytest.mark.parametrize("engine", ["direct", "pyfuse3"])
def test_a_copy_in_another_mount_namespace_keeps_nobody_waiting(scene: Scene, engine: str) -> None:
    folder = scene.mount("--engine", engine)
    (folder / "file").write_text("text")
    copy = ("unshare", "--mount", "--propagation", "private", sys.executable, "-c", COPY_HOLDER)
    with holding(*copy, str(folder / "held")) as process:
        scene.umount()
        assert scene.is_over()
        with scene.open_store() as store:
            assert store.recovered == 0, "something was left in the journal"
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() in (b"ENOTCONN", b"ECONNABORTED", b"EIO")
    scene.mount()
    assert (folder / "file").read_text() == "text"
    assert (folder / "held").read_text() == "written through the copy"


def test_a_copy_keeps_nobody_waiting_when_the_supervisor_is_dead(scene: Scene) -> None:
    folder = scene.mount()
    (folder / "file").write_text("text")
    with holding("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo holding; exec cat"):
        kill_and_wait(scene.status()[0]["supervisor_pid"])
        scene.umount()
        assert scene.is_over()
        with scene.open_store() as store:
            assert store.recovered == 0, "something was left in the journal"


@need_root
def test_what_could_not_be_written_is_told(scene: Scene) -> None:
    with ext4(scene.folder, megabytes=64) as disk:
        store = disk.path / "store"
        folder = scene.mount("--store", store, "--min-free", "1MiB")
        (folder / "file").write_text("text")
        disk.die()
        scene.run("umount", scene.mountpoint).refused_with(3, "is unmounted, but not everything is on disk", str(store))
        assert scene.daemons() == []
        assert os.listdir(scene.runtime) == []


@need_root
@pytest.mark.skipif(not os.access("/sys/fs/ext4", os.W_OK), reason="no ext4 can be made to fail here")
def test_a_disk_that_became_read_only_still_serves_and_is_told(scene: Scene) -> None:
    """As after an error of an ext4."""
    with ext4(scene.folder, megabytes=64) as disk:
        store = disk.path / "store"
        folder = scene.mount("--store", store, "--min-free", "1MiB")
        (folder / "KEY").mkdir()
        (folder / "KEY" / "add.cubin").write_bytes(b"cubin")
        scene.must("stats", "--json", "--mount", scene.mountpoint)
        until(lambda: json.loads(scene.must("ls", "--json", "--mount", scene.mountpoint)), "the entry is listed")
        disk.fail()
        with pytest.raises(OSError):
            (folder / "OTHER").mkdir()
        assert (folder / "KEY" / "add.cubin").read_bytes() == b"cubin"
        [entry] = json.loads(scene.must("ls", "--json", "--mount", scene.mountpoint))
        assert entry["path"] == "triton/KEY"
        assert json.loads(scene.must("stats", "--json", "--mount", scene.mountpoint))["total"]["entries"] == 1
        assert "trouble   nothing can be written to the store: Read-only" in scene.must("status")
        assert "trouble  nothing can be written to the store: Read-only" in scene.must(
            "stats", "--mount", scene.mountpoint
        )
        assert "nothing can be written to its store: Read-only" in scene.run("doctor").out
        assert "Nothing can be written to the store (Read-only" in scene.must("top", "--once", scene.mountpoint)
        metrics = scene.mountpoint / ".kcachefs" / "metrics"
        until(lambda: "kcachefs_store_failing 1" in metrics.read_text(), "the metrics tell it")
        scene.run("pin", "triton/KEY", "--mount", scene.mountpoint).refused_with(3, "Read-only file system")
        scene.run("umount", scene.mountpoint).refused_with(3, "not everything is on disk", "read-only", str(store))
        assert scene.daemons() == []


def test_that_the_store_was_deleted_is_told(scene: Scene) -> None:
    (scene.mount() / "file").write_text("text")
    delete_in_use(scene.store)
    scene.run("umount", scene.mountpoint).refused_with(3, "is unmounted, but", f"{scene.store}: was deleted")
    assert scene.is_over()
    assert os.listdir(scene.runtime) == []


def test_the_only_mount_needs_no_name(scene: Scene) -> None:
    scene.run("umount").refused_with(4, "nothing of yours is mounted")
    scene.mount()
    other = scene.folder / "other store"
    scene.run("stats", "--mount", scene.mountpoint, "--store", other).refused_with(2, str(scene.store), str(other))
    assert json.loads(scene.must("umount", "--json")) == {"mountpoint": str(scene.mountpoint), "lazy": False}
    assert scene.is_over()


def test_a_dead_mount_needs_no_name_either(scene: Scene) -> None:
    scene.mount()
    for pid in scene.daemons():
        kill_and_wait(pid)
    scene.must("umount")
    assert scene.is_over()


def test_several_mounts_are_told_apart_by_commands_to_choose_from(scene: Scene) -> None:
    scene.mount()
    second = scene.folder / "the second"
    scene.must("mount", second, "--store", scene.folder / "b")
    first = f"kcachefs umount {scene.mountpoint}"
    scene.run("umount").refused_with(4, "there are 2 mounts; ", first, f"kcachefs umount '{second}'")
    scene.environment["KCACHEFS_MOUNT"] = str(second)
    scene.must("umount")
    assert scene.mounted() == [str(scene.mountpoint)]
    scene.run("umount").refused_with(4, f"{second} (named by KCACHEFS_MOUNT)", "unset KCACHEFS_MOUNT")
    assert scene.mounted() == [str(scene.mountpoint)], "another one is not meant"


def test_a_relative_path_is_told_as_the_whole_one(scene: Scene) -> None:
    scene.mount()
    told = json.loads(scene.must("umount", scene.mountpoint.name, "--json"))
    assert told == {"mountpoint": str(scene.mountpoint), "lazy": False}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have mounts of its own")
def test_a_mount_in_another_namespace_is_said_to_be_there(scene: Scene) -> None:
    scene.mountpoint.mkdir()
    scene.must("--mount", "--propagation", "private", *KCACHEFS, "mount", scene.mountpoint, command=("unshare",))
    try:
        [state] = scene.status()
        outcome = scene.run("umount", scene.mountpoint)
        outcome.refused_with(4, f"process {state['supervisor_pid']} serves it", "nsenter")
        command = re.search(r"nsenter .*? -m ", outcome.err)
        assert command is not None
        scene.must(*command[0].split()[1:], *KCACHEFS, "umount", scene.mountpoint, command=("nsenter",))
        assert scene.status() == []
    finally:
        for pid in scene.daemons():
            kill_and_wait(pid)
