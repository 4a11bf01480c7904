"""Hard links: several names, one file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tests.engines.refusals import refused
from tests.engines.syscalls import RENAME_EXCHANGE, renameat2

pytestmark = pytest.mark.usefixtures("as_user")


def test_two_names_are_one_file(root: Path) -> None:
    (root / "one").write_bytes(b"content")
    os.link(root / "one", root / "two")
    one, two = (root / "one").stat(), (root / "two").stat()
    assert one.st_ino == two.st_ino
    assert one.st_nlink == two.st_nlink == 2
    (root / "two").chmod(0o604)
    assert stat.S_IMODE((root / "one").stat().st_mode) == 0o604
    with open(root / "one", "ab") as file:
        file.write(b" and more")
    assert (root / "two").read_bytes() == b"content and more"


def test_the_link_count_rises_and_falls(root: Path) -> None:
    (root / "0").write_bytes(b"content")
    (root / "sub").mkdir()
    for number in range(1, 20):
        os.link(root / "0", root / "sub" / f"{number}")
        assert (root / "0").stat().st_nlink == number + 1
    (root / "0").unlink()
    for number in range(1, 19):
        (root / "sub" / f"{number}").unlink()
        assert (root / "sub" / "19").stat().st_nlink == 19 - number
    assert (root / "sub" / "19").read_bytes() == b"content"


def test_a_descriptor_sees_the_link_count_change(root: Path) -> None:
    with open(root / "one", "wb") as file:
        os.link(root / "one", root / "two")
        assert os.fstat(file.fileno()).st_nlink == 2
        (root / "one").unlink()
        assert os.fstat(file.fileno()).st_nlink == 1
        (root / "two").unlink()
        assert os.fstat(file.fileno()).st_nlink == 0


def test_a_file_that_is_being_written_can_be_linked(root: Path) -> None:
    with open(root / "one", "wb", buffering=0) as file:
        file.write(b"before ")
        os.link(root / "one", root / "two")
        (root / "one").unlink()
        file.write(b"after")
    assert (root / "two").read_bytes() == b"before after"


def test_link_refuses_a_name_that_exists(root: Path) -> None:
    (root / "file").write_bytes(b"kept")
    (root / "other").touch()
    (root / "folder").mkdir()
    (root / "dangling").symlink_to("nowhere")
    for name in ("file", "folder", "dangling"):
        with refused(errno.EEXIST):
            os.link(root / "other", root / name)
    assert (root / "file").read_bytes() == b"kept"
    assert (root / "other").stat().st_nlink == 1


def test_a_directory_cannot_be_linked(root: Path) -> None:
    (root / "folder").mkdir()
    with refused(errno.EPERM):
        os.link(root / "folder", root / "second")
    assert os.listdir(root) == ["folder"]


def test_a_missing_file_cannot_be_linked(root: Path) -> None:
    with refused(errno.ENOENT):
        os.link(root / "missing", root / "new")
    (root / "file").touch()
    with refused(errno.ENOENT):
        os.link(root / "file", root / "missing" / "new")
    with refused(errno.ENOTDIR):
        os.link(root / "file", root / "file" / "new")


def test_symlinks_and_fifos_can_have_several_names(root: Path) -> None:
    (root / "symlink").symlink_to("target")
    os.mkfifo(root / "fifo")
    for name in ("symlink", "fifo"):
        os.link(root / name, root / f"{name}2", follow_symlinks=False)
        one, two = (root / name).lstat(), (root / f"{name}2").lstat()
        assert (one.st_ino, one.st_nlink, one.st_mode) == (two.st_ino, 2, two.st_mode)
    assert os.readlink(root / "symlink2") == "target"


def test_renaming_one_name_onto_another_of_the_same_file_does_nothing(root: Path) -> None:
    (root / "one").write_bytes(b"content")
    os.link(root / "one", root / "two")
    os.rename(root / "one", root / "two")
    assert sorted(os.listdir(root)) == ["one", "two"]
    assert (root / "one").stat().st_nlink == 2


def test_exchanging_two_names_of_the_same_file_keeps_both(root: Path) -> None:
    (root / "one").write_bytes(b"content")
    os.link(root / "one", root / "two")
    renameat2(root / "one", root / "two", RENAME_EXCHANGE)
    assert sorted(os.listdir(root)) == ["one", "two"]
    assert (root / "one").stat().st_nlink == 2


def test_replacing_one_name_leaves_the_others(root: Path) -> None:
    (root / "one").write_bytes(b"old")
    os.link(root / "one", root / "two")
    (root / "new").write_bytes(b"new")
    os.replace(root / "new", root / "one")
    assert (root / "one").read_bytes() == b"new"
    assert (root / "two").read_bytes() == b"old"
    assert (root / "one").stat().st_nlink == (root / "two").stat().st_nlink == 1


def test_an_open_file_without_a_name_cannot_be_linked_back(root: Path) -> None:
    folder = os.open(root, os.O_RDONLY)
    with open(root / "file", "wb") as file:
        (root / "file").unlink()
        with refused(errno.ENOENT):
            os.link(f"/proc/self/fd/{file.fileno()}", "back", dst_dir_fd=folder, follow_symlinks=True)
    os.close(folder)
