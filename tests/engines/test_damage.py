"""Bytes that went bad on disk, read through a mount: one error, then a miss, and writing the file again heals it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.engines.callers import Child
from tests.engines.mounting import Mount, of_a_mount_only
from tests.engines.refusals import refused
from tests.waiting import until

pytestmark = of_a_mount_only


@pytest.mark.parametrize("size", [16 << 10, 5 << 20], ids=["small", "large"])
def test_a_damaged_file_fails_once_is_gone_and_can_be_made_again(root: Path, mount: Mount, size: int) -> None:
    content = os.urandom(size)
    (root / "file").write_bytes(content)
    (root / "neighbour").write_bytes(b"unharmed" * 1000)
    (root / "elsewhere").mkdir()
    os.link(root / "file", root / "elsewhere" / "hard")
    mount.umount()
    flip_a_bit(mount.store, content)
    mount.start()
    assert (root / "file").stat().st_size == size
    with refused(errno.EIO), open(root / "file", "rb") as file:
        file.read()
    until(lambda: not (root / "file").exists())
    until(lambda: not (root / "elsewhere" / "hard").exists())
    with refused(errno.ENOENT):
        os.open(root / "file", os.O_RDONLY)
    assert (root / "neighbour").read_bytes() == b"unharmed" * 1000
    (root / "file").write_bytes(content)
    assert (root / "file").read_bytes() == content
    mount.remount()
    assert (root / "file").read_bytes() == content
    assert sorted(os.listdir(root)) == ["elsewhere", "file", "neighbour"]


def test_a_damaged_file_that_is_written_to_is_gone_too(root: Path, mount: Mount) -> None:
    content = os.urandom(100_000)
    (root / "file").write_bytes(content)
    mount.umount()
    flip_a_bit(mount.store, content)
    mount.start()
    with refused(errno.EIO), open(root / "file", "r+b", buffering=0) as file:
        file.write(b"new")
    until(lambda: not (root / "file").exists())
    (root / "file").write_bytes(content)
    assert (root / "file").read_bytes() == content


def flip_a_bit(store: Path, content: bytes) -> None:
    """Flip it in the volume that holds these bytes, which do not compress."""
    for volume in (store / "volumes").rglob("*"):
        if not volume.is_file():
            continue
        raw = bytearray(volume.read_bytes())
        place = raw.find(content[1000:1064])
        if place >= 0:
            raw[place] ^= 1
            volume.write_bytes(raw)
            return
    raise AssertionError("the bytes are in no volume")


def test_a_reader_that_is_killed_in_the_middle_of_a_large_file_ends_at_once(root: Path, mount: Mount) -> None:
    content = os.urandom(1 << 16) * 512
    (root / "large").write_bytes(content)
    mount.remount()

    def read_forever() -> None:
        descriptor = os.open(root / "large", os.O_RDONLY)
        while True:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            for start in range(0, len(content), 1 << 20):
                assert os.pread(descriptor, 100, start) == content[start : start + 100]

    for _ in range(10):
        with Child(read_forever) as reader:
            until(lambda pid=reader.pid: _read_calls(pid) > 20)  # type: ignore[misc]
            reader.kill()
    assert (root / "large").read_bytes() == content
    (root / "after").write_bytes(b"works")


def _read_calls(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().split()
    return int(lines[lines.index("syscr:") + 1])
