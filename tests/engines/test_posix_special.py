"""FIFOs, sockets and devices as names."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from tests.engines.callers import Child
from tests.engines.refusals import refused

pytestmark = pytest.mark.usefixtures("as_user")


def test_a_fifo_is_a_fifo_with_its_mode_and_owner(root: Path) -> None:
    os.mkfifo(root / "fifo", 0o600)
    status = (root / "fifo").stat()
    assert stat.S_ISFIFO(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert (status.st_nlink, status.st_size) == (1, 0)
    assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())


def test_a_fifo_carries_bytes_between_processes(root: Path) -> None:
    os.mkfifo(root / "fifo")
    with Child(lambda: (root / "fifo").write_bytes(b"through the fifo")) as writer:
        assert (root / "fifo").read_bytes() == b"through the fifo"
        assert writer.result() == 16
    assert (root / "fifo").stat().st_size == 0


def test_a_fifo_without_a_reader_is_not_opened_for_writing(root: Path) -> None:
    os.mkfifo(root / "fifo")
    with refused(errno.ENXIO):
        os.open(root / "fifo", os.O_WRONLY | os.O_NONBLOCK)


def test_a_fifo_is_renamed_linked_and_removed(root: Path) -> None:
    os.mkfifo(root / "fifo")
    (root / "fifo").rename(root / "moved")
    os.link(root / "moved", root / "second")
    assert stat.S_ISFIFO((root / "second").stat().st_mode)
    (root / "moved").unlink()
    (root / "second").unlink()
    assert os.listdir(root) == []


def test_mkfifo_refuses_a_name_that_exists(root: Path) -> None:
    (root / "file").touch()
    (root / "folder").mkdir()
    (root / "dangling").symlink_to("nowhere")
    for name in ("file", "folder", "dangling"):
        with refused(errno.EEXIST):
            os.mkfifo(root / name)


def test_a_socket_is_bound_connected_to_and_removed(root: Path) -> None:
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    # A socket's address has at most 108 bytes; this keeps it short wherever the test runs.
    address = f"/proc/self/fd/{folder}/socket"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(address)
        server.listen()
        status = (root / "socket").stat()
        assert stat.S_ISSOCK(status.st_mode)
        assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())
        client.connect(address)
        client.sendall(b"hello")
        accepted, _ = server.accept()
        with accepted:
            assert accepted.recv(10) == b"hello"
        with socket.socket(socket.AF_UNIX) as second, refused(errno.EADDRINUSE):
            second.bind(address)
    os.close(folder)
    with refused(errno.ENXIO):
        os.open(root / "socket", os.O_RDONLY)
    (root / "socket").unlink()
    assert os.listdir(root) == []


def test_mknod_makes_a_regular_file(root: Path) -> None:
    os.mknod(root / "file", 0o600 | stat.S_IFREG)
    assert stat.S_ISREG((root / "file").stat().st_mode)
    (root / "file").write_bytes(b"content")
    assert (root / "file").read_bytes() == b"content"


def test_a_device_is_made_with_its_number_or_refused(root: Path) -> None:
    """A cache needs no devices: EPERM, which every unprivileged user gets anyway, is right for all."""
    try:
        os.mknod(root / "device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        assert os.listdir(root) == []
    else:
        status = (root / "device").stat()
        assert stat.S_ISCHR(status.st_mode)
        assert status.st_rdev == os.makedev(1, 3)
