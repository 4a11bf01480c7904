"""filelock: a lock counts only while its path leads to the locked file."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from kcachefs.filelock import lock, open_locked
from tests.waiting import PATIENCE

CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
EXCLUSIVE = fcntl.LOCK_EX | fcntl.LOCK_NB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_a_second_opener_is_refused_until_the_first_closes(path: Path) -> None:
    first = open_locked(path, CREATE, EXCLUSIVE)
    with pytest.raises(BlockingIOError):
        open_locked(path, CREATE, EXCLUSIVE)
    os.close(first)
    os.close(open_locked(path, CREATE, EXCLUSIVE))


def test_a_file_that_lost_its_name_is_not_taken_for_the_lock(path: Path) -> None:
    fd = os.open(path, CREATE)
    path.unlink()
    assert not lock(fd, path, EXCLUSIVE)
    path.touch()
    assert not lock(fd, path, EXCLUSIVE), "another file has the name now"
    os.close(fd)


def test_whoever_waits_for_a_lock_that_is_removed_gets_the_new_one(path: Path) -> None:
    first = open_locked(path, CREATE, fcntl.LOCK_EX)
    got: list[int] = []
    waiter = threading.Thread(target=lambda: got.append(open_locked(path, CREATE, fcntl.LOCK_EX)))
    waiter.start()
    while _waiting_for(first) == 0:
        assert waiter.is_alive()
    path.unlink()
    os.close(first)
    waiter.join(PATIENCE)
    assert os.path.samestat(os.fstat(got[0]), path.stat())
    os.close(got[0])


def test_no_descriptor_is_left_open_when_the_lock_is_refused(path: Path) -> None:
    first = open_locked(path, CREATE, EXCLUSIVE)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        open_locked(path, CREATE, EXCLUSIVE)
    assert os.listdir("/proc/self/fd") == before
    os.close(first)


def test_whoever_keeps_account_of_descriptors_is_told_of_each_that_is_opened_and_closed(path: Path) -> None:
    first = open_locked(path, CREATE, EXCLUSIVE)
    opened: list[int] = []
    closed: list[int] = []

    def opener(path: Path, flags: int, mode: int) -> int:
        opened.append(os.open(path, flags, mode))
        return opened[-1]

    def closer(fd: int) -> None:
        closed.append(fd)
        os.close(fd)

    with pytest.raises(BlockingIOError):
        open_locked(path, CREATE, EXCLUSIVE, opener=opener, closer=closer)
    assert len(opened) == 1
    assert closed == opened
    os.close(first)
    os.close(open_locked(path, CREATE, EXCLUSIVE, opener=opener, closer=closer))
    assert (len(opened), len(closed)) == (2, 1)


def _waiting_for(fd: int) -> int:
    """How many wait for the lock on this file, by /proc/locks: their lines have an arrow."""
    inode = f":{os.fstat(fd).st_ino} "
    return sum("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())
