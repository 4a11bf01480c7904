"""flock and record locks: they keep other processes out, and are released when their holder ends."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
from pathlib import Path

import pytest

from tests.engines.callers import Child, in_child
from tests.engines.refusals import refused

pytestmark = pytest.mark.usefixtures("as_user")


def try_flock(path: Path, kind: int) -> bool:
    """Whether another process could take this lock now."""

    def attempt() -> bool:
        with open(path, "r+b") as file:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    return in_child(attempt)


def try_record(path: Path, kind: int, start: int, length: int) -> bool:
    def attempt() -> bool:
        with open(path, "r+b") as file:
            try:
                fcntl.lockf(file, kind | fcntl.LOCK_NB, length, start)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                return False
            return True

    return in_child(attempt)


@pytest.fixture
def lock(root: Path) -> Path:
    (root / "lock").touch()
    (root / "lock").chmod(0o666)
    return root / "lock"


def test_an_exclusive_flock_keeps_everyone_out_until_it_is_let_go(lock: Path) -> None:
    with open(lock, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not try_flock(lock, fcntl.LOCK_EX)
        assert not try_flock(lock, fcntl.LOCK_SH)
        fcntl.flock(file, fcntl.LOCK_UN)
        assert try_flock(lock, fcntl.LOCK_EX)


def test_shared_flocks_coexist(lock: Path) -> None:
    with open(lock, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert try_flock(lock, fcntl.LOCK_SH)
        assert not try_flock(lock, fcntl.LOCK_EX)


def test_a_flock_on_a_read_only_descriptor_works(lock: Path) -> None:
    with open(lock, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not try_flock(lock, fcntl.LOCK_SH)


def test_closing_lets_a_flock_go(lock: Path) -> None:
    with open(lock, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    assert try_flock(lock, fcntl.LOCK_EX)


def test_two_descriptors_of_one_process_exclude_each_other(lock: Path) -> None:
    with open(lock, "r+b") as one, open(lock, "r+b") as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        with refused(errno.EWOULDBLOCK):
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_killed_holder_lets_its_locks_go(lock: Path) -> None:
    receive, send = os.pipe()

    def hold() -> None:
        with open(lock, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            fcntl.lockf(file, fcntl.LOCK_EX)
            os.write(send, b"held")
            signal.pause()

    with Child(hold) as holder:
        assert os.read(receive, 4) == b"held"
        assert not try_flock(lock, fcntl.LOCK_EX)
        assert not try_record(lock, fcntl.LOCK_EX, 0, 0)
        holder.kill()
        assert try_flock(lock, fcntl.LOCK_EX)
        assert try_record(lock, fcntl.LOCK_EX, 0, 0)
    os.close(receive)
    os.close(send)


def test_a_waiting_process_gets_the_flock_when_it_is_let_go(lock: Path) -> None:
    def wait() -> bytes:
        with open(lock, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return lock.read_bytes()

    with open(lock, "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with Child(wait) as waiter:
            file.write(b"written under the lock")
            fcntl.flock(file, fcntl.LOCK_UN)
            assert waiter.result() == b"written under the lock"


def test_a_counter_under_a_lock_loses_no_increment(root: Path) -> None:
    (root / "counter").write_bytes(b"0")
    (root / "lock").touch()

    def count() -> None:
        for _ in range(50):
            with open(root / "lock", "r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                value = int((root / "counter").read_bytes())
                (root / "counter").write_bytes(b"%d" % (value + 1))

    children = [Child(count) for _ in range(4)]
    for child in children:
        with child:
            child.result()
    assert (root / "counter").read_bytes() == b"200"


def test_record_locks_cover_their_range_only(lock: Path) -> None:
    with open(lock, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 100)
        assert not try_record(lock, fcntl.LOCK_EX, 105, 1)
        assert not try_record(lock, fcntl.LOCK_SH, 0, 0)
        assert try_record(lock, fcntl.LOCK_EX, 110, 10)
        assert try_record(lock, fcntl.LOCK_EX, 0, 100)
        fcntl.lockf(file, fcntl.LOCK_UN, 5, 100)
        assert try_record(lock, fcntl.LOCK_EX, 100, 5)
        assert not try_record(lock, fcntl.LOCK_EX, 100, 6)


def test_shared_record_locks_coexist(lock: Path) -> None:
    with open(lock, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_SH, 10, 0)
        assert try_record(lock, fcntl.LOCK_SH, 0, 10)
        assert not try_record(lock, fcntl.LOCK_EX, 0, 10)


def test_the_holder_of_a_record_lock_is_told(lock: Path) -> None:
    flock = struct.Struct("hhqqi4x")
    with open(lock, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 100)

        def ask() -> tuple[int, ...]:
            with open(lock, "r+b") as asking:
                question = flock.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                return flock.unpack(fcntl.fcntl(asking, fcntl.F_GETLK, question))

        assert in_child(ask) == (fcntl.F_WRLCK, os.SEEK_SET, 100, 10, os.getpid())


def test_flocks_and_record_locks_do_not_meet(lock: Path) -> None:
    with open(lock, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert try_record(lock, fcntl.LOCK_EX, 0, 0)


def test_a_lock_stays_with_its_file_through_rename_and_unlink(lock: Path) -> None:
    with open(lock, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        moved = lock.rename(lock.with_name("moved"))
        assert not try_flock(moved, fcntl.LOCK_EX)
        moved.unlink()
        lock.touch()
        assert try_flock(lock, fcntl.LOCK_EX)


def test_directories_can_be_flocked(root: Path) -> None:
    (root / "folder").mkdir()
    one, two = (os.open(root / "folder", os.O_RDONLY) for _ in range(2))
    fcntl.flock(one, fcntl.LOCK_EX)
    with refused(errno.EWOULDBLOCK):
        fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(one)
    fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(two)
