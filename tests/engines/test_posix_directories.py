"""Directories: made, removed, counted."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tests.engines.refusals import refused

pytestmark = pytest.mark.usefixtures("as_user")


def test_a_new_directory_is_empty_with_two_links_and_belongs_to_its_creator(root: Path) -> None:
    (root / "folder").mkdir()
    status = (root / "folder").stat()
    assert stat.S_ISDIR(status.st_mode)
    assert os.listdir(root / "folder") == []
    assert status.st_nlink == 2
    assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())


def test_every_subdirectory_adds_a_link_and_files_add_none(root: Path) -> None:
    folder = root / "folder"
    folder.mkdir()
    (folder / "file").touch()
    (folder / "link").symlink_to("elsewhere")
    assert folder.stat().st_nlink == 2
    for number in range(1, 6):
        (folder / f"sub{number}").mkdir()
        assert folder.stat().st_nlink == 2 + number
    for number in range(1, 6):
        (folder / f"sub{number}").rmdir()
        assert folder.stat().st_nlink == 2 + 5 - number


def test_a_directory_that_moves_takes_its_link_along(root: Path) -> None:
    (root / "from" / "sub").mkdir(parents=True)
    (root / "to").mkdir()
    (root / "from" / "sub").rename(root / "to" / "sub")
    assert (root / "from").stat().st_nlink == 2
    assert (root / "to").stat().st_nlink == 3
    assert (root / "to" / "sub").stat().st_nlink == 2


def test_a_directory_replaced_by_another_gives_its_link_back(root: Path) -> None:
    for name in ("from/sub", "to/sub"):
        (root / name).mkdir(parents=True)
    (root / "from" / "sub").rename(root / "to" / "sub")
    assert (root / "from").stat().st_nlink == 2
    assert (root / "to").stat().st_nlink == 3


def test_mkdir_refuses_any_name_that_exists(root: Path) -> None:
    (root / "folder").mkdir()
    (root / "file").touch()
    (root / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "fifo")
    for name in ("folder", "file", "dangling", "fifo"):
        with refused(errno.EEXIST):
            (root / name).mkdir()


def test_mkdir_accepts_a_slash_at_the_end(root: Path) -> None:
    os.mkdir(f"{root}/folder/")
    assert (root / "folder").is_dir()


def test_rmdir_removes_an_empty_directory(root: Path) -> None:
    (root / "folder").mkdir()
    (root / "folder").rmdir()
    assert os.listdir(root) == []
    with refused(errno.ENOENT):
        (root / "folder").stat()


def test_rmdir_refuses_a_directory_with_anything_in_it(root: Path) -> None:
    for fill in (Path.touch, Path.mkdir, os.mkfifo, _dangle):
        folder = root / "folder"
        folder.mkdir()
        fill(folder / "thing")
        with refused(errno.ENOTEMPTY):
            folder.rmdir()
        if fill is Path.mkdir:
            (folder / "thing").rmdir()
        else:
            (folder / "thing").unlink()
        folder.rmdir()


def _dangle(path: Path) -> None:
    path.symlink_to("nowhere")


def test_rmdir_refuses_a_directory_that_is_full_and_open_with_enotempty(root: Path) -> None:
    (root / "folder").mkdir()
    with open(root / "folder" / "file", "wb"):
        descriptor = os.open(root / "folder", os.O_RDONLY)
        with refused(errno.ENOTEMPTY):
            (root / "folder").rmdir()
        os.close(descriptor)


def test_rmdir_refuses_what_is_no_directory(root: Path) -> None:
    (root / "file").touch()
    (root / "folder").mkdir()
    (root / "link").symlink_to("folder")
    with refused(errno.ENOTDIR):
        (root / "file").rmdir()
    with refused(errno.ENOTDIR):
        (root / "link").rmdir()
    with refused(errno.ENOENT):
        (root / "missing").rmdir()


def test_rmdir_refuses_dot_and_dot_dot(root: Path) -> None:
    (root / "folder" / "sub").mkdir(parents=True)
    with refused(errno.EINVAL):
        os.rmdir(f"{root}/folder/sub/.")
    with refused(errno.ENOTEMPTY):
        os.rmdir(f"{root}/folder/sub/..")


def test_unlink_refuses_a_directory(root: Path) -> None:
    (root / "folder").mkdir()
    with refused(errno.EISDIR):
        (root / "folder").unlink()


def test_an_open_directory_that_is_removed_has_no_links_and_takes_nothing_in(root: Path) -> None:
    (root / "folder").mkdir()
    descriptor = os.open(root / "folder", os.O_RDONLY)
    try:
        (root / "folder").rmdir()
        assert os.fstat(descriptor).st_nlink == 0
        assert os.listdir(descriptor) == []
        with refused(errno.ENOENT):
            os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor)
        with refused(errno.ENOENT):
            os.mkdir("sub", dir_fd=descriptor)
    finally:
        os.close(descriptor)


def test_a_name_is_free_again_after_rmdir_while_the_old_directory_is_open(root: Path) -> None:
    (root / "folder").mkdir()
    descriptor = os.open(root / "folder", os.O_RDONLY)
    (root / "folder").rmdir()
    (root / "folder").mkdir()
    (root / "folder" / "file").touch()
    assert os.fstat(descriptor).st_ino != (root / "folder").stat().st_ino
    assert os.listdir(root / "folder") == ["file"]
    os.close(descriptor)


def test_dot_and_dot_dot_lead_where_they_should(root: Path) -> None:
    (root / "folder" / "sub").mkdir(parents=True)
    assert os.stat(f"{root}/folder/sub/.").st_ino == (root / "folder" / "sub").stat().st_ino
    assert os.stat(f"{root}/folder/sub/..").st_ino == (root / "folder").stat().st_ino


def test_dot_dot_follows_a_directory_that_moved(root: Path) -> None:
    (root / "from" / "sub").mkdir(parents=True)
    (root / "to").mkdir()
    descriptor = os.open(root / "from" / "sub", os.O_RDONLY)
    (root / "from" / "sub").rename(root / "to" / "sub")
    assert os.stat("..", dir_fd=descriptor).st_ino == (root / "to").stat().st_ino
    os.close(descriptor)


def test_deep_trees_are_made_and_removed(root: Path) -> None:
    deepest = root.joinpath(*(f"level{level}" for level in range(60)))
    deepest.mkdir(parents=True)
    (deepest / "file").write_bytes(b"deep")
    assert (deepest / "file").read_bytes() == b"deep"
    (deepest / "file").unlink()
    while deepest != root:
        deepest.rmdir()
        deepest = deepest.parent
    assert os.listdir(root) == []


def test_inode_numbers_are_distinct_and_stay(root: Path) -> None:
    paths = [root / f"{number}" for number in range(50)]
    for number, path in enumerate(paths):
        path.mkdir() if number % 2 else path.touch()
    inodes = [path.stat().st_ino for path in paths]
    assert len(set(inodes)) == len(paths)
    for number, path in enumerate(paths):
        path.rename(root / f"renamed{number}")
    assert [(root / f"renamed{number}").stat().st_ino for number in range(50)] == inodes
