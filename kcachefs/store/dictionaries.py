"""Dictionaries: the bytes that a store's objects have in common, learned from samples, to compress them further.

Most objects are small, and a kernel has more in common with other kernels than within itself. A dictionary holds the
shared bytes, so that each object stores only its own. A compressed frame names its dictionary by number; frames without
one decode as usual.

Each dictionary is a file, written and synced before any object needs it, and never changed or removed afterwards: a new
one is learned only when the store has grown fourfold, so there are few.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

import zstandard
from blake3 import blake3

from kcachefs.errors import ObjectDamaged
from kcachefs.store.descriptor import remove_half_written, replace_file, sync_directory

SIZE = 256 << 10
"""Plain bytes of a dictionary; on disk it takes a third of that."""
SAMPLES_MIN, SAMPLES_MAX = 1 << 20, 4 << 20
"""Bytes of samples to learn from."""
SAMPLE_SIZE = 32 << 10
"""Bytes at the beginning of a frame that serve as a sample."""
GROWTH = 4
"""A new dictionary is learned once the store holds this many times the bytes that it held at the last learning."""
_FIRST = 1 << 15
"""Numbers below this are reserved by zstd."""
_HEAD = struct.Struct("<8sIQ")  # magic, number, plain bytes that the store held
_MAGIC = b"kcdictio"
_NAME = re.compile(r"([0-9a-f]{8})\.dict")
_SEGMENT = 1024
"""The length of the pieces that zstd makes a dictionary from: the best on real caches, and quick."""


class Dictionaries:
    """The dictionaries of one store, by number. Any thread may look one up; one thread at a time learns."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._loaded: dict[int, zstandard.ZstdCompressionDict] = {}
        self._allocated: int | None = None

    def numbers(self) -> list[int]:
        """The numbers of all dictionaries, the oldest first."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        return sorted(int(match[1], 16) for name in names if (match := _NAME.fullmatch(name)))

    def path(self, number: int) -> Path:
        return self.directory / f"{number:08x}.dict"

    def get(self, number: int) -> zstandard.ZstdCompressionDict:
        """One dictionary. If this raises ObjectDamaged or FileNotFoundError, nothing made with it can be decoded."""
        found = self._loaded.get(number)
        if found is None:
            with self._lock:
                found = self._loaded[number] = zstandard.ZstdCompressionDict(self._read(number)[1])
        return found

    def is_due(self, plain: int) -> bool:
        """Whether a store that holds this many plain bytes has outgrown its newest dictionary, or has none."""
        numbers = self.numbers()
        if not numbers:
            return plain >= SAMPLES_MIN
        try:
            return plain >= GROWTH * self._read(numbers[-1])[0]
        except (ObjectDamaged, FileNotFoundError):
            return True

    def newest(self) -> int:
        """The number of the newest intact dictionary; 0 if there is none."""
        for number in reversed(self.numbers()):
            try:
                self.get(number)
                return number
            except (ObjectDamaged, FileNotFoundError):
                continue
        return 0

    def learn(self, samples: Sequence[bytes], plain: int) -> int:
        """Make a dictionary from samples of a store that holds `plain` bytes; 0 if they have nothing in common."""
        # Also above the numbers in memory: if somebody removed the newest file, its number still means that one.
        number = max([*self.numbers(), *self._loaded], default=_FIRST - 1) + 1
        try:
            learned = zstandard.train_dictionary(SIZE, list(samples), k=_SEGMENT, d=8, dict_id=number)
        except zstandard.ZstdError:  # too few, or too much alike
            return 0
        head = _HEAD.pack(_MAGIC, number, plain)
        body = head + zstandard.ZstdCompressor(level=19).compress(learned.as_bytes())
        if not self.directory.is_dir():  # a store of format 2 has no such folder
            os.mkdir(self.directory, 0o700)
            sync_directory(self.directory.parent)
        replace_file(self.path(number), body + blake3(body).digest(16))
        self._allocated = None
        return number

    def remove_leftovers(self) -> None:
        """Remove half-written dictionaries that a kill left. Nobody else may have the store open."""
        with contextlib.suppress(FileNotFoundError):
            remove_half_written(self.directory, _NAME)

    def problem(self, number: int) -> str:
        """What is wrong with a dictionary on the disk; empty if nothing is."""
        try:
            self._read(number)
        except (ObjectDamaged, FileNotFoundError) as error:
            return str(error)
        return ""

    def allocated_bytes(self) -> int:
        """What the dictionaries take on the disk. Kept after the first call, because callers ask again and again."""
        if self._allocated is None:
            self._allocated = sum(os.stat(self.path(number)).st_blocks * 512 for number in self.numbers())
        return self._allocated

    def _read(self, number: int) -> tuple[int, bytes]:
        """The number of bytes that the store held when it was learned, and the dictionary itself, checked."""
        try:
            raw = self.path(number).read_bytes()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise ObjectDamaged(f"dictionary {number:08x} cannot be read: {error.strerror}") from error
        if len(raw) < _HEAD.size + 16 or blake3(raw[:-16]).digest(16) != raw[-16:]:
            raise ObjectDamaged(f"dictionary {number:08x} fails its check")
        magic, own, plain = _HEAD.unpack_from(raw)
        if magic != _MAGIC or own != number:
            raise ObjectDamaged(f"dictionary {number:08x} is another one")
        try:
            return plain, zstandard.ZstdDecompressor().decompress(raw[_HEAD.size : -16], max_output_size=2 * SIZE)
        except zstandard.ZstdError as error:
            raise ObjectDamaged(f"dictionary {number:08x} does not decode: {error}") from None
