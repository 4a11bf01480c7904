"""A killed worker is replaced while the mount stays in use."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from tests.daemon.kills import fsck, kill_worker
from tests.engines.mounting import Mount, temporary_folder

pytestmark = pytest.mark.mount


@pytest.mark.usefixtures("forked")
def test_open_mapped_unlinked_and_half_written_files_go_on() -> None:
    with temporary_folder() as base:
        with Mount(base / "mount", base / "store", "direct") as mount:
            use_through_kills(mount)
        fsck(base / "store")


@pytest.mark.usefixtures("forked")
def test_more_files_are_open_than_the_daemon_may_have() -> None:
    """A hard limit holds for the daemon too: what it cannot keep open, it opens again."""
    files, size = 50, 1_200_000
    with temporary_folder() as base, Mount(base / "mount", base / "store", "direct") as mount, ExitStack() as opened:
        mount.umount()
        command = [sys.executable, "-m", "kcachefs", "mount", str(mount.mountpoint), "--store", str(mount.store)]
        subprocess.run(["prlimit", "--nofile=64", "--", *command], check=True, capture_output=True)
        written = [
            opened.enter_context(open(mount.mountpoint / "triton" / f"{number}", "w+b", buffering=0))
            for number in range(files)
        ]
        for number, file in enumerate(written):
            assert file.write(bytes([number]) * size) == size
        for number, file in enumerate(written):
            assert os.pread(file.fileno(), size, 0) == bytes([number]) * size


def use_through_kills(mount: Mount) -> None:
    root = mount.mountpoint / "triton"
    (root / "read").write_bytes(b"r" * 300_000)
    (root / "mapped").write_bytes(b"m" * 300_000)
    (root / "gone").write_bytes(b"g" * 300_000)
    with open(root / "read", "rb") as reading, open(root / "gone", "rb") as gone, open(root / "half", "wb") as half:
        with open(root / "mapped", "rb") as file:
            view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        half.write(b"first ")
        half.flush()
        (root / "gone").unlink()
        for turn in range(3):
            kill_worker(mount)
            half.write(b"%d " % turn)
            half.flush()
            os.posix_fadvise(gone.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(gone.fileno(), 300_001, 0) == b"g" * 300_000
            assert os.pread(reading.fileno(), 300_001, 0) == b"r" * 300_000
            assert view[:] == b"m" * 300_000
        view.close()
    assert (root / "half").read_bytes() == b"first 0 1 2 "
    assert sorted(os.listdir(root)) == ["half", "mapped", "read"]
