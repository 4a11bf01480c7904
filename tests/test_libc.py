"""libc: the declared calls do what the kernel's manual says, and raise what it answers."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from pathlib import Path

import pytest

from kcachefs import libc

MIB = 1 << 20


def test_fallocate_reserves_beyond_four_gigabytes_and_keeps_the_size(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        libc.fallocate(file.fileno(), libc.FALLOC_FL_KEEP_SIZE, 5 << 30, MIB)
        found = os.fstat(file.fileno())
    assert (found.st_size, found.st_blocks * 512) == (0, MIB)


def test_a_punched_hole_gives_its_blocks_back(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        file.write(b"x" * 2 * MIB)
        file.flush()
        os.fsync(file.fileno())
        libc.fallocate(file.fileno(), libc.FALLOC_FL_PUNCH_HOLE | libc.FALLOC_FL_KEEP_SIZE, 0, MIB)
        assert os.fstat(file.fileno()).st_blocks * 512 == MIB
    assert (tmp_path / "file").read_bytes() == bytes(MIB) + b"x" * MIB


def test_the_mount_of_a_path_has_a_number_of_its_own() -> None:
    assert libc.mount_id(b"/proc/self") == libc.mount_id(b"/proc") != libc.mount_id(b"/")
    with pytest.raises(FileNotFoundError):
        libc.mount_id(b"/nothing/is/here")


def test_a_failed_call_raises_its_errno() -> None:
    with pytest.raises(OSError) as failed:
        libc.fallocate(-1, 0, 0, 1)
    assert failed.value.errno == errno.EBADF
    with pytest.raises(OSError) as failed:
        libc.umount2(b"/nothing/is/here", 0)
    assert failed.value.errno in (errno.ENOENT, errno.EPERM)
    assert libc.write_in_one_go(-1, b"x", 1) == -1
    assert libc.failure().errno == errno.EBADF


def test_write_in_one_go_writes_every_byte(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4
    with open(tmp_path / "file", "wb") as file:
        assert libc.write_in_one_go(file.fileno(), data, len(data)) == len(data)
    assert (tmp_path / "file").read_bytes() == data


def test_madvise_takes_a_64_bit_address() -> None:
    with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:4] = b"here"
        start = _address_of(memory)
        libc.madvise(start, mmap.PAGESIZE, libc.MADV_DONTNEED)
        assert memory[:4] == bytes(4), "an anonymous page comes back empty"


def test_what_is_in_memory_is_copied_whole() -> None:
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        memory[:4] = b"a\0b\0"
        assert libc.bytes_at(_address_of(memory), 4) == b"a\0b\0"


def test_capget_says_what_proc_says() -> None:
    words = struct.unpack("<6I", libc.capget(struct.pack("<Ii", libc.CAPABILITY_VERSION, 0)))
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    assert words[0] | words[3] << 32 == int(status["CapEff"], 16)
    assert words[1] | words[4] << 32 == int(status["CapPrm"], 16)


def _address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
