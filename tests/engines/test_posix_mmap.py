"""Mapped files: private and shared, read, written, synced and truncated."""

from __future__ import annotations

import errno
import mmap
import os
import random
from pathlib import Path

import pytest

from tests.engines.callers import Child, in_child
from tests.engines.refusals import refused

pytestmark = pytest.mark.usefixtures("as_user")

PAGE = mmap.PAGESIZE
READ_ONLY = mmap.PROT_READ
PRIVATE = mmap.MAP_PRIVATE
SHARED = mmap.MAP_SHARED


def test_a_private_mapping_shows_the_file(root: Path) -> None:
    content = os.urandom(10 * PAGE + 123)
    (root / "file").write_bytes(content)
    with open(root / "file", "rb") as file, mmap.mmap(file.fileno(), 0, PRIVATE, READ_ONLY) as mapped:
        assert mapped[:] == content


def test_a_mapping_outlives_its_descriptor(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    with open(root / "file", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, PRIVATE, READ_ONLY)
    assert mapped[:] == b"content"
    mapped.close()


def test_writing_to_a_private_mapping_leaves_the_file_alone(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    with open(root / "file", "rb") as file:
        with mmap.mmap(file.fileno(), 0, PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
            mapped[:3] = b"NEW"
            assert mapped[:] == b"NEWtent"
    assert (root / "file").read_bytes() == b"content"


def test_writing_to_a_shared_mapping_is_seen_by_readers_at_once(root: Path) -> None:
    (root / "file").write_bytes(b"x" * 3 * PAGE)
    with open(root / "file", "r+b") as file, mmap.mmap(file.fileno(), 0, SHARED) as mapped:
        mapped[PAGE : PAGE + 3] = b"NEW"
        assert os.pread(file.fileno(), 5, PAGE - 1) == b"xNEWx"
        assert in_child((root / "file").read_bytes)[PAGE : PAGE + 3] == b"NEW"


def test_what_a_shared_mapping_wrote_stays_after_sync_and_close(root: Path) -> None:
    with open(root / "file", "w+b") as file:
        os.ftruncate(file.fileno(), 5 * PAGE)
        with mmap.mmap(file.fileno(), 0, SHARED) as mapped:
            mapped[2 * PAGE : 2 * PAGE + 4] = b"sync"
            mapped.flush(2 * PAGE, PAGE)
            mapped[4 * PAGE : 4 * PAGE + 5] = b"close"
    content = (root / "file").read_bytes()
    assert content[2 * PAGE : 2 * PAGE + 4] == b"sync"
    assert content[4 * PAGE : 4 * PAGE + 5] == b"close"
    assert content.count(0) == 5 * PAGE - 9


def test_a_file_written_once_and_closed_can_be_mapped_for_writing(root: Path) -> None:
    (root / "file").write_bytes(b"a" * 2 * PAGE)
    with open(root / "file", "r+b") as file, mmap.mmap(file.fileno(), 0, SHARED) as mapped:
        mapped[PAGE - 2 : PAGE + 2] = b"bbbb"
        mapped.flush()
    assert (root / "file").read_bytes() == b"a" * (PAGE - 2) + b"bbbb" + b"a" * (PAGE - 2)


def test_a_write_is_seen_in_a_mapping_at_once(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    with open(root / "file", "r+b", buffering=0) as file:
        with mmap.mmap(file.fileno(), 0, SHARED, READ_ONLY) as mapped:
            assert mapped[:3] == b"con"
            os.pwrite(file.fileno(), b"CON", 0)
            assert mapped[:] == b"CONtent"


def test_two_processes_share_a_mapping(root: Path) -> None:
    (root / "file").write_bytes(bytes(PAGE))
    ping_receive, ping_send = os.pipe()
    pong_receive, pong_send = os.pipe()

    def answer() -> None:
        with open(root / "file", "r+b") as file, mmap.mmap(file.fileno(), 0, SHARED) as mapped:
            for turn in range(100):
                os.read(ping_receive, 1)
                assert mapped[0] == turn
                mapped[1] = turn
                os.write(pong_send, b".")

    with Child(answer) as child:
        with open(root / "file", "r+b") as file, mmap.mmap(file.fileno(), 0, SHARED) as mapped:
            for turn in range(100):
                mapped[0] = turn
                os.write(ping_send, b".")
                os.read(pong_receive, 1)
                assert mapped[1] == turn
        child.result()
    for descriptor in (ping_receive, ping_send, pong_receive, pong_send):
        os.close(descriptor)


def test_the_page_of_the_end_reads_as_zeros_beyond_it(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    with open(root / "file", "r+b") as file, mmap.mmap(file.fileno(), 0, SHARED) as mapped:
        os.ftruncate(file.fileno(), 3)
        os.ftruncate(file.fileno(), 7)
        assert mapped[:] == b"con\0\0\0\0"


def test_a_mapping_grows_with_its_file(root: Path) -> None:
    (root / "file").write_bytes(b"a" * PAGE)
    with open(root / "file", "r+b") as file, mmap.mmap(file.fileno(), 0, SHARED) as mapped:
        mapped.resize(3 * PAGE)
        mapped[2 * PAGE : 2 * PAGE + 3] = b"end"
    assert (root / "file").read_bytes() == b"a" * PAGE + bytes(PAGE) + b"end" + bytes(PAGE - 3)


def test_mapping_for_writing_needs_a_writable_descriptor(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    with open(root / "file", "rb") as file, refused(errno.EACCES):
        mmap.mmap(file.fileno(), 0, SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def test_a_replaced_file_stays_what_it_was_in_a_mapping(root: Path) -> None:
    (root / "file").write_bytes(b"old" * PAGE)
    with open(root / "file", "rb") as file, mmap.mmap(file.fileno(), 0, PRIVATE, READ_ONLY) as mapped:
        (root / "new").write_bytes(b"new" * PAGE)
        os.replace(root / "new", root / "file")
        assert mapped[:] == b"old" * PAGE
    assert (root / "file").read_bytes() == b"new" * PAGE


def test_pages_of_a_large_file_are_right_in_any_order(root: Path) -> None:
    pages = 700
    content = random.Random(2).randbytes(pages * PAGE)
    (root / "file").write_bytes(content)
    with open(root / "file", "rb") as file, mmap.mmap(file.fileno(), 0, PRIVATE, READ_ONLY) as mapped:
        order = list(range(pages))
        random.Random(3).shuffle(order)
        for start in (page * PAGE for page in order):
            assert mapped[start : start + PAGE] == content[start : start + PAGE]
