"""Permission checks for users other than root: EACCES where a permission is missing, EPERM where ownership is."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines.callers import OTHER, STRANGER, Identity, in_thread
from tests.engines.refusals import refused
from tests.engines.syscalls import RENAME_EXCHANGE, renameat2

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def folder(root: Path) -> Path:
    """A folder that belongs to root, with a file, a subfolder and a symlink that are open to everyone."""
    folder = root / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(b"content")
    (folder / "file").chmod(0o777)
    (folder / "sub").mkdir()
    (folder / "sub").chmod(0o777)
    (folder / "link").symlink_to("file")
    return folder


def denied(number: int, attempt: Callable[[], object], identity: Identity = OTHER) -> None:
    def try_it() -> None:
        with refused(number):
            attempt()

    in_thread(try_it, identity)


READING = (os.O_RDONLY, 0o4)
WRITING = (os.O_WRONLY, 0o2)
BOTH = (os.O_RDWR, 0o6)


@pytest.mark.parametrize(("flags", "right"), [READING, WRITING, BOTH], ids=["read", "write", "both"])
@pytest.mark.parametrize("shift", [6, 3, 0], ids=["owner", "group", "others"])
def test_exactly_the_matching_class_of_bits_decides(root: Path, flags: int, right: int, shift: int) -> None:
    identity = {6: OTHER, 3: Identity(STRANGER.uid, STRANGER.gid, (OTHER.gid,)), 0: STRANGER}[shift]
    file = root / "file"
    file.touch()
    os.chown(file, OTHER.uid, OTHER.gid)
    file.chmod(right << shift)
    in_thread(lambda: os.close(os.open(file, flags)), identity)
    file.chmod(0o777 & ~(right << shift))
    denied(errno.EACCES, lambda: os.open(file, flags), identity)


def test_access_tells_what_open_would_do(root: Path) -> None:
    file = root / "file"
    file.touch()
    for mode, allowed in ((0o4, os.R_OK), (0o2, os.W_OK), (0o1, os.X_OK)):
        file.chmod(mode)
        answers = in_thread(lambda: {right: os.access(file, right) for right in (os.R_OK, os.W_OK, os.X_OK)}, OTHER)
        assert answers == {right: right == allowed for right in (os.R_OK, os.W_OK, os.X_OK)}


def test_root_reads_and_writes_what_nobody_may(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    (root / "file").chmod(0)
    (root / "folder").mkdir()
    (root / "folder").chmod(0)
    assert (root / "file").read_bytes() == b"content"
    (root / "folder" / "file").write_bytes(b"inside")
    assert os.listdir(root / "folder") == ["file"]
    assert not os.access(root / "file", os.X_OK)


def test_without_search_permission_nothing_below_is_reached(folder: Path) -> None:
    folder.chmod(0o766)
    attempts: list[Callable[[], object]] = [
        (folder / "file").stat,
        (folder / "file").read_bytes,
        (folder / "link").lstat,
        (folder / "missing").stat,
        (folder / "sub" / "missing").stat,
        (folder / "file").unlink,
        (folder / "new").mkdir,
        lambda: os.listdir(folder / "sub"),
        lambda: os.chdir(folder),
        lambda: os.readlink(folder / "link"),
        lambda: (folder / "file").chmod(0o777),
        lambda: (folder / "file").rename(folder.parent / "out"),
    ]
    for attempt in attempts:
        denied(errno.EACCES, attempt)
    assert sorted(in_thread(lambda: os.listdir(folder), OTHER)) == ["file", "link", "sub"]


def test_without_read_permission_names_are_not_listed_but_known_ones_are_reached(folder: Path) -> None:
    folder.chmod(0o733)
    denied(errno.EACCES, lambda: os.listdir(folder))
    assert in_thread((folder / "file").read_bytes, OTHER) == b"content"
    in_thread((folder / "new").touch, OTHER)
    assert "new" in os.listdir(folder)


def test_without_write_permission_no_name_is_made_moved_or_removed(folder: Path) -> None:
    folder.chmod(0o755)
    outside = folder.parent / "outside"
    in_thread(outside.touch, OTHER)
    attempts: list[Callable[[], object]] = [
        (folder / "new").touch,
        (folder / "new").mkdir,
        lambda: (folder / "new").symlink_to("target"),
        lambda: os.mkfifo(folder / "new"),
        lambda: os.link(outside, folder / "new"),
        (folder / "file").unlink,
        (folder / "sub").rmdir,
        lambda: (folder / "file").rename(folder / "renamed"),
        lambda: (folder / "file").rename(folder.parent / "moved-out"),
        lambda: outside.rename(folder / "moved-in"),
        lambda: outside.rename(folder / "file"),
        lambda: renameat2(outside, folder / "file", RENAME_EXCHANGE),
    ]
    for attempt in attempts:
        denied(errno.EACCES, attempt)
    assert sorted(os.listdir(folder)) == ["file", "link", "sub"]
    in_thread(lambda: (folder / "file").write_bytes(b"changed"), OTHER)
    assert (folder / "file").read_bytes() == b"changed"


def test_a_missing_or_taken_name_is_reported_before_the_missing_right(folder: Path) -> None:
    folder.chmod(0o755)
    denied(errno.ENOENT, (folder / "missing").unlink)
    denied(errno.ENOENT, (folder / "missing").rmdir)
    denied(errno.EEXIST, (folder / "sub").mkdir)
    denied(errno.EEXIST, lambda: (folder / "file").symlink_to("target"))


def test_group_members_have_the_groups_rights(folder: Path) -> None:
    os.chown(folder, 0, OTHER.groups[0])
    folder.chmod(0o770)
    in_thread((folder / "new").touch, OTHER)
    assert (folder / "new").stat().st_uid == OTHER.uid
    denied(errno.EACCES, lambda: os.listdir(folder), STRANGER)
    denied(errno.EACCES, (folder / "new").stat, STRANGER)


def test_a_right_given_or_taken_counts_at_once(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    for _ in range(5):
        (root / "file").chmod(0o600)
        denied(errno.EACCES, (root / "file").read_bytes)
        (root / "file").chmod(0o604)
        assert in_thread((root / "file").read_bytes, OTHER) == b"content"


def test_moving_a_directory_to_another_parent_needs_the_right_to_write_it(root: Path) -> None:
    for name in ("from", "to", "from/folder"):
        (root / name).mkdir()
        (root / name).chmod(0o777)
    (root / "from" / "folder").chmod(0o555)
    denied(errno.EACCES, lambda: (root / "from" / "folder").rename(root / "to" / "folder"))
    in_thread(lambda: (root / "from" / "folder").rename(root / "from" / "renamed"), OTHER)
    assert os.listdir(root / "from") == ["renamed"]


def test_truncate_needs_the_right_to_write(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    (root / "file").chmod(0o644)
    denied(errno.EACCES, lambda: os.truncate(root / "file", 1))
    denied(errno.EACCES, lambda: os.open(root / "file", os.O_RDONLY | os.O_TRUNC))
    assert (root / "file").read_bytes() == b"content"


def test_only_the_owner_changes_the_mode(root: Path) -> None:
    (root / "file").touch()
    (root / "file").chmod(0o666)
    denied(errno.EPERM, lambda: (root / "file").chmod(0o777))
    os.chown(root / "file", OTHER.uid, -1)
    in_thread(lambda: (root / "file").chmod(0o600), OTHER)
    assert (root / "file").stat().st_mode & 0o777 == 0o600


def test_an_owner_without_permission_gives_it_to_themselves(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    os.chown(root / "file", OTHER.uid, OTHER.gid)
    (root / "file").chmod(0)

    def regain() -> bytes:
        with refused(errno.EACCES):
            (root / "file").read_bytes()
        (root / "file").chmod(0o400)
        return (root / "file").read_bytes()

    assert in_thread(regain, OTHER) == b"content"


def test_explicit_times_are_set_by_the_owner_only(root: Path) -> None:
    (root / "file").touch()
    (root / "file").chmod(0o666)
    denied(errno.EPERM, lambda: os.utime(root / "file", ns=(1, 1)))
    os.chown(root / "file", OTHER.uid, -1)
    (root / "file").chmod(0)
    in_thread(lambda: os.utime(root / "file", ns=(5, 7)), OTHER)
    assert (root / "file").stat().st_mtime_ns == 7


def test_the_present_time_is_set_by_whoever_may_write(root: Path) -> None:
    (root / "file").touch()
    os.utime(root / "file", ns=(5, 7))
    (root / "file").chmod(0o644)
    denied(errno.EACCES, lambda: os.utime(root / "file"))
    (root / "file").chmod(0o646)
    in_thread(lambda: os.utime(root / "file"), OTHER)
    assert (root / "file").stat().st_mtime_ns > 7


def test_statistics_need_no_right_to_the_file_itself(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    (root / "file").chmod(0)
    assert in_thread((root / "file").stat, OTHER).st_size == 7
