"""Symbolic links: kept as written, followed, and never mistaken for what they point to."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tests.engines.refusals import refused

pytestmark = pytest.mark.usefixtures("as_user")


@pytest.mark.parametrize(
    "target",
    [
        b"plain",
        b"/absolute/path",
        b"../up/and/down",
        b"with space\nand newline",
        b"not \xff\xfe UTF-8",
        b"trailing/slash//",
        b"t" * 255,
        b"/".join([b"d" * 200] * 20) + b"/" + b"e" * 75,
    ],
    ids=["plain", "absolute", "relative", "newline", "bytes", "slashes", "long", "4095"],
)
def test_a_symlink_keeps_its_target_to_the_byte(root: Path, target: bytes) -> None:
    link = os.fsencode(root / "link")
    os.symlink(target, link)
    assert os.readlink(link) == target
    assert os.lstat(link).st_size == len(target)


def test_a_symlink_is_a_link_with_all_permissions_and_belongs_to_its_creator(root: Path) -> None:
    (root / "link").symlink_to("target")
    status = (root / "link").lstat()
    assert stat.S_ISLNK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o777
    assert status.st_nlink == 1
    assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())


def test_a_target_of_path_max_is_too_long(root: Path) -> None:
    with refused(errno.ENAMETOOLONG):
        os.symlink("t" * 4096, root / "link")
    assert os.listdir(root) == []


def test_an_empty_target_is_refused(root: Path) -> None:
    with refused(errno.ENOENT):
        os.symlink("", root / "link")


def test_symlink_refuses_a_name_that_exists(root: Path) -> None:
    (root / "file").touch()
    (root / "folder").mkdir()
    (root / "link").symlink_to("nowhere")
    for name in ("file", "folder", "link"):
        with refused(errno.EEXIST):
            (root / name).symlink_to("target")
    assert os.readlink(root / "link") == "nowhere"


def test_readlink_refuses_what_is_no_symlink(root: Path) -> None:
    (root / "file").touch()
    (root / "folder").mkdir()
    for name in ("file", "folder"):
        with refused(errno.EINVAL):
            os.readlink(root / name)


def test_a_symlink_is_followed_to_file_and_directory(root: Path) -> None:
    (root / "folder").mkdir()
    (root / "folder" / "file").write_bytes(b"found")
    (root / "to-folder").symlink_to("folder")
    (root / "to-file").symlink_to("to-folder/file")
    assert (root / "to-file").read_bytes() == b"found"
    assert os.listdir(root / "to-folder") == ["file"]
    (root / "to-file").write_bytes(b"changed")
    assert (root / "folder" / "file").read_bytes() == b"changed"
    assert (root / "to-file").is_symlink()


def test_a_dangling_symlink_is_found_by_lstat_only(root: Path) -> None:
    (root / "link").symlink_to("nowhere")
    assert stat.S_ISLNK((root / "link").lstat().st_mode)
    with refused(errno.ENOENT):
        (root / "link").stat()
    (root / "nowhere").write_bytes(b"now here")
    assert (root / "link").read_bytes() == b"now here"


def test_a_loop_of_symlinks_is_refused(root: Path) -> None:
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("one")
    (root / "self").symlink_to("self")
    for name in ("one", "two", "self", "self/below"):
        with refused(errno.ELOOP):
            os.stat(root / name)
        with refused(errno.ELOOP):
            os.open(root / name, os.O_CREAT | os.O_WRONLY)


def test_forty_symlinks_are_followed_and_one_more_is_not(root: Path) -> None:
    (root / "0").write_bytes(b"end")
    for number in range(1, 42):
        (root / f"{number}").symlink_to(f"{number - 1}")
    assert (root / "40").read_bytes() == b"end"
    with refused(errno.ELOOP):
        (root / "41").read_bytes()


def test_unlink_and_rename_take_the_symlink_itself(root: Path) -> None:
    (root / "file").write_bytes(b"target")
    (root / "link").symlink_to("file")
    (root / "link").rename(root / "moved")
    assert os.readlink(root / "moved") == "file"
    (root / "moved").unlink()
    assert os.listdir(root) == ["file"]
    assert (root / "file").read_bytes() == b"target"


def test_a_symlink_can_be_replaced_by_rename(root: Path) -> None:
    (root / "current").symlink_to("old")
    (root / "new-link").symlink_to("new")
    (root / "new-link").rename(root / "current")
    assert os.readlink(root / "current") == "new"


def test_chmod_through_a_symlink_changes_the_target(root: Path) -> None:
    (root / "file").touch()
    (root / "link").symlink_to("file")
    os.chmod(root / "link", 0o641)
    assert stat.S_IMODE((root / "file").stat().st_mode) == 0o641
    assert stat.S_IMODE((root / "link").lstat().st_mode) == 0o777


def test_a_symlink_has_times_of_its_own(root: Path) -> None:
    (root / "file").touch()
    (root / "link").symlink_to("file")
    os.utime(root / "file", ns=(1_000_000_001, 2_000_000_002))
    os.utime(root / "link", ns=(3_000_000_003, 4_000_000_004), follow_symlinks=False)
    assert (root / "file").stat().st_mtime_ns == 2_000_000_002
    assert (root / "link").lstat().st_mtime_ns == 4_000_000_004


def test_a_symlink_to_a_directory_with_a_slash_is_the_directory(root: Path) -> None:
    (root / "folder").mkdir()
    (root / "link").symlink_to("folder")
    assert stat.S_ISDIR(os.lstat(f"{root}/link/").st_mode)
    with refused(errno.ENOTDIR):
        os.unlink(f"{root}/link/")
