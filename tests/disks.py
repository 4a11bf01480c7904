"""Small real disks for tests: an ext4 image on a loop device, or a tmpfs of a given size. Always unmounted again.

And where the disk of the machine keeps folders.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import until

_EXT4_IOC_SHUTDOWN = 0x8004587D
_WITHOUT_A_FLUSH = 2
_FS_IOC_GETFLAGS, _FS_IOC_SETFLAGS = 0x80086601, 0x40086602
_FS_TOPDIR_FL = 0x20000

need_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


def spread_folders(parent: Path) -> None:
    """Have ext4 keep what is made in that folder from now on far apart; other file systems need not be told."""
    fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.suppress(OSError):
        [flags] = struct.unpack("I", fcntl.ioctl(fd, _FS_IOC_GETFLAGS, bytes(4)))
        fcntl.ioctl(fd, _FS_IOC_SETFLAGS, struct.pack("I", flags | _FS_TOPDIR_FL))
    os.close(fd)


class Disk:
    """A mounted filesystem of known size."""

    def __init__(self, path: Path, image: Path | None = None) -> None:
        self.path = path
        self.image = image
        self._ballast = path / "ballast"

    @property
    def free(self) -> int:
        """Bytes that users may still write."""
        state = os.statvfs(self.path)
        return state.f_bavail * state.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Fill the disk until only about `leave` bytes are free."""
        with open(self._ballast, "ab", buffering=0) as file:
            size = 1 << 20
            while size:
                try:
                    file.write(bytes(size))
                except OSError:
                    size //= 2
            # Inodes and directory blocks count too: nothing may be left that a write needs first.
            os.fsync(file.fileno())
        if leave:
            os.truncate(self._ballast, max(0, self._ballast.stat().st_size - leave))

    def make_room(self) -> None:
        size = self._ballast.stat().st_blocks * 512
        self._ballast.unlink()
        # While the kernel still writes it back, its blocks are taken.
        until(lambda: self.free >= min(size // 2, 256 << 10), "blocks of the ballast are free")

    def die(self) -> None:
        """From now on an ext4 answers every read and write with EIO."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _EXT4_IOC_SHUTDOWN, struct.pack("I", _WITHOUT_A_FLUSH))
        finally:
            os.close(fd)

    def fail(self) -> None:
        """An error makes an ext4 read-only, as most distributions configure it, whoever writes to it."""
        table = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        [device] = [device for device, path, *_ in table if path == str(self.path)]
        _run("mount", "-o", "remount,errors=remount-ro", str(self.path))
        Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("1")

    def remount_read_only(self) -> None:
        _run("mount", "-o", "remount,ro", str(self.path))


@contextlib.contextmanager
def ext4(folder: Path, name: str = "disk", megabytes: int = 24, image: Path | None = None) -> Iterator[Disk]:
    """A new ext4, or the one in `image`. It writes nothing early: what is not synced stays in memory."""
    if image is None:
        image = folder / f"{name}.img"
        with open(image, "wb") as file:
            file.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", "-m", "0", "-J", "size=4", "-E", "lazy_itable_init=0", str(image))
    with _mounted(folder / name, "-o", "loop,commit=300,noauto_da_alloc", str(image)) as path:
        yield Disk(path, image)


@contextlib.contextmanager
def tmpfs(folder: Path, name: str = "tmpfs", megabytes: int = 24, inodes: int | None = None) -> Iterator[Disk]:
    limits = f"size={megabytes}m" + (f",nr_inodes={inodes}" if inodes is not None else "")
    with _mounted(folder / name, "-t", "tmpfs", "-o", limits, "none") as path:
        yield Disk(path)


@contextlib.contextmanager
def _mounted(path: Path, *arguments: str) -> Iterator[Path]:
    path.mkdir()
    _run("mount", *arguments, str(path))
    try:
        yield path
    finally:
        # A failed test may leave a file open; the mount is detached anyway, the loop device goes with its last user.
        if subprocess.run(["umount", str(path)], capture_output=True, check=False).returncode:
            _run("umount", "--lazy", str(path))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
