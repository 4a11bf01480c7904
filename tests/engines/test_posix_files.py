"""Regular files: how they are opened, made, emptied and refused."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tests.engines.callers import in_child
from tests.engines.refusals import refused

pytestmark = pytest.mark.usefixtures("as_user")


def test_what_was_written_is_read_back(root: Path) -> None:
    content = os.urandom(300_000)
    (root / "file").write_bytes(content)
    assert (root / "file").read_bytes() == content


def test_an_empty_file_is_empty(root: Path) -> None:
    (root / "file").touch()
    assert (root / "file").read_bytes() == b""
    assert (root / "file").stat().st_size == 0


def test_a_new_file_is_regular_with_one_link_and_belongs_to_its_creator(root: Path) -> None:
    (root / "file").write_bytes(b"abc")
    status = (root / "file").stat()
    assert stat.S_ISREG(status.st_mode)
    assert status.st_nlink == 1
    assert status.st_size == 3
    assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())


def test_a_written_file_occupies_blocks(root: Path) -> None:
    (root / "file").write_bytes(os.urandom(20_000))
    descriptor = os.open(root / "file", os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    assert (root / "file").stat().st_blocks > 0


def test_a_missing_file_is_not_made_without_o_creat(root: Path) -> None:
    with refused(errno.ENOENT):
        os.open(root / "file", os.O_RDWR)
    assert os.listdir(root) == []


def test_a_name_that_was_missing_is_found_once_it_is_made(root: Path) -> None:
    with refused(errno.ENOENT):
        (root / "file").stat()
    (root / "file").touch()
    assert (root / "file").stat().st_size == 0
    (root / "file").unlink()
    with refused(errno.ENOENT):
        (root / "file").stat()


def test_o_excl_makes_a_file_that_is_absent(root: Path) -> None:
    os.close(os.open(root / "file", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    assert (root / "file").is_file()


def test_o_excl_refuses_a_file_that_exists(root: Path) -> None:
    (root / "file").write_bytes(b"first")
    with refused(errno.EEXIST):
        os.open(root / "file", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_TRUNC)
    assert (root / "file").read_bytes() == b"first"


def test_o_excl_refuses_a_dangling_symlink(root: Path) -> None:
    (root / "link").symlink_to("target")
    with refused(errno.EEXIST):
        os.open(root / "link", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    assert os.listdir(root) == ["link"]


def test_o_creat_through_a_dangling_symlink_makes_the_target(root: Path) -> None:
    (root / "link").symlink_to("target")
    os.close(os.open(root / "link", os.O_CREAT | os.O_WRONLY))
    assert (root / "target").is_file()


def test_o_creat_keeps_a_file_that_exists(root: Path) -> None:
    (root / "file").write_bytes(b"first")
    (root / "file").chmod(0o640)
    os.close(os.open(root / "file", os.O_CREAT | os.O_RDWR, 0o777))
    assert (root / "file").read_bytes() == b"first"
    assert stat.S_IMODE((root / "file").stat().st_mode) == 0o640


def test_o_trunc_empties_a_file_and_keeps_its_inode(root: Path) -> None:
    (root / "file").write_bytes(b"first")
    before = (root / "file").stat()
    descriptor = os.open(root / "file", os.O_WRONLY | os.O_TRUNC)
    assert os.fstat(descriptor).st_size == 0
    os.close(descriptor)
    after = (root / "file").stat()
    assert (after.st_size, after.st_ino) == (0, before.st_ino)


def test_o_trunc_is_seen_by_a_descriptor_that_was_open_before(root: Path) -> None:
    (root / "file").write_bytes(b"first content")
    with open(root / "file", "rb", buffering=0) as reader:
        assert reader.read(5) == b"first"
        (root / "file").write_bytes(b"new")
        assert reader.read() == b""
        assert os.pread(reader.fileno(), 100, 0) == b"new"


def test_a_directory_cannot_be_opened_for_writing(root: Path) -> None:
    (root / "folder").mkdir()
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):
        with refused(errno.EISDIR):
            os.open(root / "folder", flags)


def test_o_creat_on_a_directory_is_refused(root: Path) -> None:
    (root / "folder").mkdir()
    with refused(errno.EISDIR):
        os.open(root / "folder", os.O_CREAT | os.O_RDONLY)
    with refused(errno.EEXIST):
        os.open(root / "folder", os.O_CREAT | os.O_EXCL | os.O_RDONLY)


def test_a_directory_cannot_be_read_as_a_file(root: Path) -> None:
    (root / "folder").mkdir()
    descriptor = os.open(root / "folder", os.O_RDONLY)
    try:
        with refused(errno.EISDIR):
            os.read(descriptor, 10)
    finally:
        os.close(descriptor)


def test_o_directory_refuses_a_file(root: Path) -> None:
    (root / "file").touch()
    with refused(errno.ENOTDIR):
        os.open(root / "file", os.O_RDONLY | os.O_DIRECTORY)


def test_o_nofollow_refuses_a_symlink(root: Path) -> None:
    (root / "file").touch()
    (root / "link").symlink_to("file")
    with refused(errno.ELOOP):
        os.open(root / "link", os.O_RDONLY | os.O_NOFOLLOW)


def test_o_nofollow_allows_symlinks_on_the_way(root: Path) -> None:
    (root / "folder").mkdir()
    (root / "folder" / "file").write_bytes(b"x")
    (root / "link").symlink_to("folder")
    descriptor = os.open(root / "link" / "file", os.O_RDONLY | os.O_NOFOLLOW)
    assert os.read(descriptor, 10) == b"x"
    os.close(descriptor)


def test_a_file_on_the_way_is_not_a_directory(root: Path) -> None:
    (root / "file").touch()
    for attempt in (os.stat, os.listdir, os.mkdir, os.unlink, os.rmdir, os.readlink):
        with refused(errno.ENOTDIR):
            attempt(root / "file" / "below")
    with refused(errno.ENOTDIR):
        os.open(root / "file" / "below", os.O_CREAT | os.O_WRONLY)


def test_a_missing_directory_on_the_way_is_reported(root: Path) -> None:
    for attempt in (os.stat, os.listdir, os.mkdir, os.unlink, os.rmdir, os.mkfifo):
        with refused(errno.ENOENT):
            attempt(root / "missing" / "below")


def test_a_slash_after_a_file_is_refused(root: Path) -> None:
    (root / "file").touch()
    with refused(errno.ENOTDIR):
        os.stat(f"{root}/file/")
    with refused(errno.EISDIR):
        os.open(f"{root}/new/", os.O_CREAT | os.O_WRONLY)


def test_reading_needs_a_readable_descriptor_and_writing_a_writable_one(root: Path) -> None:
    (root / "file").write_bytes(b"abc")
    writer = os.open(root / "file", os.O_WRONLY)
    reader = os.open(root / "file", os.O_RDONLY)
    with refused(errno.EBADF):
        os.read(writer, 1)
    with refused(errno.EBADF):
        os.write(reader, b"x")
    os.close(writer)
    os.close(reader)


def test_a_file_without_any_permission_is_still_written_by_its_creator(root: Path) -> None:
    descriptor = os.open(root / "file", os.O_CREAT | os.O_RDWR, 0)
    os.write(descriptor, b"through the creating descriptor")
    assert os.pread(descriptor, 100, 0) == b"through the creating descriptor"
    os.close(descriptor)
    assert stat.S_IMODE((root / "file").stat().st_mode) == 0


def test_two_descriptors_see_each_others_writes_at_once(root: Path) -> None:
    with open(root / "file", "w+b", buffering=0) as one, open(root / "file", "r+b", buffering=0) as two:
        one.write(b"from one")
        assert os.pread(two.fileno(), 100, 0) == b"from one"
        two.write(b"from TWO")
        assert os.pread(one.fileno(), 100, 0) == b"from TWO"


def test_another_process_sees_a_write_before_the_file_is_closed(root: Path) -> None:
    with open(root / "file", "wb", buffering=0) as writer:
        writer.write(b"not closed yet")
        assert in_child((root / "file").read_bytes) == b"not closed yet"
        assert in_child((root / "file").stat).st_size == 14


def test_a_closed_file_can_be_written_again_and_again(root: Path) -> None:
    model = bytearray()
    for turn in range(20):
        piece = b"%05d" % turn
        with open(root / "file", "ab") as file:
            file.write(piece)
        model += piece
        with open(root / "file", "r+b") as file:
            file.seek(turn)
            file.write(b"#")
        model[turn : turn + 1] = b"#"
        assert (root / "file").read_bytes() == model


def test_duplicated_descriptors_share_their_position(root: Path) -> None:
    with open(root / "file", "w+b", buffering=0) as file:
        second = os.dup(file.fileno())
        os.write(second, b"12345")
        file.write(b"678")
        os.close(second)
        assert os.pread(file.fileno(), 100, 0) == b"12345678"


def test_an_unnamed_file_is_made_and_given_a_name_or_refused_as_unsupported(root: Path) -> None:
    """O_TMPFILE is optional: a filesystem without it answers EOPNOTSUPP and nothing else."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        unnamed = _unnamed_file(root)
        if unnamed is not None:
            os.write(unnamed, b"unnamed")
            assert os.listdir(root) == []
            assert os.fstat(unnamed).st_nlink == 0
            os.link(f"/proc/self/fd/{unnamed}", "named", dst_dir_fd=folder, follow_symlinks=True)
            os.close(unnamed)
            assert (root / "named").read_bytes() == b"unnamed"
    finally:
        os.close(folder)


def _unnamed_file(folder: Path) -> int | None:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return None
        raise
