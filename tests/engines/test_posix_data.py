"""The bytes of a file: truncating, holes, appending, allocating, copying inside the kernel."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import socket
from functools import partial
from pathlib import Path

import pytest

from tests.engines.callers import Child, in_child
from tests.engines.mounting import Place
from tests.engines.refusals import refused
from tests.engines.syscalls import FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, fallocate

pytestmark = pytest.mark.usefixtures("as_user")


@pytest.mark.parametrize("size", [0, 1, 6, 7, 8, 4095, 4096, 4097, 200_000])
def test_truncate_shortens_and_lengthens_with_zeros(root: Path, size: int) -> None:
    (root / "file").write_bytes(b"content")
    os.truncate(root / "file", size)
    assert (root / "file").stat().st_size == size
    assert (root / "file").read_bytes() == b"content"[:size].ljust(size, b"\0")


def test_what_was_cut_off_does_not_come_back(root: Path) -> None:
    (root / "file").write_bytes(b"x" * 10_000)
    with open(root / "file", "r+b", buffering=0) as file:
        os.ftruncate(file.fileno(), 100)
        os.ftruncate(file.fileno(), 10_000)
        assert os.pread(file.fileno(), 20_000, 0) == b"x" * 100 + b"\0" * 9_900
    assert (root / "file").read_bytes() == b"x" * 100 + b"\0" * 9_900


def test_a_file_truncated_while_it_is_written_has_both_changes(root: Path) -> None:
    with open(root / "file", "wb", buffering=0) as file:
        file.write(b"0123456789")
        os.truncate(root / "file", 4)
        file.write(b"ab")
    assert (root / "file").read_bytes() == b"0123" + b"\0" * 6 + b"ab"


def test_truncate_refuses_what_it_cannot_cut(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    (root / "folder").mkdir()
    with refused(errno.EINVAL):
        os.truncate(root / "file", -1)
    with refused(errno.EISDIR):
        os.truncate(root / "folder", 0)
    with refused(errno.ENOENT):
        os.truncate(root / "missing", 0)
    with open(root / "file", "rb") as file, refused(errno.EINVAL):
        os.ftruncate(file.fileno(), 1)
    assert (root / "file").read_bytes() == b"content"


def test_holes_read_as_zeros(root: Path) -> None:
    with open(root / "file", "wb", buffering=0) as file:
        os.pwrite(file.fileno(), b"end", 5_000_000)
        os.pwrite(file.fileno(), b"middle", 1_000_001)
    content = (root / "file").read_bytes()
    assert len(content) == 5_000_003
    assert content[1_000_001:1_000_007] == b"middle"
    assert content[5_000_000:] == b"end"
    assert content.count(0) == 5_000_003 - 9


def test_reading_past_the_end_gives_nothing(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    with open(root / "file", "rb") as file:
        assert os.pread(file.fileno(), 100, 5) == b"nt"
        assert os.pread(file.fileno(), 100, 7) == b""
        assert os.pread(file.fileno(), 100, 1_000_000) == b""


def test_a_file_beyond_four_gigabytes_is_addressed_rightly(root: Path) -> None:
    with open(root / "file", "w+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"far", 5 << 30)
        assert os.fstat(file.fileno()).st_size == (5 << 30) + 3
        assert os.pread(file.fileno(), 10, (5 << 30) - 3) == b"\0\0\0far"
        assert os.pread(file.fileno(), 10, 1 << 30) == b"\0" * 10
        os.ftruncate(file.fileno(), 0)


def test_the_limit_on_a_files_size_is_kept(root: Path) -> None:
    def write() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with open(root / "file", "wb", buffering=0) as file:
            os.write(file.fileno(), b"x" * 2000)
            with refused(errno.EFBIG):
                os.write(file.fileno(), b"x")
            return os.fstat(file.fileno()).st_size

    assert in_child(write) == 1000


def test_append_writes_at_the_end_wherever_the_position_is(root: Path) -> None:
    (root / "file").write_bytes(b"start ")
    with open(root / "file", "ab", buffering=0) as one, open(root / "file", "ab", buffering=0) as two:
        one.write(b"one ")
        two.write(b"two ")
        one.seek(0)
        one.write(b"three")
    assert (root / "file").read_bytes() == b"start one two three"


def test_appends_of_several_processes_are_all_there_and_whole(root: Path) -> None:
    (root / "file").touch()

    def append(writer: int) -> None:
        with open(root / "file", "ab", buffering=0) as file:
            for number in range(200):
                file.write(b"%02d-%05d\n" % (writer, number))

    children = [Child(partial(append, writer)) for writer in range(4)]
    for child in children:
        with child:
            child.result()
    lines = (root / "file").read_bytes().splitlines()
    assert sorted(lines) == [b"%02d-%05d" % (writer, number) for writer in range(4) for number in range(200)]
    for writer in range(4):
        mine = [line for line in lines if line.startswith(b"%02d-" % writer)]
        assert mine == sorted(mine)


def test_a_linkers_writing_is_read_back_by_itself_and_others(root: Path) -> None:
    """In place at the final name: pieces of 4 KiB in random order, holes filled later, output read in between."""
    choose = random.Random(11)
    model = bytearray()
    with open(root / "output", "w+b", buffering=0) as file:
        for _ in range(800):
            offset = choose.randrange(0, 1_500_000)
            piece = choose.randbytes(choose.choice((4096, 4096, 100)))
            if len(model) < offset:
                model += bytes(offset - len(model))
            model[offset : offset + len(piece)] = piece
            os.pwrite(file.fileno(), piece, offset)
            look = choose.randrange(0, len(model))
            assert os.pread(file.fileno(), 500, look) == model[look : look + 500]
        os.fchmod(file.fileno(), 0o755)
    assert (root / "output").read_bytes() == model


def test_vectors_are_read_and_written_in_order(root: Path) -> None:
    with open(root / "file", "w+b", buffering=0) as file:
        assert os.pwritev(file.fileno(), [b"one", b"", b"two", b"three"], 2) == 11
        first, second = bytearray(4), bytearray(20)
        assert os.preadv(file.fileno(), [first, second], 0) == 13
        assert (bytes(first), bytes(second[:9])) == (b"\0\0on", b"etwothree")


def allocates(place: Place, descriptor: int, mode: int, offset: int, length: int) -> bool:
    """Allocate, or fail where the engine cannot: pyfuse3 has no such request and answers EOPNOTSUPP."""
    if place.mount is not None and place.mount.engine == "pyfuse3":
        with refused(errno.EOPNOTSUPP):
            fallocate(descriptor, mode, offset, length)
        return False
    fallocate(descriptor, mode, offset, length)
    return True


class TestAllocation:
    def test_allocating_beyond_the_end_lengthens_with_zeros(self, root: Path, place: Place) -> None:
        (root / "file").write_bytes(b"content")
        with open(root / "file", "r+b") as file:
            grown = allocates(place, file.fileno(), 0, 3, 100_000)
        assert (root / "file").read_bytes() == b"content".ljust(100_003 if grown else 7, b"\0")

    def test_allocating_inside_changes_nothing(self, root: Path, place: Place) -> None:
        (root / "file").write_bytes(b"content")
        with open(root / "file", "r+b") as file:
            allocates(place, file.fileno(), 0, 1, 3)
        assert (root / "file").read_bytes() == b"content"

    def test_keep_size_keeps_the_size(self, root: Path, place: Place) -> None:
        (root / "file").write_bytes(b"content")
        with open(root / "file", "r+b") as file:
            allocates(place, file.fileno(), FALLOC_KEEP_SIZE, 0, 100_000)
        assert (root / "file").read_bytes() == b"content"

    def test_posix_fallocate_works(self, root: Path) -> None:
        with open(root / "file", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 5000)
        assert (root / "file").read_bytes() == b"\0" * 5000

    @pytest.mark.parametrize("mode", [FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, FALLOC_ZERO_RANGE], ids=["punch", "zero"])
    def test_a_range_is_zeroed_or_refused_as_unsupported(self, root: Path, mode: int) -> None:
        """No compiler needs either mode; a filesystem without one answers EOPNOTSUPP and changes nothing."""
        (root / "file").write_bytes(b"x" * 20_000)
        expected = b"x" * 5000 + b"\0" * 10_000 + b"x" * 5000
        with open(root / "file", "r+b") as file:
            try:
                fallocate(file.fileno(), mode, 5000, 10_000)
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                expected = b"x" * 20_000
        assert (root / "file").read_bytes() == expected

    def test_impossible_ranges_and_descriptors_are_refused(self, root: Path) -> None:
        (root / "file").write_bytes(b"content")
        with open(root / "file", "r+b") as file:
            for offset, length in ((-1, 10), (0, 0), (0, -1)):
                with refused(errno.EINVAL):
                    fallocate(file.fileno(), 0, offset, length)
            with refused(errno.EFBIG):
                fallocate(file.fileno(), 0, 2**63 - 1, 10)
        with open(root / "file", "rb") as file, refused(errno.EBADF):
            fallocate(file.fileno(), 0, 0, 10)


class TestDataAndHoles:
    def test_every_byte_of_data_is_found_and_every_hole_is_zero(self, root: Path) -> None:
        size = 4 << 20
        written = {0: b"a" * 100, 1 << 20: b"b" * 70_000, (3 << 20) + 5: b"c"}
        with open(root / "file", "w+b", buffering=0) as file:
            os.ftruncate(file.fileno(), size)
            for offset, piece in written.items():
                os.pwrite(file.fileno(), piece, offset)
            regions = self._regions(file.fileno(), size)
        covered = bytearray(size)
        for start, end in regions:
            covered[start:end] = b"\1" * (end - start)
        for offset, piece in written.items():
            assert covered.count(1, offset, offset + len(piece)) == len(piece)

    def test_the_end_is_a_hole_and_nothing_is_beyond_it(self, root: Path) -> None:
        (root / "file").write_bytes(b"x" * 10_000)
        with open(root / "file", "rb") as file:
            assert os.lseek(file.fileno(), 0, os.SEEK_DATA) == 0
            assert os.lseek(file.fileno(), 5000, os.SEEK_DATA) == 5000
            assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 10_000
            for whence in (os.SEEK_DATA, os.SEEK_HOLE):
                with refused(errno.ENXIO):
                    os.lseek(file.fileno(), 10_001, whence)

    def _regions(self, descriptor: int, size: int) -> list[tuple[int, int]]:
        regions = []
        position = 0
        while position < size:
            try:
                start = os.lseek(descriptor, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break
            position = os.lseek(descriptor, start, os.SEEK_HOLE)
            assert start < position <= size
            regions.append((start, position))
        return regions


class TestCopyingInsideTheKernel:
    def test_copy_file_range_copies_any_range(self, root: Path) -> None:
        content = random.Random(5).randbytes(300_000)
        (root / "source").write_bytes(content)
        with open(root / "source", "rb") as source, open(root / "target", "w+b") as target:
            copied = 0
            while copied < 200_000:
                step = os.copy_file_range(source.fileno(), target.fileno(), 200_000 - copied, 7 + copied, 1000 + copied)
                assert step > 0
                copied += step
            assert os.copy_file_range(source.fileno(), target.fileno(), 10, 300_000, 0) == 0
        assert (root / "target").read_bytes() == b"\0" * 1000 + content[7:200_007]

    def test_copy_file_range_refuses_overlapping_ranges_of_one_file(self, root: Path) -> None:
        (root / "file").write_bytes(b"x" * 10_000)
        with open(root / "file", "r+b") as file, refused(errno.EINVAL):
            os.copy_file_range(file.fileno(), file.fileno(), 100, 0, 50)

    def test_sendfile_reads_from_a_file_here(self, root: Path) -> None:
        content = os.urandom(50_000)
        (root / "file").write_bytes(content)
        one, two = socket.socketpair()
        with one, two, open(root / "file", "rb") as file:
            sent = os.sendfile(one.fileno(), file.fileno(), 11, 20_000)
            one.shutdown(socket.SHUT_WR)
            received = b"".join(iter(lambda: two.recv(65536), b""))
        assert received == content[11 : 11 + sent]
        assert sent > 0

    def test_sendfile_and_splice_write_to_a_file_here(self, root: Path) -> None:
        (root / "source").write_bytes(b"from file to file")
        with open(root / "source", "rb") as source, open(root / "target", "wb") as target:
            assert os.sendfile(target.fileno(), source.fileno(), 0, 100) == 17
        assert (root / "target").read_bytes() == b"from file to file"
        receive, send = os.pipe()
        os.write(send, b"from a pipe")
        os.close(send)
        with open(root / "piped", "wb") as target:
            assert os.splice(receive, target.fileno(), 100) == 11
        os.close(receive)
        assert (root / "piped").read_bytes() == b"from a pipe"


class TestSyncing:
    def test_files_and_directories_can_be_synced(self, root: Path) -> None:
        with open(root / "file", "wb", buffering=0) as file:
            file.write(b"content")
            os.fdatasync(file.fileno())
            os.fsync(file.fileno())
        for path in (root / "file", root):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.fdatasync(descriptor)
            os.close(descriptor)
        assert (root / "file").read_bytes() == b"content"

    def test_synchronous_descriptors_write(self, root: Path) -> None:
        for flag in (os.O_SYNC, os.O_DSYNC):
            descriptor = os.open(root / "file", os.O_CREAT | os.O_WRONLY | os.O_APPEND | flag)
            os.write(descriptor, b"content")
            os.close(descriptor)
        assert (root / "file").read_bytes() == b"contentcontent"
