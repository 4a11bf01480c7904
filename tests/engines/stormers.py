"""One process of a storm: what it does in the shared directory, and a ledger of what it must find there."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SHARED = [f"shared-{number}" for number in range(6)]
LOCKS = [f"lock-{number}" for number in range(3)]
COMMON = "common"
CONTESTED = {*SHARED, *LOCKS, COMMON}

KEEP = 30


class Stormer:
    """Owns the names in its `ledger`, which nobody else touches, and competes with others for the contested ones."""

    def __init__(self, root: Path, number: int) -> None:
        self.root = root
        self.number = number
        self.ledger: dict[str, str] = {}
        self.turns = 0
        self.choose = random.Random(f"{os.environ['KCACHEFS_SEED']} {number}")

    def rage(self, turns: int) -> Stormer:
        """Do this many random things."""
        deeds: list[tuple[Callable[[], None], int]] = [
            (self.publish, 8),
            (self.create_in_place, 5),
            (self.publish_from_a_folder, 4),
            (self.overwrite, 4),
            (self.append, 3),
            (self.rename, 6),
            (self.link, 2),
            (self.delete, 5),
            (self.read_own, 8),
            (self.read_of_others, 8),
            (self.replace_shared, 8),
            (self.read_shared, 8),
            (self.take_lock, 5),
            (self.use_common_folder, 4),
            (self.list_all, 1),
        ]
        for _ in range(turns):
            self.turns += 1
            self.choose.choices(*zip(*deeds, strict=True))[0]()
            if len(self.ledger) > KEEP:
                self.delete()
        return self

    # --- its own names: the directory must hold whatever the ledger says --------------------------------------------

    def publish(self) -> None:
        temporary = self.root / f".{self.number}.tmp"
        tag = self.tag()
        temporary.write_bytes(body(tag))
        name = self.own_name()
        os.replace(temporary, self.root / name)
        self.ledger[name] = tag

    def create_in_place(self) -> None:
        name, tag = self.own_name(), self.tag()
        content = body(tag)
        descriptor = os.open(self.root / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        half = len(content) // 2
        os.pwrite(descriptor, content[half:], half)
        os.pwrite(descriptor, content[:half], 0)
        os.close(descriptor)
        self.ledger[name] = tag

    def publish_from_a_folder(self) -> None:
        """As Triton does, including its attempt to remove a folder that is not empty."""
        folder = self.root / f"tmp.pid_{self.number}"
        folder.mkdir()
        name, tag = self.own_name(), self.tag()
        (folder / name).write_bytes(body(tag))
        os.replace(folder / name, self.root / name)
        self.ledger[name] = tag
        folder.rmdir()
        tolerating(lambda: os.rmdir(self.root), errno.ENOTEMPTY)

    def overwrite(self) -> None:
        if self.ledger:
            name, tag = self.any_own(), self.tag()
            for twin in self.twins(name):
                self.ledger[twin] = tag
            (self.root / name).write_bytes(body(tag))

    def append(self) -> None:
        """Two steps; the second restores what the ledger says."""
        if self.ledger:
            path = self.root / self.any_own()
            size = path.stat().st_size
            with open(path, "ab", buffering=0) as file:
                file.write(b"more")
                assert os.fstat(file.fileno()).st_size == size + 4
                os.ftruncate(file.fileno(), size)

    def rename(self) -> None:
        if self.ledger:
            old, new = self.any_own(), self.own_name()
            os.rename(self.root / old, self.root / new)
            self.ledger[new] = self.ledger.pop(old)

    def link(self) -> None:
        if self.ledger:
            old, new = self.any_own(), self.own_name()
            os.link(self.root / old, self.root / new)
            self.ledger[new] = self.ledger[old]

    def delete(self) -> None:
        if self.ledger:
            name = self.any_own()
            os.unlink(self.root / name)
            del self.ledger[name]

    def read_own(self) -> None:
        if self.ledger:
            self.check(self.any_own())

    def check(self, name: str) -> None:
        content = (self.root / name).read_bytes()
        assert content == body(self.ledger[name]), f"{name} does not hold what was written as {self.ledger[name]}"

    def check_all(self) -> None:
        for name in self.ledger:
            self.check(name)
            links = (self.root / name).stat().st_nlink
            assert links == len(self.twins(name)), f"{name} has {links} links"

    def list_all(self) -> None:
        mine = f"of-{self.number}-"
        assert {name for name in os.listdir(self.root) if name.startswith(mine)} == set(self.ledger)

    # --- contested names: whatever exists is whole, and errors are those of a race ----------------------------------

    def read_of_others(self) -> None:
        names = os.listdir(self.root)
        with suppress(FileNotFoundError, IsADirectoryError):
            (self.root / self.choose.choice(names or [COMMON])).read_bytes()

    def replace_shared(self) -> None:
        temporary = self.root / f".{self.number}.shared.tmp"
        temporary.write_bytes(body(self.tag()))
        os.replace(temporary, self.root / self.choose.choice(SHARED))

    def read_shared(self) -> None:
        with suppress(FileNotFoundError):
            check_whole((self.root / self.choose.choice(SHARED)).read_bytes())

    def take_lock(self) -> None:
        path = self.root / self.choose.choice(LOCKS)
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        os.write(descriptor, b"%d" % self.number)
        assert path.read_bytes() == b"%d" % self.number, f"{path.name} has two owners"
        assert path.stat().st_ino == os.fstat(descriptor).st_ino
        os.unlink(path)
        os.close(descriptor)

    def use_common_folder(self) -> None:
        folder = self.root / COMMON
        mine = folder / f"{self.number}"
        tolerating(folder.mkdir, errno.EEXIST)
        if tolerating(lambda: mine.write_bytes(b"mine"), errno.ENOENT):
            assert mine.read_bytes() == b"mine"
            mine.unlink()
        tolerating(folder.rmdir, errno.ENOTEMPTY, errno.ENOENT)

    # --- choices ----------------------------------------------------------------------------------------------------

    def tag(self) -> str:
        return f"{self.number} {self.turns} {self.choose.choice((0, 10, 1000, 16_000, 16_000, 60_000))}"

    def own_name(self) -> str:
        return f"of-{self.number}-{self.turns}"

    def any_own(self) -> str:
        return self.choose.choice(sorted(self.ledger))

    def twins(self, name: str) -> list[str]:
        """Names of the same file: a stormer never writes two files with the same tag."""
        return [other for other, tag in self.ledger.items() if tag == self.ledger[name]]


def body(tag: str) -> bytes:
    """Content that repeats its tag, so that a reader can tell whether it is whole."""
    head = tag.encode() + b"\n"
    return head + head[:1] * int(tag.split()[2])


def check_whole(content: bytes) -> None:
    tag = content.partition(b"\n")[0].decode()
    assert content == body(tag), f"{len(content)} bytes that begin with {tag!r} are not a whole file"


def check_contested(root: Path) -> None:
    for name in SHARED:
        check_whole((root / name).read_bytes())
    assert not [name for name in os.listdir(root) if name in LOCKS or name == COMMON]


def tolerating(deed: Callable[[], object], *numbers: int) -> bool:
    """Whether it succeeded; these errors may come from a race."""
    try:
        deed()
    except OSError as error:
        if error.errno not in numbers:
            raise
        return False
    return True
