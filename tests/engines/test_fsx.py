"""One file, thousands of random operations, compared with a bytearray after each."""

from __future__ import annotations

import errno
import mmap
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.engines.mounting import Place
from tests.engines.syscalls import FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, fallocate

LARGEST = 1 << 20
STEPS = 1200


@pytest.mark.parametrize("seed", range(4))
def test_one_file_is_what_its_history_says(root: Path, place: Place, seed: int) -> None:
    exercise(root / "file", place, seed)


def exercise(path: Path, place: Place, seed: int) -> None:
    exerciser = Exerciser(path, seed)
    try:
        for step in range(STEPS):
            exerciser.step()
            if step % 600 == 599:
                exerciser.restart(place.kill if step % 1200 == 599 else place.remount)
        exerciser.check_all()
    finally:
        exerciser.close()


class Exerciser:
    """The file, what it should hold, and the operations so far; a failure shows the last ones."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.choose = random.Random(seed)
        self.model = bytearray()
        self.history: list[str] = []
        self.descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        self.operations: list[tuple[Callable[[], None], int]] = [
            (self.read, 20),
            (self.write, 25),
            (self.append, 5),
            (self.mapped_read, 12),
            (self.mapped_write, 12),
            (self.shorten, 5),
            (self.lengthen, 4),
            (self.punch, 5),
            (self.copy, 5),
            (self.sync, 2),
            (self.reopen, 4),
            (self.check_all, 1),
        ]

    def step(self) -> None:
        operation = self.choose.choices(*zip(*self.operations, strict=True))[0]
        operation()
        size = os.fstat(self.descriptor).st_size
        assert size == len(self.model), self.story("wrong size")

    # --- the operations, each on the file and on the model ----------------------------------------------------------

    def read(self) -> None:
        offset, length = self.range_inside(slack=5000)
        self.note("read", offset, length)
        self.compare(os.pread(self.descriptor, length, offset), offset, length)

    def write(self) -> None:
        offset = self.choose.randrange(0, min(len(self.model) + 20_000, LARGEST))
        piece = self.piece(LARGEST - offset)
        self.note("write", offset, len(piece))
        assert os.pwrite(self.descriptor, piece, offset) == len(piece)
        self.put(offset, piece)

    def append(self) -> None:
        piece = self.piece(max(0, LARGEST - len(self.model)))
        self.note("append", len(self.model), len(piece))
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, piece)
        os.close(descriptor)
        self.model += piece

    def mapped_read(self) -> None:
        offset, length = self.range_inside()
        if length:
            self.note("mapped read", offset, length)
            kind = self.choose.choice((mmap.MAP_SHARED, mmap.MAP_PRIVATE))
            with mmap.mmap(self.descriptor, 0, kind, mmap.PROT_READ) as mapped:
                self.compare(mapped[offset : offset + length], offset, length)

    def mapped_write(self) -> None:
        offset, length = self.range_inside()
        if length:
            piece = self.choose.randbytes(length)
            self.note("mapped write", offset, length)
            with mmap.mmap(self.descriptor, 0) as mapped:
                mapped[offset : offset + length] = piece
                if self.choose.random() < 0.3:
                    mapped.flush()
            self.put(offset, piece)

    def shorten(self) -> None:
        self.truncate(self.choose.randrange(0, len(self.model) + 1))

    def lengthen(self) -> None:
        self.truncate(self.choose.randrange(len(self.model), LARGEST + 1))

    def truncate(self, size: int) -> None:
        self.note("truncate", len(self.model), size)
        if self.choose.random() < 0.5:
            os.ftruncate(self.descriptor, size)
        else:
            os.truncate(self.path, size)
        del self.model[size:]
        self.model += bytes(size - len(self.model))

    def punch(self) -> None:
        offset, length = self.range_inside()
        if length:
            self.note("punch", offset, length)
            try:
                fallocate(self.descriptor, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, offset, length)
            except OSError as error:
                # Not every filesystem has this one.
                if error.errno != errno.EOPNOTSUPP:
                    raise
            else:
                self.put(offset, bytes(length))

    def copy(self) -> None:
        source, length = self.range_inside()
        target = self.choose.randrange(0, LARGEST - length + 1)
        if abs(source - target) < length:
            return
        self.note(f"copy from {source}", target, length)
        copied = os.copy_file_range(self.descriptor, self.descriptor, length, source, target) if length else 0
        self.put(target, bytes(self.model[source : source + copied]))

    def sync(self) -> None:
        self.note("fsync", 0, 0)
        os.fsync(self.descriptor)

    def reopen(self) -> None:
        self.note("reopen", 0, 0)
        os.close(self.descriptor)
        self.descriptor = os.open(self.path, os.O_RDWR)

    def restart(self, how: Callable[[], None]) -> None:
        """Unmount and mount again; closing writes back what was mapped and not synced yet."""
        self.note(f"restart: {how.__name__}", 0, 0)
        os.close(self.descriptor)
        how()
        self.descriptor = os.open(self.path, os.O_RDWR)
        self.check_all()

    def check_all(self) -> None:
        self.note("check", 0, len(self.model))
        self.compare(self.path.read_bytes(), 0, LARGEST)

    # --- what the operations share ----------------------------------------------------------------------------------

    def range_inside(self, slack: int = 0) -> tuple[int, int]:
        end = len(self.model) + slack
        offset = self.choose.randrange(0, end) if end else 0
        return offset, min(self.choose.choice((1, 100, 4096, 10_000, 70_000)), end - offset)

    def piece(self, room: int) -> bytes:
        length = min(self.choose.choice((1, 7, 500, 4096, 20_000, 130_000)), room)
        if self.choose.random() < 0.5:
            return self.choose.randbytes(length)
        return bytes([self.choose.randrange(256)]) * length

    def put(self, offset: int, piece: bytes) -> None:
        if piece and len(self.model) < offset:
            self.model += bytes(offset - len(self.model))
        self.model[offset : offset + len(piece)] = piece

    def compare(self, got: bytes, offset: int, length: int) -> None:
        expected = self.model[offset : offset + length]
        if got != expected:
            where = next((at for at, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), "the end")
            raise AssertionError(self.story(f"{len(got)} bytes for {len(expected)}, differing from {where} on"))

    def note(self, name: str, offset: int, length: int) -> None:
        self.history.append(f"{len(self.history):5} {name} at {offset}, {length} bytes; size {len(self.model)}")

    def story(self, what: str) -> str:
        return "\n".join([what, *self.history[-30:]])

    def close(self) -> None:
        with suppress(OSError):
            os.close(self.descriptor)
