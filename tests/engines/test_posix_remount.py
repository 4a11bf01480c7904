"""What a mount holds is still there after it is unmounted and mounted again, and after its daemon is killed."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.engines.mounting import Mount, of_a_mount_only
from tests.engines.refusals import refused
from tests.engines.trees import same_trees, snapshot

pytestmark = of_a_mount_only

again = pytest.mark.parametrize("restart", [Mount.remount, Mount.kill], ids=["remounted", "killed"])
Restart = Callable[[Mount], None]

SECOND = 10**9


@again
def test_a_tree_of_everything_is_the_same(root: Path, mount: Mount, restart: Restart) -> None:
    _make_everything(root)
    before = snapshot(root)
    inodes = {name: (root / name).lstat().st_ino for name in before}
    restart(mount)
    same_trees(snapshot(root), before)
    assert {name: (root / name).lstat().st_ino for name in before} == inodes


def _make_everything(root: Path) -> None:
    (root / "folder" / "sub").mkdir(parents=True)
    (root / "empty").mkdir(mode=0o700)
    (root / "file").write_bytes(b"content" * 1000)
    (root / "nothing").touch()
    (root / "random").write_bytes(random.Random(1).randbytes(3_000_000))
    (root / "same").write_bytes(b"content" * 1000)
    (root / "folder" / "mutable").write_bytes(b"first")
    with open(root / "folder" / "mutable", "ab") as file:
        file.write(b" and second")
    with open(root / "sparse", "wb") as file:
        file.seek(2_000_000)
        file.write(b"end")
    os.link(root / "file", root / "folder" / "hard")
    (root / "symlink").symlink_to("folder/hard")
    os.mkfifo(root / "fifo", 0o620)
    descriptor = os.open(root, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{descriptor}/socket")
    os.close(descriptor)
    (root / os.fsdecode(b"not \xff UTF-8\n")).write_bytes(b"bytes")
    (root / "file").chmod(0o4751)
    (root / "folder").chmod(0o3775)
    os.chown(root / "random", 1234, 5678)
    os.lchown(root / "symlink", 1234, 5678)
    (root / "folder" / "mutable").rename(root / "folder" / "sub" / "moved")
    for number, name in enumerate(("file", "random", "symlink", "fifo", "folder/sub", "empty", "folder")):
        os.utime(root / name, ns=(7, 1_500_000_000 * SECOND + number), follow_symlinks=False)


@again
def test_times_that_were_set_are_kept_to_the_nanosecond(root: Path, mount: Mount, restart: Restart) -> None:
    moments = {
        "file": (1_111_111_111_111_111_111, 1_222_222_222_222_222_222),
        "folder": (-1, 2**33 * SECOND + 1),
    }
    (root / "file").touch()
    (root / "folder").mkdir()
    for name, moment in moments.items():
        os.utime(root / name, ns=moment)
    before = {name: (root / name).stat().st_ctime_ns for name in moments}
    restart(mount)
    for name, moment in moments.items():
        status = (root / name).stat()
        assert (status.st_atime_ns, status.st_mtime_ns) == moment
        assert status.st_ctime_ns == before[name]


@again
def test_what_was_removed_stays_removed(root: Path, mount: Mount, restart: Restart) -> None:
    for name in ("kept", "unlinked", "replaced", "renamed"):
        (root / name).write_bytes(name.encode())
    (root / "removed").mkdir()
    (root / "unlinked").unlink()
    (root / "removed").rmdir()
    os.replace(root / "renamed", root / "replaced")
    restart(mount)
    assert sorted(os.listdir(root)) == ["kept", "replaced"]
    assert (root / "replaced").read_bytes() == b"renamed"


@again
def test_a_directory_of_more_than_a_thousand_is_complete(root: Path, mount: Mount, restart: Restart) -> None:
    """The catalog is read a thousand names at a time."""
    for number in range(1260):
        (root / f"{number}").write_bytes(b"%d" % number)
    for number in range(0, 1260, 6):
        (root / f"{number}").unlink()
    restart(mount)
    left = {f"{number}" for number in range(1260) if number % 6}
    assert set(os.listdir(root)) == left
    assert all((root / name).read_text() == name for name in left)


@again
def test_work_goes_on_where_it_stopped(root: Path, mount: Mount, restart: Restart) -> None:
    (root / "file").write_bytes(b"before")
    (root / "folder").mkdir()
    restart(mount)
    with open(root / "file", "ab") as file:
        file.write(b" and after")
    (root / "file").rename(root / "folder" / "moved")
    (root / "folder" / "new").write_bytes(b"new")
    restart(mount)
    assert (root / "folder" / "moved").read_bytes() == b"before and after"
    assert sorted(os.listdir(root / "folder")) == ["moved", "new"]


def test_a_write_that_was_acknowledged_survives_a_kill_though_its_file_is_open(root: Path, mount: Mount) -> None:
    descriptor = os.open(root / "file", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"acknowledged")
    mount.sigkill()
    with refused(errno.ENOTCONN, errno.ECONNABORTED):
        os.write(descriptor, b"lost")
    _close_on_a_dead_mount(descriptor)
    mount.start()
    assert (root / "file").read_bytes() == b"acknowledged"


def test_a_file_that_was_unlinked_while_open_is_gone_after_a_kill(root: Path, mount: Mount) -> None:
    descriptor = os.open(root / "file", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"content")
    (root / "file").unlink()
    mount.sigkill()
    _close_on_a_dead_mount(descriptor)
    mount.start()
    assert os.listdir(root) == []


def _close_on_a_dead_mount(descriptor: int) -> None:
    """The descriptor is closed afterwards, even though the kernel reports that it could not tell the daemon."""
    with suppress(OSError):
        os.close(descriptor)


def test_kills_one_after_the_other_lose_nothing(root: Path, mount: Mount) -> None:
    expected = {}
    for turn in range(3):
        for number in range(20):
            name = f"{turn}-{number}"
            (root / name).write_bytes(name.encode() * 500)
            expected[name] = name.encode() * 500
        mount.kill()
        assert {name: (root / name).read_bytes() for name in os.listdir(root)} == expected
