"""rename and renameat2: what moves, what is replaced, what is refused."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines.callers import Child
from tests.engines.refusals import refused
from tests.engines.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2

pytestmark = pytest.mark.usefixtures("as_user")


def make_file(path: Path) -> None:
    path.write_bytes(path.name.encode())


def make_symlink(path: Path) -> None:
    path.symlink_to("nowhere")


MAKERS: list[Callable[[Path], None]] = [make_file, Path.mkdir, make_symlink, os.mkfifo]
NO_DIRECTORIES: list[Callable[[Path], None]] = [make_file, make_symlink, os.mkfifo]
named = pytest.mark.parametrize("make", MAKERS, ids=["file", "directory", "symlink", "fifo"])


@named
def test_a_name_moves_within_its_directory(root: Path, make: Callable[[Path], None]) -> None:
    make(root / "old")
    before = (root / "old").lstat()
    (root / "old").rename(root / "new")
    after = (root / "new").lstat()
    assert os.listdir(root) == ["new"]
    assert (after.st_ino, after.st_mode, after.st_nlink) == (before.st_ino, before.st_mode, before.st_nlink)
    with refused(errno.ENOENT):
        (root / "old").lstat()


@named
def test_a_name_moves_to_another_directory(root: Path, make: Callable[[Path], None]) -> None:
    (root / "from").mkdir()
    (root / "to").mkdir()
    make(root / "from" / "name")
    before = (root / "from" / "name").lstat().st_ino
    (root / "from" / "name").rename(root / "to" / "new")
    assert os.listdir(root / "from") == []
    assert os.listdir(root / "to") == ["new"]
    assert (root / "to" / "new").lstat().st_ino == before


def test_a_directory_takes_its_contents_along(root: Path) -> None:
    (root / "old" / "sub").mkdir(parents=True)
    (root / "old" / "sub" / "file").write_bytes(b"content")
    (root / "to").mkdir()
    (root / "old").rename(root / "to" / "new")
    assert (root / "to" / "new" / "sub" / "file").read_bytes() == b"content"
    with refused(errno.ENOENT):
        (root / "old" / "sub" / "file").stat()


def test_a_missing_source_is_refused(root: Path) -> None:
    (root / "file").write_bytes(b"kept")
    with refused(errno.ENOENT):
        (root / "missing").rename(root / "file")
    with refused(errno.ENOENT):
        (root / "file").rename(root / "missing" / "new")
    assert (root / "file").read_bytes() == b"kept"


def test_a_name_renamed_onto_itself_stays(root: Path) -> None:
    (root / "file").write_bytes(b"kept")
    (root / "folder").mkdir()
    (root / "file").rename(root / "file")
    (root / "folder").rename(root / "folder")
    assert sorted(os.listdir(root)) == ["file", "folder"]


def test_anything_but_a_directory_replaces_anything_but_a_directory(root: Path) -> None:
    for make_source in NO_DIRECTORIES:
        for make_target in NO_DIRECTORIES:
            make_source(root / "source")
            make_target(root / "target")
            inode = (root / "source").lstat().st_ino
            os.replace(root / "source", root / "target")
            assert os.listdir(root) == ["target"]
            assert (root / "target").lstat().st_ino == inode
            (root / "target").unlink()


def test_a_file_onto_a_directory_is_refused(root: Path) -> None:
    (root / "folder").mkdir()
    for make in NO_DIRECTORIES:
        make(root / "source")
        with refused(errno.EISDIR):
            os.rename(root / "source", root / "folder")
        (root / "source").unlink()
    assert os.listdir(root) == ["folder"]


def test_a_directory_onto_a_file_is_refused(root: Path) -> None:
    (root / "folder").mkdir()
    for make in NO_DIRECTORIES:
        make(root / "target")
        with refused(errno.ENOTDIR):
            os.rename(root / "folder", root / "target")
        (root / "target").unlink()
    assert os.listdir(root) == ["folder"]


def test_rename_onto_an_empty_directory_replaces_it(root: Path) -> None:
    (root / "full").mkdir()
    (root / "full" / "file").write_bytes(b"content")
    (root / "empty").mkdir()
    inode = (root / "full").stat().st_ino
    os.rename(root / "full", root / "empty")
    assert os.listdir(root) == ["empty"]
    assert (root / "empty").stat().st_ino == inode
    assert (root / "empty" / "file").read_bytes() == b"content"


def test_rename_onto_a_nonempty_directory_is_refused(root: Path) -> None:
    (root / "source").mkdir()
    (root / "target").mkdir()
    (root / "target" / "file").touch()
    with refused(errno.ENOTEMPTY):
        os.rename(root / "source", root / "target")
    assert os.listdir(root / "target") == ["file"]


def test_a_replaced_directory_that_is_open_has_no_links(root: Path) -> None:
    (root / "source").mkdir()
    (root / "target").mkdir()
    descriptor = os.open(root / "target", os.O_RDONLY)
    os.rename(root / "source", root / "target")
    assert os.fstat(descriptor).st_nlink == 0
    with refused(errno.ENOENT):
        os.mkdir("below", dir_fd=descriptor)
    os.close(descriptor)


def test_a_directory_cannot_go_into_its_own_subtree(root: Path) -> None:
    (root / "folder" / "sub").mkdir(parents=True)
    with refused(errno.EINVAL):
        os.rename(root / "folder", root / "folder" / "inside")
    with refused(errno.EINVAL):
        os.rename(root / "folder", root / "folder" / "sub" / "inside")
    assert os.listdir(root / "folder") == ["sub"]


def test_a_directory_cannot_replace_its_own_ancestor(root: Path) -> None:
    (root / "folder" / "sub" / "deep").mkdir(parents=True)
    with refused(errno.ENOTEMPTY):
        os.rename(root / "folder" / "sub" / "deep", root / "folder")
    assert (root / "folder" / "sub" / "deep").is_dir()


def test_dot_and_dot_dot_cannot_be_renamed(root: Path) -> None:
    (root / "folder" / "sub").mkdir(parents=True)
    for name in (".", ".."):
        with refused(errno.EBUSY, errno.EINVAL):
            os.rename(f"{root}/folder/sub/{name}", root / "new")


def test_noreplace_moves_to_a_free_name_and_refuses_a_taken_one(root: Path) -> None:
    for make in MAKERS:
        make(root / "source")
        (root / "taken").write_bytes(b"kept")
        with refused(errno.EEXIST):
            renameat2(root / "source", root / "taken", RENAME_NOREPLACE)
        assert (root / "taken").read_bytes() == b"kept"
        renameat2(root / "source", root / "free", RENAME_NOREPLACE)
        assert sorted(os.listdir(root)) == ["free", "taken"]
        _remove(root / "free")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink()


def test_exchange_swaps_any_two_names(root: Path) -> None:
    (root / "a").mkdir()
    (root / "b").mkdir()
    for make_one in MAKERS:
        for make_two in MAKERS:
            one, two = root / "a" / "one", root / "b" / "two"
            make_one(one)
            make_two(two)
            before = one.lstat().st_ino, two.lstat().st_ino
            renameat2(one, two, RENAME_EXCHANGE)
            assert (two.lstat().st_ino, one.lstat().st_ino) == before
            assert (root / "a").stat().st_nlink == 2 + stat.S_ISDIR(one.lstat().st_mode)
            assert (root / "b").stat().st_nlink == 2 + stat.S_ISDIR(two.lstat().st_mode)
            _remove(one)
            _remove(two)


def test_exchange_swaps_full_directories(root: Path) -> None:
    for name in ("one", "two"):
        (root / name).mkdir()
        (root / name / f"in-{name}").touch()
    renameat2(root / "one", root / "two", RENAME_EXCHANGE)
    assert os.listdir(root / "one") == ["in-two"]
    assert os.listdir(root / "two") == ["in-one"]


def test_exchange_needs_both_names(root: Path) -> None:
    (root / "file").touch()
    with refused(errno.ENOENT):
        renameat2(root / "file", root / "missing", RENAME_EXCHANGE)
    with refused(errno.ENOENT):
        renameat2(root / "missing", root / "file", RENAME_EXCHANGE)
    assert os.listdir(root) == ["file"]


def test_exchange_refuses_a_directory_with_what_is_below_it(root: Path) -> None:
    (root / "folder" / "sub").mkdir(parents=True)
    with refused(errno.EINVAL):
        renameat2(root / "folder", root / "folder" / "sub", RENAME_EXCHANGE)
    with refused(errno.EINVAL):
        renameat2(root / "folder" / "sub", root / "folder", RENAME_EXCHANGE)


def test_flags_that_contradict_or_are_unknown_are_refused(root: Path) -> None:
    (root / "file").touch()
    for flags in (RENAME_NOREPLACE | RENAME_EXCHANGE, 1 << 10):
        with refused(errno.EINVAL):
            renameat2(root / "file", root / "new", flags)


def test_a_reader_keeps_the_file_that_a_rename_replaced(root: Path) -> None:
    (root / "target").write_bytes(b"old")
    (root / "source").write_bytes(b"new")
    with open(root / "target", "rb") as reader:
        os.replace(root / "source", root / "target")
        assert reader.read() == b"old"
        assert os.fstat(reader.fileno()).st_nlink == 0
    assert (root / "target").read_bytes() == b"new"


def test_a_descriptor_follows_its_file_through_renames(root: Path) -> None:
    (root / "folder").mkdir()
    with open(root / "file", "wb", buffering=0) as file:
        file.write(b"one ")
        (root / "file").rename(root / "folder" / "moved")
        file.write(b"two ")
        (root / "folder").rename(root / "elsewhere")
        file.write(b"three")
        assert os.fstat(file.fileno()).st_nlink == 1
    assert (root / "elsewhere" / "moved").read_bytes() == b"one two three"


def test_a_name_that_is_replaced_is_never_missing(root: Path) -> None:
    (root / "target").write_bytes(b"0" * 4096)
    stop_reader, stop_writer = os.pipe()

    def read() -> int:
        os.set_blocking(stop_reader, False)
        os.close(stop_writer)
        reads = 0
        while True:
            content = (root / "target").read_bytes()
            assert content == content[:1] * 4096
            reads += 1
            try:
                if os.read(stop_reader, 1) == b"":
                    return reads
            except BlockingIOError:
                continue

    with Child(read) as reader:
        for turn in range(300):
            (root / "new").write_bytes(b"%d" % (turn % 10) * 4096)
            os.replace(root / "new", root / "target")
        os.close(stop_writer)
        os.close(stop_reader)
        assert reader.result() > 0
