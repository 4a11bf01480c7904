"""--policy read-only: nothing changes, locks can be taken, and the writers write."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kcachefs.core.caller import Caller
from kcachefs.core.policies.locks import LOCKS_MAX, MemoryLocks
from kcachefs.errors import FsError
from tests import forked_daemons
from tests.core.policies.mounts import (
    ALICE,
    BOB,
    as_user,
    each_engine,
    mounted,
    needs_root,
    publish,
    reopened,
    replace_worker,
)
from tests.engines.callers import Identity
from tests.engines.mounting import Mount
from tests.engines.refusals import refused

pytestmark = needs_root


def fill(mount: Mount) -> None:
    root = mount.mountpoint
    publish(root / "inductor" / "ab" / "cabc.py", b"print(1)\n")
    publish(root / "triton" / "KEY" / "kernel.cubin", b"cubin")
    locks = root / "inductor" / "locks"
    locks.mkdir()
    (locks / "old.lock").touch()


def attempts(root: Path) -> list[Callable[[], object]]:
    module, kernel = root / "inductor" / "ab" / "cabc.py", root / "triton" / "KEY"
    return [
        lambda: module.write_bytes(b"evil"),
        lambda: module.unlink(),
        lambda: module.rename(module.parent / "other.py"),
        lambda: module.chmod(0o777),
        lambda: os.truncate(module, 0),
        lambda: os.utime(module),
        lambda: os.chown(module, 1, 1),
        lambda: os.link(module, module.parent / "hard"),
        lambda: os.symlink("x", module.parent / "soft"),
        lambda: (kernel / "new.so").write_bytes(b"x"),
        lambda: (kernel / "kernel.cubin").unlink(),
        lambda: (root / "triton" / "NEW").mkdir(),
        lambda: os.mkfifo(root / "triton" / "fifo"),
        lambda: kernel.rename(root / "triton" / "MOVED"),
    ]


@each_engine
@pytest.mark.parametrize("who", [None, ALICE], ids=["root", "alice"])
def test_nobody_changes_anything(engine: str, who: Identity | None) -> None:
    with mounted(engine) as mount:
        fill(mount)
        os.chown(mount.mountpoint / "inductor" / "ab" / "cabc.py", ALICE.uid, ALICE.gid)
        reopened(mount, "--policy", "read-only")
        root = mount.mountpoint

        def try_all() -> None:
            for number, attempt in enumerate(attempts(root)):
                with pytest.raises(OSError) as caught:
                    attempt()
                expected = {errno.EROFS, errno.EPERM, errno.EACCES} if who else {errno.EROFS}
                assert caught.value.errno in expected, (number, caught.value)

        as_user(who, try_all)
        assert (root / "inductor" / "ab" / "cabc.py").read_bytes() == b"print(1)\n"
        assert sorted(os.listdir(root / "triton")) == ["KEY"]


@each_engine
def test_an_owner_who_is_no_writer_cannot_write_through_an_open_file(engine: str) -> None:
    with mounted(engine) as mount:
        path = mount.mountpoint / "triton" / "KEY" / "kernel.cubin"
        as_user(ALICE, lambda: publish(path, b"cubin"))
        reopened(mount, "--read-only")

        def write() -> None:
            with refused(errno.EROFS):
                fd = os.open(path, os.O_RDWR)
                os.write(fd, b"evil")

        as_user(ALICE, write)
        assert path.read_bytes() == b"cubin"


@each_engine
def test_locks_are_opened_made_and_held_by_anybody(engine: str) -> None:
    with mounted(engine) as mount:
        fill(mount)
        reopened(mount, "--policy", "read-only")
        locks = mount.mountpoint / "inductor" / "locks"

        def hold(name: str) -> Callable[[], int]:
            return lambda: _locked(locks / name)

        for name in ("old.lock", "new.lock"):
            assert as_user(ALICE, hold(name)) == 0
            assert as_user(BOB, hold(name)) == 0
            with open(locks / name, "r+b") as ours:
                fcntl.flock(ours, fcntl.LOCK_EX)
                assert as_user(BOB, hold(name)) == errno.EWOULDBLOCK
        as_user(ALICE, lambda: (mount.mountpoint / "torch_extensions" / "locks").mkdir())
        assert as_user(BOB, lambda: _locked(mount.mountpoint / "torch_extensions" / "locks" / "x")) == 0
        reopened(mount)
        assert os.listdir(locks) == ["old.lock"], "what was made while it was read-only is nowhere"
        assert os.listdir(mount.mountpoint / "torch_extensions") == []


def _locked(path: Path) -> int:
    """Lock as filelock does; returns 0, or the errno of the refusal."""
    fd = os.open(path, os.O_RDWR | os.O_TRUNC | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(fd, b"") if os.fstat(fd).st_size == 0 else None
        return 0
    except OSError as error:
        return error.errno or -1
    finally:
        os.close(fd)


@each_engine
def test_a_lock_in_memory_is_no_place_to_keep_files(engine: str) -> None:
    with mounted(engine, "--policy", "read-only") as mount:
        lock = mount.mountpoint / "inductor" / "x.lock"

        def use() -> bytes:
            lock.touch()
            with refused(errno.EROFS):
                lock.write_bytes(b"pid 1")
            with refused(errno.EEXIST):
                os.open(lock, os.O_CREAT | os.O_EXCL)
            return lock.read_bytes()

        assert as_user(ALICE, use) == b""
        as_user(ALICE, lock.unlink)
        assert not lock.exists()


@each_engine
@pytest.mark.parametrize("writers", [f"uid:{ALICE.uid}", f"gid:{ALICE.gid}", f"7,gid:{ALICE.groups[0]}"])
def test_the_writers_write_and_others_see_it(engine: str, writers: str) -> None:
    with mounted(engine, "--policy", "read-only", "--writers", writers) as mount:
        path = mount.mountpoint / "inductor" / "ab" / "cabc.py"

        def write() -> None:
            publish(path, b"one")
            publish(path, b"two")
            with open(path, "ab") as file:
                file.write(b" three")

        as_user(ALICE, write)
        assert as_user(BOB, path.read_bytes) == b"two three"

        def meddle() -> None:
            with refused(errno.EROFS):
                publish(path, b"evil")
            with refused(errno.EROFS):
                path.unlink()

        as_user(BOB, meddle)
        as_user(None, meddle)


@each_engine
def test_a_writer_writes_into_a_lock_and_others_do_not(engine: str) -> None:
    """Some programs write who holds a lock into it."""
    with mounted(engine, "--policy", "read-only", "--writers", f"uid:{ALICE.uid}") as mount:
        lock = mount.mountpoint / "inductor" / "x.lock"

        def write() -> None:
            lock.write_bytes(b"pid 1")
            with open(lock, "r+b") as file:
                file.write(b"pid 2")

        as_user(ALICE, write)

        def meddle() -> None:
            with refused(errno.EROFS), open(lock, "r+b", buffering=0) as file:
                file.write(b"evil")

        as_user(BOB, meddle)
        assert as_user(BOB, lock.read_bytes) == b"pid 2"


@pytest.mark.mount
def test_pages_written_through_a_map_are_their_owners() -> None:
    with mounted("direct", "--policy", "read-only", "--writers", f"0,{ALICE.uid}") as mount:
        path = mount.mountpoint / "triton" / "KEY" / "kernel.cubin"
        publish(path, b"root's" * 1000)
        as_user(ALICE, lambda: publish(mount.mountpoint / "triton" / "A" / "hers", b"a" * 4096))

        def write_through_map() -> bytes:
            with open(mount.mountpoint / "triton" / "A" / "hers", "r+b") as file:
                with mmap.mmap(file.fileno(), 4096) as view:
                    view[:5] = b"wrote"
                    view.flush()
            return (mount.mountpoint / "triton" / "A" / "hers").read_bytes()[:5]

        assert as_user(ALICE, write_through_map) == b"wrote"

        def try_map() -> None:
            with refused(errno.EACCES):
                os.open(path, os.O_RDWR)

        as_user(BOB, try_map)


@pytest.mark.mount
@each_engine
def test_nobody_but_a_writer_puts_into_a_map_what_others_read(engine: str) -> None:
    with mounted(engine) as mount:
        path = mount.mountpoint / "inductor" / "x.lock"
        path.write_bytes(b"max_size = 5G\n")
        reopened(mount, "--policy", "read-only")

        def meddle() -> None:
            fd = os.open(path, os.O_RDWR)
            try:
                assert os.read(fd, 100) == b"max_size = 5G\n"
                with pytest.raises(OSError):
                    with mmap.mmap(fd, 14) as view:
                        view[:14] = b"prefix = evil\n"
            finally:
                os.close(fd)

        as_user(BOB, meddle)
        assert path.read_bytes() == b"max_size = 5G\n"
        assert as_user(ALICE, path.read_bytes) == b"max_size = 5G\n"


@pytest.mark.mount
def test_a_lock_in_memory_outlives_the_worker() -> None:
    with mounted("direct", "--policy", "read-only") as mount:
        lock = mount.mountpoint / "inductor" / "x.lock"
        fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            replace_worker(mount)
            os.fstat(fd)
            assert as_user(ALICE, lambda: _locked(lock)) == errno.EWOULDBLOCK
            assert as_user(ALICE, lambda: _locked(lock.with_name("another.lock"))) == 0
        finally:
            os.close(fd)


@pytest.mark.mount
def test_the_flag_and_another_policy_contradict_each_other() -> None:
    with (
        pytest.raises(RuntimeError, match="--read-only: means --policy read-only"),
        mounted("direct", "--read-only", "--policy", "publish"),
    ):
        pass


@pytest.mark.mount
def test_a_lock_in_a_folder_in_memory_outlives_the_worker() -> None:
    with mounted("direct", "--policy", "read-only") as mount:
        locks = mount.mountpoint / "torch_extensions" / "locks"
        as_user(ALICE, locks.mkdir)
        fd = os.open(locks / "x", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            replace_worker(mount)
            _ask_for_attributes(locks)
            assert stat.S_ISDIR(locks.stat().st_mode)
            assert locks.stat().st_mode & 0o777 == 0o777
            assert as_user(ALICE, lambda: _locked(locks / "x")) == errno.EWOULDBLOCK
            assert as_user(ALICE, lambda: _locked(locks / "another")) == 0
            assert as_user(BOB, lambda: os.listdir(locks)) == []
        finally:
            os.close(fd)
        assert as_user(ALICE, lambda: _locked(locks / "x")) == 0


def _ask_for_attributes(path: Path) -> None:
    """Have the kernel ask again for what it has cached, as it does after an hour (AT_STATX_FORCE_SYNC)."""
    libc, buffer = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(256)
    if libc.statx(-100, os.fsencode(path), 0x2000, 0x7FF, buffer) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


@pytest.mark.mount
@pytest.mark.parametrize("replaced", [False, True], ids=["first worker", "next worker"])
def test_a_lock_among_the_files_of_an_entry_is_open_to_all(replaced: bool) -> None:
    with mounted("direct") as mount:
        lock = mount.mountpoint / "triton" / "KEY" / "x.lock"
        publish(lock.with_name("kernel.cubin"), b"cubin")
        lock.touch(0o600)
        reopened(mount, "--policy", "read-only")
        if replaced:
            fd = os.open(lock, os.O_RDONLY)
            try:
                replace_worker(mount)
                _ask_for_attributes(lock)
                assert as_user(ALICE, lambda: _locked(lock)) == 0
            finally:
                os.close(fd)
        else:
            os.listdir(lock.parent)
            with os.scandir(lock.parent) as listed:  # attributes come with the listing
                assert sorted(child.stat().st_mode & 0o666 for child in listed) == [0o644, 0o666]
            assert as_user(ALICE, lambda: _locked(lock)) == 0


@each_engine
def test_a_lock_in_memory_is_removed_by_its_maker_alone(engine: str) -> None:
    with mounted(engine, "--policy", "read-only") as mount:
        lock = mount.mountpoint / "inductor" / "x.lock"
        as_user(ALICE, lock.touch)

        def meddle() -> None:
            with refused(errno.EPERM):
                lock.unlink()

        as_user(BOB, meddle)
        assert lock.exists()
        lock.unlink()
        assert not lock.exists()


def test_one_user_cannot_take_the_locks_of_all() -> None:
    locks, alice, bob = MemoryLocks(), Caller(ALICE.uid, 0), Caller(BOB.uid, 0)
    made = [locks.make(alice, 1, b"%d.lock" % number, stat.S_IFREG)[0] for number in range(LOCKS_MAX)]
    with pytest.raises(FsError, match="too many locks"):
        locks.make(alice, 1, b"more.lock", stat.S_IFREG)
    locks.make(bob, 1, b"his.lock", stat.S_IFREG)
    locks.forget(made[0], 1)
    locks.make(alice, 1, b"more.lock", stat.S_IFREG)


@each_engine
def test_a_user_takes_any_number_of_locks_one_after_another(engine: str) -> None:
    """The kernel remembers their names for as long as it likes, and one that is held stays held."""
    most = 1000
    few = {"kcachefs.core.policies.locks.LOCKS_MAX": most, "kcachefs.core.policies.locks.LOCKS_KEPT": most // 2}
    with forked_daemons.constants(few), mounted(engine, "--policy", "read-only") as mount:
        locks = mount.mountpoint / "inductor"

        def take_all() -> None:
            with open(locks / "held.lock", "w") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                for number in range(most + 100):
                    os.close(os.open(locks / f"{number}.lock", os.O_RDWR | os.O_CREAT, 0o644))
                assert _locked(locks / "held.lock") == errno.EWOULDBLOCK

        as_user(ALICE, take_all)
