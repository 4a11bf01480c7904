"""Large files on a mount: written as compilers write them, mapped, and sparse, while others are served."""

from __future__ import annotations

import hashlib
import mmap
import os
import random
import select
from pathlib import Path

import pytest

from tests.engines.callers import Child
from tests.engines.mounting import Mount, of_a_mount_only

pytestmark = of_a_mount_only

PAGE = 4096


@pytest.mark.slow
def test_a_precompiled_header_is_written_in_pieces_and_mapped_while_others_are_served(root: Path, mount: Mount) -> None:
    stop_reading, stop = os.pipe()
    with Child(lambda: _small_operations(root / "small", stop_reading, stop)) as neighbour:
        expected = _write_like_a_compiler(root / "header.gch")
        _compare_mapped(root / "header.gch", expected)
        os.close(stop)
        assert neighbour.result() > 0
    os.close(stop_reading)
    mount.remount()
    _compare_mapped(root / "header.gch", expected)


def _write_like_a_compiler(path: Path) -> bytearray:
    """Write 25 MB, more than a volume holds, in 6,500 pages, a third of them after a seek, some over earlier ones."""
    rng = random.Random(3)
    expected = bytearray(6100 * PAGE)
    noise, words = rng.randbytes(1 << 20), b"namespace std { template <typename T> class vector; } " * 200
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    position = 0
    for number in range(6500):
        if number % 3 == 0:
            position = rng.randrange(min(number, 5500) + 600)
        source = noise if number % 7 == 0 else words
        start = rng.randrange(len(source) - PAGE)
        piece = source[start : start + PAGE]
        assert os.pwrite(descriptor, piece, position * PAGE) == PAGE
        expected[position * PAGE : (position + 1) * PAGE] = piece
        position = (position + 1) % 6100
        if number % 500 == 0:  # compilers read back what they wrote
            assert os.pread(descriptor, PAGE, (position - 1) * PAGE) == piece
    os.ftruncate(descriptor, len(expected))
    os.close(descriptor)
    return expected


def _compare_mapped(path: Path, expected: bytearray) -> None:
    with open(path, "rb") as file:
        with mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
            assert len(mapped) == len(expected)
            assert hashlib.sha1(mapped).digest() == hashlib.sha1(expected).digest()
            mapped[:4] = b"mine"  # a private page: nobody else sees it
    with open(path, "rb") as file:
        assert file.read(4) == expected[:4]


def _small_operations(folder: Path, stop_reading: int, stop: int) -> int:
    """Do what a cache sees all the time with pauses, until told to stop; returns the number of rounds."""
    os.close(stop)
    folder.mkdir()
    rounds = 0
    while not select.select([stop_reading], [], [], 0.01)[0]:
        content = b"%d" % rounds * 500
        (folder / "tmp").write_bytes(content)
        os.replace(folder / "tmp", folder / f"kernel{rounds % 50}")
        assert (folder / f"kernel{rounds % 50}").read_bytes() == content
        assert not (folder / f"absent{rounds}").exists()
        (folder / "dir").mkdir()
        (folder / "dir").rmdir()
        rounds += 1
    return rounds


def test_a_sparse_file_of_a_terabyte_is_kept_without_its_zeros(root: Path, mount: Mount) -> None:
    with open(root / "sparse", "wb") as file:
        file.write(b"begin")
        file.seek(1 << 39)
        file.write(b"middle")
        file.truncate(1 << 40)
    before = _disk_bytes(mount.store)
    for _ in range(2):
        assert (root / "sparse").stat().st_size == 1 << 40
        with open(root / "sparse", "rb") as file:
            assert file.read(10) == b"begin" + bytes(5)
            file.seek((1 << 39) - 5)
            assert file.read(16) == bytes(5) + b"middle" + bytes(5)
            file.seek((1 << 40) - 10)
            assert file.read() == bytes(10)
        mount.remount()
    assert _disk_bytes(mount.store) - before < 16 << 20
    (root / "sparse").unlink()


def test_a_sparse_file_that_is_sealed_reads_as_it_was(root: Path, mount: Mount) -> None:
    expected = bytearray(20 << 20)
    with open(root / "sparse", "wb") as file:
        for place in (0, 7 << 20, (17 << 20) + 5):
            file.seek(place)
            file.write(b"island" * 1000)
            expected[place : place + 6000] = b"island" * 1000
        file.truncate(len(expected))
    for _ in range(2):
        assert hashlib.sha1((root / "sparse").read_bytes()).digest() == hashlib.sha1(expected).digest()
        mount.remount()


def _disk_bytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
