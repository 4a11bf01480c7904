"""Users of a mount while its worker is killed: processes that do everything that a worker can be interrupted in.

Each checks its own work at once. None may see an error: a request that the kernel sends again must not stumble over the
work that it has already done.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.engines.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2

PUBLISHED = "triton"
"""The namespace with entries that readers read and that are evicted."""
OWN = "work"
"""The namespace in which each process has a folder of its own."""
NAMES = 6
"""Files per entry."""


class Done(NamedTuple):
    """How many steps a process took, and how many of them added to the common counter."""

    turns: int
    locked: int


class User:
    """A process that uses the mount."""

    def __init__(self, root: Path, stop: Path, number: int, seed: int) -> None:
        self.root = root
        self.number = number
        self.turns = 0
        self.locked = 0
        self._stop = stop
        self._choose = random.Random(f"{seed} {number}")
        self._published = root / PUBLISHED

    def run(self) -> Done:
        """Take random steps until the file `stop` exists."""
        steps = self.steps()
        while not self._stop.exists():
            self._choose.choice(steps)()
            self.turns += 1
        return Done(self.turns, self.locked)

    def steps(self) -> list[Callable[[], None]]:
        raise NotImplementedError

    def bytes(self, size: int) -> bytes:
        """Random bytes after a digest that shows whether they are complete."""
        body = self._choose.randbytes(size)
        return hashlib.sha256(body).digest() + body


def is_whole(content: bytes) -> bool:
    return hashlib.sha256(content[32:]).digest() == content[:32]


class Writer(User):
    """Creates, moves, appends, maps, locks and removes files."""

    def steps(self) -> list[Callable[[], None]]:
        self._own = self.root / OWN / f"writer-{self.number}"
        self._own.mkdir(parents=True, exist_ok=True)
        self._log = b""
        return [self.publish, self.append, self.make_and_remove, self.move, self.write_in_place, self.map, self.lock]

    def publish(self) -> None:
        """Publish an entry as Triton does: files in a temporary folder, each moved to its place."""
        entry = self._published / f"{self.number}-{self.turns}"
        entry.mkdir()
        temporary = entry / f"tmp.pid_{os.getpid()}"
        temporary.mkdir()
        for number in range(NAMES):
            (temporary / f"{number}").write_bytes(self.bytes(self._choose.randrange(20_000)))
            os.replace(temporary / f"{number}", entry / f"kernel.{number}")
        temporary.rmdir()
        assert sorted(os.listdir(entry)) == [f"kernel.{number}" for number in range(NAMES)]

    def append(self) -> None:
        with open(self._own / "log", "ab", buffering=0) as log:
            for _ in range(5):
                line = self._choose.randbytes(50).hex().encode() + b"\n"
                log.write(line)
                self._log += line
        assert (self._own / "log").read_bytes() == self._log

    def make_and_remove(self) -> None:
        """Everything that fails if it is done twice."""
        name = self._own / "once"
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.link(name, self._own / "link")
        assert os.stat(name).st_nlink == 2
        name.unlink()
        (self._own / "link").unlink()
        (self._own / "symlink").symlink_to("nowhere")
        (self._own / "symlink").unlink()
        (self._own / "folder").mkdir()
        os.mkfifo(self._own / "folder" / "fifo")
        (self._own / "folder" / "fifo").unlink()
        (self._own / "folder").rmdir()
        assert sorted(os.listdir(self._own)) in (["log"], ["log", "place"], ["place"], [])

    def move(self) -> None:
        one, two, three = (self._own / name for name in ("one", "two", "three"))
        one.write_bytes(b"one")
        two.write_bytes(b"two")
        renameat2(one, two, RENAME_EXCHANGE)
        assert (one.read_bytes(), two.read_bytes()) == (b"two", b"one")
        renameat2(one, three, RENAME_NOREPLACE)
        os.replace(three, two)
        assert two.read_bytes() == b"two"
        two.unlink()

    def write_in_place(self) -> None:
        """A large file, written in pieces out of order, truncated, and written again."""
        size, piece = 600_000, 40_000
        content = bytearray(self._choose.randbytes(size))
        starts = list(range(0, size, piece))
        self._choose.shuffle(starts)
        with open(self._own / "place", "w+b", buffering=0) as file:
            for start in starts:
                os.pwrite(file.fileno(), content[start : start + piece], start)
            assert os.pread(file.fileno(), size + 1, 0) == content
            os.ftruncate(file.fileno(), size // 2)
            os.fsync(file.fileno())
        assert (self._own / "place").read_bytes() == content[: size // 2]
        (self._own / "place").unlink()

    def map(self) -> None:
        with open(self._own / "mapped", "w+b") as file:
            file.truncate(100_000)
            with mmap.mmap(file.fileno(), 100_000) as view:
                content = self._choose.randbytes(100_000)
                view[:] = content
                view.flush()
            (self._own / "mapped").unlink()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(file.fileno(), 100_001, 0) == content

    def lock(self) -> None:
        """Add to a counter that all writers share, while holding its lock."""
        with open(self.root / OWN / "counter", "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            count = int(file.read())
            file.seek(0)
            file.write(b"%020d" % (count + 1))
            self.locked += 1


class Reader(User):
    """Reads what the writers publish, and keeps some of it open and mapped while it is evicted."""

    def steps(self) -> list[Callable[[], None]]:
        self._held: list[tuple[int, mmap.mmap, bytes]] = []
        return [self.read, self.read, self.list, self.hold, self.look_again]

    def read(self) -> None:
        """An entry may be gone or incomplete, but each file that is there is whole."""
        entry = self._some_entry()
        if entry is not None:
            for number in range(NAMES):
                with suppress(FileNotFoundError):
                    assert is_whole((entry / f"kernel.{number}").read_bytes())

    def list(self) -> None:
        for entry in os.listdir(self._published)[:20]:
            with suppress(FileNotFoundError):
                names = set(os.listdir(self._published / entry))
                assert all(name.startswith(("kernel.", "tmp.pid_")) for name in names)

    def hold(self) -> None:
        entry = self._some_entry()
        if entry is None or len(self._held) >= 10:
            return
        with suppress(FileNotFoundError):
            descriptor = os.open(entry / "kernel.0", os.O_RDONLY)
            content = os.pread(descriptor, 1 << 20, 0)
            self._held.append((descriptor, mmap.mmap(descriptor, 0, prot=mmap.PROT_READ), content))

    def look_again(self) -> None:
        """What is open and mapped stays as it was, whatever is evicted and whoever dies."""
        if not self._held:
            return
        descriptor, view, content = self._held.pop(self._choose.randrange(len(self._held)))
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(descriptor, 1 << 20, 0) == content
        assert view[:] == content
        view.close()
        os.close(descriptor)

    def _some_entry(self) -> Path | None:
        names = os.listdir(self._published)
        return self._published / self._choose.choice(names) if names else None
