"""unlink, and what can still be done with an open file that has no name."""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engines.refusals import refused

pytestmark = pytest.mark.usefixtures("as_user")


def test_an_unlinked_name_is_gone_at_once(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    assert (root / "file").exists()
    (root / "file").unlink()
    assert os.listdir(root) == []
    for attempt in (os.stat, os.unlink):
        with refused(errno.ENOENT):
            attempt(root / "file")
    with refused(errno.ENOENT):
        os.open(root / "file", os.O_RDONLY)


def test_an_unlinked_name_can_be_used_anew(root: Path) -> None:
    (root / "name").write_bytes(b"first")
    (root / "name").unlink()
    (root / "name").mkdir()
    (root / "name").rmdir()
    (root / "name").write_bytes(b"second")
    assert (root / "name").read_bytes() == b"second"


def test_a_reader_keeps_an_unlinked_file(root: Path) -> None:
    content = os.urandom(300_000)
    (root / "file").write_bytes(content)
    with open(root / "file", "rb") as reader:
        (root / "file").unlink()
        assert os.fstat(reader.fileno()).st_nlink == 0
        assert os.fstat(reader.fileno()).st_size == len(content)
        assert reader.read() == content


def test_a_file_opened_after_it_was_closed_once_survives_its_unlink(root: Path) -> None:
    (root / "file").write_bytes(b"old")
    with open(root / "file", "r+b", buffering=0) as file:
        (root / "file").unlink()
        file.seek(0, os.SEEK_END)
        file.write(b" and new")
        assert os.pread(file.fileno(), 100, 0) == b"old and new"


def test_a_writer_goes_on_in_an_unlinked_file(root: Path) -> None:
    with open(root / "file", "w+b", buffering=0) as file:
        file.write(b"before")
        (root / "file").unlink()
        file.write(b" after")
        os.ftruncate(file.fileno(), 9)
        status = os.fstat(file.fileno())
        assert (status.st_nlink, status.st_size) == (0, 9)
        assert os.pread(file.fileno(), 100, 0) == b"before af"
        os.fsync(file.fileno())


def test_an_unlinked_file_changes_its_mode_and_its_times(root: Path) -> None:
    with open(root / "file", "wb") as file:
        (root / "file").unlink()
        os.fchmod(file.fileno(), 0o640)
        os.utime(file.fileno(), ns=(1_000_000_001, 2_000_000_002))
        status = os.fstat(file.fileno())
        assert status.st_mode & 0o777 == 0o640
        assert status.st_mtime_ns == 2_000_000_002


def test_an_unlinked_file_and_its_successor_are_apart(root: Path) -> None:
    with open(root / "file", "w+b", buffering=0) as old:
        old.write(b"old")
        (root / "file").unlink()
        with open(root / "file", "w+b", buffering=0) as new:
            new.write(b"new one")
            assert os.pread(old.fileno(), 100, 0) == b"old"
            assert os.pread(new.fileno(), 100, 0) == b"new one"
            assert os.fstat(old.fileno()).st_ino != os.fstat(new.fileno()).st_ino
    assert (root / "file").read_bytes() == b"new one"


def test_an_unlinked_file_is_opened_again_through_its_descriptor(root: Path) -> None:
    with open(root / "file", "wb", buffering=0) as file:
        file.write(b"content")
        (root / "file").unlink()
        with open(f"/proc/self/fd/{file.fileno()}", "rb") as again:
            assert again.read() == b"content"


def test_an_unlinked_file_stays_mapped(root: Path) -> None:
    content = os.urandom(200_000)
    (root / "file").write_bytes(content)
    with open(root / "file", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    (root / "file").unlink()
    assert mapped[:] == content
    mapped.close()


def test_the_folder_of_an_open_unlinked_file_can_be_removed(root: Path) -> None:
    (root / "folder").mkdir()
    with open(root / "folder" / "file", "w+b", buffering=0) as file:
        file.write(b"content")
        (root / "folder" / "file").unlink()
        (root / "folder").rmdir()
        assert os.pread(file.fileno(), 100, 0) == b"content"
    assert os.listdir(root) == []


def test_many_open_unlinked_files_keep_their_own_contents(root: Path) -> None:
    with ExitStack() as stack:
        files = []
        for number in range(100):
            files.append(stack.enter_context(open(root / "same-name", "w+b", buffering=0)))
            files[-1].write(b"%d" % number * 1000)
            (root / "same-name").unlink()
        for number, file in enumerate(files):
            assert os.pread(file.fileno(), 100_000, 0) == b"%d" % number * 1000


def test_a_temporary_folder_moved_out_of_and_removed_leaves_one_file(root: Path) -> None:
    """As Triton writes: rename the file out of a temporary folder, remove that, and fail to remove its parent."""
    (root / "entry").mkdir()
    for number in range(20):
        temporary = root / "entry" / f"tmp.pid_{number}"
        temporary.mkdir()
        (temporary / "kernel").write_bytes(b"%d" % number)
        os.replace(temporary / "kernel", root / "entry" / "kernel")
        os.removedirs(temporary)
        assert os.listdir(root / "entry") == ["kernel"]
        assert (root / "entry" / "kernel").read_bytes() == b"%d" % number
