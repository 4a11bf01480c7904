"""What one user notices while another does the worst: python -m benchmarks.hostile [--only NAME ...] [--seconds S].

User A looks up missing names, reads a known file, and writes a file under a temporary name and renames it. Meanwhile
eight processes of user B do one of the attacks below. The table shows A's latencies over all three, and the worker's
memory. Needs root, to become these users. Aim: A's p99 under 50 ms and worst under 500 ms under every attack.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import os
import random
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.scale import memory_of
from benchmarks.subjects import Kcachefs, workplace
from kcachefs.daemon import control, registry
from kcachefs.errors import KcachefsError

ALICE, BOB = 42042, 42052
PROCESSES = 8
FILES = 20_000
"""Files of a large folder."""
SMALL = b"x" * 200


@dataclass(frozen=True)
class Attack:
    """What B does."""

    prepare: Callable[[Path], None]
    """Called once, as B, with the mount's root."""
    act: Callable[[Path, int], None]
    """Called over and over in each process, with the root and the process's number."""
    as_root: Callable[[Path], None] | None = None
    """Called over and over in one more process, as root: what the mount's owner, or the daemon, does because of B."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--seconds", type=float, default=8.0, help="of each attack")
    parser.add_argument("--policy", default="publish")
    parser.add_argument("--directory", type=Path, help="where the stores lie")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that no mount is left behind
    print("| attack | p50, ms | p99, ms | worst, ms | operations of A | worker at its peak, MiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    fine = True
    with workplace(chosen.directory) as base:
        base.chmod(0o755)
        for name in ("nothing", *chosen.only):
            options = ("--policy", chosen.policy, "--max-size", "2GiB")
            subject = Kcachefs("direct", base / name.replace(" ", "_"), options)
            subject.open()
            try:
                taken = sorted(_measure(subject, ATTACKS.get(name), chosen.seconds))
                peak = memory_of(subject.worker())["peak in MiB"]
            finally:
                subject.close()
            shutil.rmtree(subject.base)
            p50, p99, worst = (1000 * value for value in (statistics.median(taken), _p99(taken), taken[-1]))
            fine &= p99 < 50 and worst < 500
            print(f"| {name} | {p50:.2f} | {p99:.1f} | {worst:.0f} | {len(taken):,} | {peak:.0f} |", flush=True)
    sys.exit(0 if fine else 1)


def _p99(values: list[float]) -> float:
    return values[len(values) * 99 // 100]


def _measure(subject: Kcachefs, attack: Attack | None, seconds: float) -> list[float]:
    """Seconds that each of A's operations took."""
    root, fork = subject.mountpoint, get_context("fork")
    attackers = []
    if attack is not None:
        process = fork.Process(target=_as, args=(BOB, attack.prepare, root), daemon=True)
        process.start()
        process.join()
        assert process.exitcode == 0
        attackers = [
            fork.Process(target=_as, args=(BOB, _repeat, attack.act, root, number), daemon=True)
            for number in range(PROCESSES)
        ]
        if attack.as_root is not None:
            attackers.append(fork.Process(target=_repeat, args=(attack.as_root, root), daemon=True))
    for process in attackers:
        process.start()
    receive, send = fork.Pipe(duplex=False)
    victim = fork.Process(target=_as, args=(ALICE, lambda: send.send(list(_operate(root, seconds)))), daemon=True)
    try:
        victim.start()
        taken: list[float] = receive.recv()
        victim.join()
    finally:
        for process in attackers:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
    return taken


def _as(uid: int, act: Callable[..., None], *arguments: object) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    act(*arguments)


def _repeat(act: Callable[..., None], *arguments: object) -> None:
    while True:
        with contextlib.suppress(OSError, KcachefsError):
            act(*arguments)


def _operate(root: Path, seconds: float) -> Iterator[float]:
    """What a compiler does with its cache."""
    folder = root / "triton" / "alice"
    folder.mkdir()
    known = folder / "known"
    known.write_bytes(os.urandom(16 << 10))
    time.sleep(0.5)
    until = time.monotonic() + seconds
    for number in itertools.count():
        for operation in (_look_up, _read, _put):
            begin = time.perf_counter()
            operation(folder, number)
            yield time.perf_counter() - begin
        if time.monotonic() > until:
            return


def _look_up(folder: Path, number: int) -> None:
    assert not os.path.exists(folder / f"missing{number}")


def _read(folder: Path, number: int) -> None:
    assert len((folder / "known").read_bytes()) == 16 << 10


def _put(folder: Path, number: int) -> None:
    (folder / f"tmp.{number}").write_bytes(SMALL)
    (folder / f"tmp.{number}").rename(folder / f"kernel{number}")


# --- attacks ----------------------------------------------------------------------------------------------------------


def _nothing(root: Path) -> None:
    pass


def _fill(folder: Path, files: int = FILES) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(files):
        os.close(os.open(folder / f"f{number}", os.O_CREAT | os.O_WRONLY, 0o644))


def _make_movable(root: Path) -> None:
    _fill(root / "triton" / "large")
    (root / "triton" / "other").mkdir()


def _move(root: Path, number: int) -> None:
    """Into another entry and out again, into another namespace and back."""
    large, inner, elsewhere = root / "triton/large", root / "triton/other/large", root / "tvm_ffi/large"
    for old, new in ((large, inner), (inner, large), (large, elsewhere), (elsewhere, large)):
        with contextlib.suppress(OSError):
            os.rename(old, new)


def _make_entries(root: Path) -> None:
    for number in range(3):
        _fill(root / "triton" / f"large{number}")
        (root / "triton" / f"large{number}" / "sealed").write_bytes(SMALL)
    _fill(root / "cute_dsl", 2000)
    for number in range(FILES // 2):
        (root / "cute_dsl" / f"group.{number}").write_bytes(SMALL)
    time.sleep(3)


def _make_an_entry(root: Path, number: int) -> None:
    """Small ones, each in a folder with many names."""
    name = f"{number}.{random.randrange(1 << 60)}"
    (root / "jax" / f"{name}-cache").write_bytes(SMALL)
    (root / "jax" / f"{name}-atime").write_bytes(SMALL)


def _evict(root: Path) -> None:
    for pattern in ("triton/large0", "triton/large1", "cute_dsl/group", "triton/large2", "jax/*"):
        control.ask(registry.socket_path(str(root)), "evict", {"patterns": [pattern]})


def _make_root_folders(root: Path) -> None:
    for number in range(2000):
        with contextlib.suppress(OSError):
            (root / f"folder{number}").mkdir()
            (root / f"folder{number}" / "entry").write_bytes(SMALL)


def _ask_statistics(root: Path, number: int) -> None:
    os.stat(root / ".kcachefs" / "stats.json")
    (root / ".kcachefs" / "metrics").read_bytes()
    os.statvfs(root)


def _list(root: Path, number: int) -> None:
    """A folder of many names, which changes all the time, so that the kernel remembers no listing."""
    folder = root / "triton" / "large"
    (folder / f"new{number}").touch()
    for row in os.scandir(folder):
        row.stat(follow_symlinks=False)
    (folder / f"new{number}").unlink()


def _make_large(root: Path) -> None:
    _fill(root / "triton" / "large")


def _fill_and_remove(root: Path, number: int) -> None:
    folder = root / "triton" / f"tree{number}"
    for below in range(20):
        (folder / f"{below}").mkdir(parents=True, exist_ok=True)
        for file in range(50):
            (folder / f"{below}" / f"{file}").write_bytes(SMALL)
    shutil.rmtree(folder)


def _resize(root: Path, number: int) -> None:
    """Huge files: mostly holes, then allocated, punched, emptied."""
    path = root / "triton" / f"huge{number}"
    with open(path, "wb", buffering=0) as file:
        file.truncate(1 << 40)
        file.write(SMALL)
        os.pwrite(file.fileno(), SMALL, 1 << 39)
        with contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, 128 << 20)
        file.truncate(100)
        file.truncate(0)
    path.unlink()


def _write_much(root: Path, number: int) -> None:
    path, data = root / "triton" / f"much{number}", os.urandom(1 << 20)
    with open(path, "wb", buffering=0) as file:
        for _ in range(64):
            file.write(data)
    path.unlink()


def _lock(root: Path, number: int) -> None:
    with open(root / "triton" / f"{number}.lock", "wb") as file:
        for start in range(2000):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * start)
        fcntl.flock(file, fcntl.LOCK_EX)


def _attributes(root: Path, number: int) -> None:
    path = root / "triton" / f"attributes{number}"
    path.touch()
    for index in range(100):
        with contextlib.suppress(OSError):
            os.setxattr(path, f"user.{index}", bytes(60_000))
        with contextlib.suppress(OSError):
            os.getxattr(path, f"user.{index}")
        os.chmod(path, 0o600 + index % 8)
        os.utime(path)


def _link(root: Path, number: int) -> None:
    """Long symbolic links, and many names of one file."""
    folder = root / "triton" / f"links{number}"
    folder.mkdir(exist_ok=True)
    (folder / "file").write_bytes(SMALL)
    for index in range(500):
        os.symlink("x" * 4000, folder / f"symlink{index}")
        os.link(folder / "file", folder / f"link{index}")
        os.readlink(folder / f"symlink{index}")
    shutil.rmtree(folder)


def _unlink_open(root: Path, number: int) -> None:
    folder = root / "triton" / f"open{number}"
    folder.mkdir(exist_ok=True)
    opened = []
    with contextlib.suppress(OSError):
        for index in range(1000):
            opened.append(os.open(folder / f"{index}", os.O_CREAT | os.O_WRONLY, 0o644))
            os.write(opened[-1], SMALL)
    for index in range(len(opened)):
        os.unlink(folder / f"{index}")
    for descriptor in opened:
        os.close(descriptor)


def _nest(root: Path, number: int) -> None:
    """As deep as it goes, moved about to get deeper."""
    top = root / "triton" / f"deep{number}"
    for index in range(2):
        chain = f"{top}/{index}"
        with contextlib.suppress(OSError):
            for _ in range(300):
                os.makedirs(chain, exist_ok=True)
                chain += "/d"
    with contextlib.suppress(OSError):
        os.rename(f"{top}/0", f"{top}/1" + "/d" * 200 + "/0")
    shutil.rmtree(top)


def _sync(root: Path, number: int) -> None:
    """In an entry with many files."""
    path = root / "triton" / "large" / f"synced{number}"
    with open(path, "wb", buffering=0) as file:
        file.write(SMALL)
        os.fsync(file.fileno())


def _regroup(root: Path, number: int) -> None:
    """Groups that lose a file before any is sealed, in a folder of many names."""
    name = f"{number}.{random.randrange(1 << 60)}"
    (root / "jax" / f"{name}-cache").write_bytes(SMALL)
    (root / "jax" / f"{name}-atime").write_bytes(SMALL)
    (root / "jax" / f"{name}-atime").unlink()


def _fill_jax(root: Path) -> None:
    _fill(root / "jax")


def _compute(root: Path, number: int) -> None:
    """Nothing on the mount: what A notices of this is the processors' load."""
    sum(range(100_000))


ATTACKS = {
    "processors, and nothing else": Attack(_nothing, _compute),
    "moving a folder of 20,000 files": Attack(_make_movable, _move),
    "evicting entries of 20,000 files": Attack(_make_entries, _make_an_entry, _evict),
    "statistics with many root folders": Attack(_make_root_folders, _ask_statistics),
    "listing 20,000 names": Attack(_make_large, _list),
    "filling and removing trees": Attack(_nothing, _fill_and_remove),
    "huge files": Attack(_nothing, _resize),
    "writing at full speed": Attack(_nothing, _write_much),
    "locks": Attack(_nothing, _lock),
    "attributes": Attack(_nothing, _attributes),
    "links": Attack(_nothing, _link),
    "unlinked open files": Attack(_nothing, _unlink_open),
    "nested folders": Attack(_nothing, _nest),
    "fsync in a large entry": Attack(_make_large, _sync),
    "groups in a folder of 20,000 names": Attack(_fill_jax, _regroup),
}


if __name__ == "__main__":
    main()
