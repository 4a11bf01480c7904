"""A neighbour who wants their bytes under somebody else's name: every way that was found, tried with two real users."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.core.policies.mounts import ALICE, BOB, as_user, each_engine, mounted, needs_root, publish, reopened
from tests.engines.callers import Child, in_child
from tests.engines.refusals import refused

GOOD = b"def kernel(): return 'good'\n" * 40
EVIL = b"import os; os.system('evil')" + GOOD[28:]
ROUNDS = 100
pytestmark = needs_root


def crowd(folder: Path) -> None:
    """Keeps the folder's lock in the kernel busy, which delays invalidations of names in it."""
    number = 0
    while True:
        number += 1
        busy = folder / f"tmp.{os.getpid()}.{number}"
        with contextlib.suppress(OSError):
            busy.mkdir()
            busy.rmdir()


def reads_of(path: Path) -> tuple[int, int]:
    """How often a file was read, and how often it held anything else than what its owner published."""
    reads = wrong = 0
    while not (path.parent / "tmp.stop").exists():
        reads += 1
        wrong += path.read_bytes() != GOOD
    return reads, wrong


@each_engine
def test_a_reader_never_gets_the_bytes_of_a_rename_that_gave_way(engine: str) -> None:
    with mounted(engine, "--policy", "publish") as mount:
        module = mount.mountpoint / "inductor" / "ab" / "cabc.py"
        as_user(ALICE, lambda: publish(module, GOOD))

        def swap() -> None:
            kept = []
            for number in range(ROUNDS):
                temporary = module.parent / f".{os.getpid()}.{number}.tmp"
                descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT, 0o644)
                os.write(descriptor, GOOD)
                os.rename(temporary, module)
                os.pwrite(descriptor, EVIL, 0)
                kept.append(descriptor)
                if len(kept) > 20:
                    os.close(kept.pop(0))
            (module.parent / "tmp.stop").mkdir()

        with contextlib.ExitStack() as running:
            for _ in range(2):
                running.enter_context(Child(lambda: crowd(module.parent), BOB))
            readers = [running.enter_context(Child(lambda: reads_of(module), ALICE)) for _ in range(2)]
            running.enter_context(Child(swap, BOB)).result()
            found = [reader.result() for reader in readers]
        assert all(reads > ROUNDS // 10 for reads, _ in found), "nobody was looking"
        assert sum(wrong for _, wrong in found) == 0, found


def _straight(folder: Path, start: Path) -> Path:
    return start


def _renamed_to_a_temporary_name(folder: Path, start: Path) -> Path:
    return start.rename(folder / ".1.1.tmp")


def _under_a_lock_s_name_for_a_while(folder: Path, start: Path) -> Path:
    lock = start.rename(folder / "x.lock")
    lock.stat()
    return lock.rename(folder / ".1.1.tmp")


def _with_a_link_that_went(folder: Path, start: Path) -> Path:
    temporary = start.rename(folder / ".1.1.tmp")
    os.link(temporary, folder / "other.py")
    (folder / "other.py").unlink()
    temporary.stat()
    return temporary.rename(folder / ".1.2.tmp")


def _in_a_folder_that_was_renamed(name: str) -> Callable[[Path, Path], Path]:
    def run(folder: Path, start: Path) -> Path:
        temporary = folder.parent / f"tmp.mine.{name}"
        temporary.mkdir()
        start.rename(temporary / "f")
        final = temporary.rename(folder.parent / name)
        (final / "f").stat()
        return final.rename(folder.parent / f"tmp.again.{name}") / "f"

    return run


WAYS = {
    "straight": _straight,
    "renamed": _renamed_to_a_temporary_name,
    "lock": _under_a_lock_s_name_for_a_while,
    "link": _with_a_link_that_went,
    "folder": _in_a_folder_that_was_renamed("KEY"),
    "locked_folder": _in_a_folder_that_was_renamed("KEY.lock"),
}


@each_engine
def test_a_file_whose_name_the_kernel_may_have_kept_does_not_give_way(engine: str) -> None:
    with mounted(engine, "--policy", "publish") as mount:
        for number, (name, way) in enumerate(WAYS.items()):
            module = mount.mountpoint / "inductor" / f"a{number}" / "cabc.py"
            as_user(ALICE, partial(publish, module, GOOD))

            def attack(module: Path = module, way: Callable[[Path, Path], Path] = way) -> bytes:
                start = module.parent / "mine.py"
                descriptor = os.open(start, os.O_RDWR | os.O_CREAT, 0o644)
                os.write(descriptor, GOOD)
                start.stat()
                with contextlib.suppress(PermissionError):  # a lock is refused the temporary name already
                    os.rename(way(module.parent, start), module)
                os.pwrite(descriptor, EVIL, 0)
                return module.read_bytes()

            assert in_child(attack, BOB) == GOOD, name  # it leaves files open
            assert as_user(ALICE, module.read_bytes) == GOOD, name


@each_engine
def test_nothing_that_the_newcomer_holds_leads_to_the_published_file(engine: str) -> None:
    with mounted(engine, "--policy", "publish") as mount:
        module = mount.mountpoint / "inductor" / "ab" / "cabc.py"
        as_user(ALICE, lambda: publish(module, GOOD))

        def hold() -> list[bytes]:
            temporary = module.parent / ".1.1.tmp"
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT, 0o644)
            os.write(descriptor, GOOD)
            os.link(temporary, module.parent / "mine.py")
            view = mmap.mmap(descriptor, len(GOOD))
            os.rename(temporary, module)
            view[: len(EVIL)] = EVIL
            view.flush()
            (module.parent / "mine.py").write_bytes(EVIL)
            os.pwrite(descriptor, EVIL, 0)
            with refused(errno.EACCES):
                os.open(f"/proc/self/fd/{os.open(module, os.O_RDONLY)}", os.O_RDWR)
            return [module.read_bytes(), (module.parent / "mine.py").read_bytes()]

        assert in_child(hold, BOB) == [GOOD, EVIL]
        assert as_user(ALICE, module.read_bytes) == GOOD
        as_user(ALICE, lambda: publish(module, b"better"))
        assert module.read_bytes() == b"better"


@each_engine
def test_what_was_written_in_place_cannot_be_replaced_at_any_moment(engine: str) -> None:
    with mounted(engine, "--policy", "publish") as mount:
        library = mount.mountpoint / "inductor" / "ab" / "cabc.so"

        def replace() -> None:
            with refused(errno.EPERM):
                publish(library, EVIL)

        def write() -> None:
            library.parent.mkdir(exist_ok=True)
            library.write_bytes(GOOD)

        def append() -> None:
            with open(library, "ab") as file:
                file.write(b"more")

        as_user(ALICE, write)
        as_user(BOB, replace)  # at once, long before it could count as quiet
        as_user(ALICE, append)
        as_user(BOB, replace)
        assert library.read_bytes() == GOOD + b"more"


# --- locks ------------------------------------------------------------------------------------------------------------

MEANINGFUL = ("ccache/ccache.conf", "ccache/CACHEDIR.TAG", "ccache/a/stats", "cuda/index")
NO_LOCKS = ("inductor/locks/evil.py", "triton/KEY/locks/evil.so", "aiter/build/lock_x.py", "ccache/lock/x.conf")


@each_engine
def test_a_file_with_a_meaning_is_its_owners_under_publish(engine: str) -> None:
    with mounted(engine, "--policy", "publish") as mount:
        paths = [mount.mountpoint / name for name in MEANINGFUL]

        def make() -> None:
            for path in paths:
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(GOOD)
                path.chmod(0o666)

        def meddle() -> None:
            for path in paths:
                with refused(errno.EACCES, errno.EPERM):
                    path.write_bytes(EVIL)
                with refused(errno.EPERM):
                    path.unlink()
                with refused(errno.EPERM):
                    publish(path, EVIL)

        as_user(ALICE, make, umask=0)
        as_user(BOB, meddle)
        assert {path.read_bytes() for path in paths} == {GOOD}


def test_a_file_with_a_meaning_is_its_owners_also_in_a_store_that_was_shared() -> None:
    with mounted("direct", "--policy", "shared") as mount:
        paths = [mount.mountpoint / name for name in MEANINGFUL]

        def make() -> None:
            for path in paths:
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(GOOD)
                path.chmod(0o666)

        def meddle() -> None:
            for path in paths:
                with refused(errno.EACCES, errno.EPERM, errno.EROFS):
                    path.write_bytes(EVIL)

        as_user(ALICE, make, umask=0)
        for policy in ("publish", "read-only"):
            reopened(mount, "--policy", policy)
            as_user(BOB, meddle)
            assert {path.read_bytes() for path in paths} == {GOOD}


@each_engine
def test_nobody_makes_anything_in_memory_that_somebody_reads(engine: str) -> None:
    with mounted(engine, "--policy", "shared") as mount:
        paths = [mount.mountpoint / name for name in (*MEANINGFUL, *NO_LOCKS)]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        reopened(mount, "--policy", "read-only")

        def make() -> None:
            for path in paths:
                with refused(errno.EROFS):
                    path.write_bytes(EVIL)

        as_user(BOB, make)
        assert not any(path.exists() for path in paths)


@each_engine
def test_a_lock_in_memory_holds_no_bytes(engine: str) -> None:
    with mounted(engine, "--policy", "read-only") as mount:
        lock = mount.mountpoint / "inductor" / "x.lock"

        def take() -> None:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
            with refused(errno.EROFS):
                os.write(descriptor, EVIL)
            with refused(errno.EROFS):
                os.ftruncate(descriptor, 100)
            os.ftruncate(descriptor, 0)
            os.close(descriptor)

        as_user(BOB, take)
        assert lock.read_bytes() == b""


# --- links and pipes --------------------------------------------------------------------------------------------------


@each_engine
def test_nobody_redirects_what_others_open(engine: str) -> None:
    with mounted(engine, "--policy", "publish") as mount:
        folder = mount.mountpoint / "triton" / "KEY"
        as_user(ALICE, folder.mkdir)

        def plant() -> None:
            for target in ("/etc/passwd", "../../inductor", "kernel.cubin"):
                with refused(errno.EPERM):
                    os.symlink(target, folder / "x.lock")
            with refused(errno.EPERM):
                os.mkfifo(folder / "pipe.lock")
            with socket.socket(socket.AF_UNIX) as server, refused(errno.EPERM):
                server.bind(str(folder / "s"))

        as_user(BOB, plant)
        assert os.listdir(folder) == []


@each_engine
def test_a_link_of_a_strangers_leads_nobody_anywhere(engine: str) -> None:
    """Such links may be there from when the mount was shared."""
    with mounted(engine, "--policy", "shared") as mount:
        victim = mount.mountpoint.parent / "victim"
        link = mount.mountpoint / "triton" / "x.lock"
        as_user(BOB, lambda: os.symlink(victim, link))
        victim.write_bytes(GOOD)
        os.chown(victim, ALICE.uid, ALICE.gid)
        reopened(mount, "--policy", "publish")

        def truncate() -> None:
            with refused(errno.EACCES):
                os.open(link, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

        as_user(ALICE, truncate)
        assert victim.read_bytes() == GOOD
        assert as_user(BOB, lambda: os.readlink(link)) == str(victim), "its owner may follow it"


# --- what numbers tell ------------------------------------------------------------------------------------------------


@each_engine
@pytest.mark.parametrize("policy", ["shared", "publish", "private"])
def test_df_does_not_tell_whether_somebody_else_has_the_same_bytes(engine: str, policy: str) -> None:
    data = os.urandom(2 << 20)
    told = []
    for others in (False, True):
        with mounted(engine, "--policy", policy, "--max-size", "64MiB") as mount:

            def write() -> None:
                publish(mount.mountpoint / "triton" / f"KEY{os.getuid()}" / "kernel.cubin", data)

            def measure() -> tuple[int, int]:
                write()
                found = os.statvfs(mount.mountpoint)
                return found.f_blocks, found.f_bfree

            if others:
                as_user(ALICE, write)
            told.append(as_user(BOB, measure))
    assert told[0] == told[1]
