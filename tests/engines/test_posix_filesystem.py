"""The filesystem as a whole: its sizes, its extended attributes, its top-level folders."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from kcachefs.core.options import PREFERRED_SIZE
from tests.engines.callers import OTHER, in_thread
from tests.engines.mounting import Mount, of_a_mount_only
from tests.engines.refusals import refused

NAMESPACES = ("triton", "inductor", "cuda", "nvrtc")


def test_the_numbers_of_the_filesystem_are_sane(root: Path) -> None:
    numbers = os.statvfs(root)
    assert numbers.f_namemax == 255
    assert numbers.f_bsize >= 512
    assert numbers.f_frsize >= 512
    assert numbers.f_blocks > 0
    assert 0 <= numbers.f_bavail <= numbers.f_bfree <= numbers.f_blocks
    assert 0 <= numbers.f_favail <= numbers.f_ffree <= numbers.f_files


def test_a_descriptor_gives_the_same_numbers(root: Path) -> None:
    with open(root / "file", "wb") as file:
        by_name, by_descriptor = os.statvfs(root), os.fstatvfs(file.fileno())
    assert (by_name.f_blocks, by_name.f_namemax) == (by_descriptor.f_blocks, by_descriptor.f_namemax)


@of_a_mount_only
def test_programs_are_told_to_write_in_large_pieces(root: Path) -> None:
    with open(root / "file", "wb") as file:
        assert os.fstat(file.fileno()).st_blksize == (root / "file").stat().st_blksize == PREFERRED_SIZE


def test_df_shows_the_filesystem(root: Path) -> None:
    numbers = os.statvfs(root)
    said = subprocess.check_output(["df", "-B1", "--output=size", root], text=True).split()
    assert int(said[-1]) == numbers.f_blocks * numbers.f_frsize


def test_everything_is_on_one_device(root: Path) -> None:
    (root / "folder").mkdir()
    (root / "folder" / "file").touch()
    assert {path.stat().st_dev for path in (root, root / "folder", root / "folder" / "file")} == {root.stat().st_dev}


def test_missing_extended_attributes_are_reported_as_missing_or_unsupported(root: Path) -> None:
    (root / "file").touch()
    with refused(errno.ENODATA, errno.EOPNOTSUPP):
        os.getxattr(root / "file", "user.absent")
    with refused(errno.ENODATA, errno.EOPNOTSUPP):
        os.removexattr(root / "file", "user.absent")


@of_a_mount_only
def test_extended_attributes_are_not_offered(root: Path) -> None:
    (root / "file").touch()
    for path in (root, root / "file"):
        with refused(errno.EOPNOTSUPP):
            os.setxattr(path, "user.name", b"value")
        with refused(errno.EOPNOTSUPP):
            os.getxattr(path, "user.name")
        try:
            assert os.listxattr(path) == []
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise


@of_a_mount_only
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_namespace_is_there_and_cannot_be_removed(mount: Mount, namespace: str) -> None:
    folder = mount.mountpoint / namespace
    assert folder.is_dir()
    with refused(errno.ENOTEMPTY, errno.EPERM):
        folder.rmdir()
    assert folder.is_dir()
    assert namespace in os.listdir(mount.mountpoint)


@of_a_mount_only
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_climbing_removedirs_stops_at_the_namespace(mount: Mount, namespace: str) -> None:
    deep = mount.mountpoint / namespace / "entry" / "tmp.pid_1"
    deep.mkdir(parents=True)
    os.removedirs(deep)
    assert os.listdir(mount.mountpoint / namespace) == []


@of_a_mount_only
def test_a_namespace_cannot_be_moved_or_replaced(mount: Mount) -> None:
    folder = mount.mountpoint / "triton"
    with refused(errno.ENOTEMPTY, errno.EPERM, errno.EBUSY):
        folder.rename(mount.mountpoint / "elsewhere")
    empty = mount.mountpoint / "empty"
    empty.mkdir()
    with refused(errno.ENOTEMPTY, errno.EPERM, errno.EBUSY):
        empty.rename(folder)
    empty.rmdir()
    assert folder.is_dir()
    assert "elsewhere" not in os.listdir(mount.mountpoint)


@of_a_mount_only
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_any_user_may_work_in_a_namespace(mount: Mount) -> None:
    folder = mount.mountpoint / "triton" / "of-another-user"

    def work() -> bytes:
        folder.mkdir()
        (folder / "kernel").write_bytes(b"content")
        os.replace(folder / "kernel", folder / "kernel.cubin")
        content = (folder / "kernel.cubin").read_bytes()
        (folder / "kernel.cubin").unlink()
        folder.rmdir()
        return content

    assert in_thread(work, OTHER) == b"content"


@of_a_mount_only
def test_the_mount_is_a_device_of_its_own(root: Path, mount: Mount) -> None:
    assert root.stat().st_dev != mount.mountpoint.parent.stat().st_dev
    with refused(errno.EXDEV):
        os.rename(root, mount.mountpoint.parent / "outside")
