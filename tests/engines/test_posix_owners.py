"""chown: who may give what to whom."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.engines.callers import OTHER, STRANGER, in_thread
from tests.engines.refusals import refused

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def owner_of(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_uid, status.st_gid


@pytest.fixture
def theirs(root: Path) -> Path:
    """A file of OTHER's."""
    in_thread((root / "file").touch, OTHER)
    return root / "file"


def test_root_changes_user_and_group_of_every_kind_of_name(root: Path) -> None:
    (root / "file").touch()
    (root / "folder").mkdir()
    (root / "link").symlink_to("file")
    os.mkfifo(root / "fifo")
    for name in ("file", "folder", "link", "fifo"):
        os.lchown(root / name, 1234, 5678)
        assert owner_of(root / name) == (1234, 5678)


def test_minus_one_leaves_user_or_group_alone(root: Path) -> None:
    (root / "file").touch()
    os.chown(root / "file", 1234, 5678)
    os.chown(root / "file", 4321, -1)
    assert owner_of(root / "file") == (4321, 5678)
    os.chown(root / "file", -1, 8765)
    assert owner_of(root / "file") == (4321, 8765)
    os.chown(root / "file", -1, -1)
    assert owner_of(root / "file") == (4321, 8765)


def test_the_largest_numbers_are_kept(root: Path) -> None:
    (root / "file").touch()
    os.chown(root / "file", 2**32 - 2, 2**32 - 3)
    assert owner_of(root / "file") == (2**32 - 2, 2**32 - 3)


def test_chown_follows_a_symlink_and_lchown_does_not(root: Path) -> None:
    (root / "file").touch()
    (root / "link").symlink_to("file")
    os.chown(root / "link", 1234, 5678)
    assert owner_of(root / "file") == (1234, 5678)
    assert owner_of(root / "link") == (0, 0)
    os.lchown(root / "link", 4321, 8765)
    assert owner_of(root / "file") == (1234, 5678)


def test_an_owner_cannot_give_a_file_away(theirs: Path) -> None:
    def give() -> None:
        with refused(errno.EPERM):
            os.chown(theirs, STRANGER.uid, -1)
        with refused(errno.EPERM):
            os.chown(theirs, 0, OTHER.gid)

    in_thread(give, OTHER)
    assert owner_of(theirs) == (OTHER.uid, OTHER.gid)


def test_an_owner_moves_a_file_between_groups_of_theirs(theirs: Path) -> None:
    in_thread(lambda: os.chown(theirs, -1, OTHER.groups[0]), OTHER)
    assert owner_of(theirs) == (OTHER.uid, OTHER.groups[0])
    in_thread(lambda: os.chown(theirs, OTHER.uid, OTHER.gid), OTHER)
    assert owner_of(theirs) == (OTHER.uid, OTHER.gid)


def test_an_owner_cannot_move_a_file_to_a_foreign_group(theirs: Path) -> None:
    def move() -> None:
        with refused(errno.EPERM):
            os.chown(theirs, -1, STRANGER.gid)

    in_thread(move, OTHER)
    assert owner_of(theirs) == (OTHER.uid, OTHER.gid)


def test_a_stranger_changes_neither_owner_nor_mode(theirs: Path) -> None:
    def change() -> None:
        with refused(errno.EPERM):
            os.chown(theirs, STRANGER.uid, -1)
        with refused(errno.EPERM):
            os.chown(theirs, -1, STRANGER.gid)
        with refused(errno.EPERM):
            theirs.chmod(0o777)

    in_thread(change, STRANGER)


def test_a_new_owner_holds_the_file(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    (root / "file").chmod(0o600)
    os.chown(root / "file", OTHER.uid, OTHER.gid)
    assert in_thread((root / "file").read_bytes, OTHER) == b"content"

    def peek() -> None:
        with refused(errno.EACCES):
            (root / "file").read_bytes()

    in_thread(peek, STRANGER)


def test_an_open_descriptor_is_worth_more_than_the_mode(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    (root / "file").chmod(0o600)
    with open(root / "file", "r+b", buffering=0) as file:

        def use() -> bytes:
            with refused(errno.EACCES):
                (root / "file").read_bytes()
            file.write(b"CON")
            return os.pread(file.fileno(), 100, 0)

        assert in_thread(use, OTHER) == b"CONtent"
