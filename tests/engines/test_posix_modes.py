"""Permission bits: chmod, umask, set-user-ID, set-group-ID and sticky."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines.callers import OTHER, STRANGER, in_thread
from tests.engines.refusals import refused

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.usefixtures("as_user")
def test_chmod_sets_every_permission_bit(root: Path) -> None:
    (root / "file").touch()
    (root / "folder").mkdir()
    os.mkfifo(root / "fifo")
    for name in ("file", "folder", "fifo"):
        for mode in (0o000, 0o777, 0o421, 0o124, 0o600, 0o1755, 0o4711, 0o2750, 0o7777):
            (root / name).chmod(mode)
            assert mode_of(root / name) == mode


@pytest.mark.usefixtures("as_user")
def test_fchmod_changes_what_a_path_shows(root: Path) -> None:
    with open(root / "file", "wb") as file:
        os.fchmod(file.fileno(), 0o611)
        assert mode_of(root / "file") == 0o611
        (root / "file").chmod(0o644)
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o644


@pytest.mark.usefixtures("as_user")
def test_chmod_refuses_a_missing_name(root: Path) -> None:
    with refused(errno.ENOENT):
        (root / "missing").chmod(0o644)


@pytest.mark.usefixtures("as_user")
def test_chmod_keeps_the_contents_and_the_kind(root: Path) -> None:
    (root / "file").write_bytes(b"content")
    (root / "file").chmod(0o755)
    assert stat.S_ISREG((root / "file").stat().st_mode)
    assert (root / "file").read_bytes() == b"content"


MAKERS: dict[str, Callable[[Path, int], None]] = {
    "open": lambda path, mode: os.close(os.open(path, os.O_CREAT | os.O_WRONLY, mode)),
    "mkdir": lambda path, mode: os.mkdir(path, mode),
    "mkfifo": lambda path, mode: os.mkfifo(path, mode),
    "mknod": lambda path, mode: os.mknod(path, mode | stat.S_IFREG),
}


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize("call", MAKERS)
def test_the_mode_of_a_new_name_is_what_was_asked_less_the_umask(root: Path, call: str) -> None:
    for mask in (0o000, 0o022, 0o027, 0o077, 0o777):
        for mode in (0o777, 0o640, 0o511, 0o000):
            with umask(mask):
                MAKERS[call](root / f"{mask:o}-{mode:o}", mode)
            assert mode_of(root / f"{mask:o}-{mode:o}") == mode & ~mask


@pytest.mark.usefixtures("as_user")
def test_a_socket_is_subject_to_the_umask(root: Path) -> None:
    folder = os.open(root, os.O_RDONLY)
    with umask(0o027), socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{folder}/socket")
    os.close(folder)
    assert mode_of(root / "socket") == 0o750


def test_set_id_bits_of_a_new_file_are_kept(root: Path) -> None:
    with umask(0):
        os.close(os.open(root / "file", os.O_CREAT | os.O_WRONLY, 0o6755))
        os.mkdir(root / "folder", 0o1777)
    assert mode_of(root / "file") == 0o6755
    assert mode_of(root / "folder") == 0o1777


@needs_root
class TestSetIdBits:
    def test_writing_by_another_user_clears_them(self, root: Path) -> None:
        self._changed_by_another_user(root, lambda path: _append(path, b"more"))

    def test_truncating_by_another_user_clears_them(self, root: Path) -> None:
        self._changed_by_another_user(root, lambda path: os.truncate(path, 1))

    def test_writing_nothing_by_another_user_keeps_the_contents(self, root: Path) -> None:
        file = self._program(root)
        in_thread(lambda: _append(file, b""), OTHER)
        assert file.read_bytes() == b"content"

    def test_writing_by_the_owner_clears_them(self, root: Path) -> None:
        file = self._program(root)
        os.chown(file, OTHER.uid, OTHER.gid)
        file.chmod(0o6777)
        in_thread(lambda: _append(file, b"more"), OTHER)
        assert mode_of(file) == 0o777

    def test_writing_by_root_keeps_them(self, root: Path) -> None:
        file = self._program(root)
        _append(file, b"more")
        assert mode_of(file) == 0o6777

    def test_changing_the_owner_clears_them(self, root: Path) -> None:
        file = self._program(root)
        os.chown(file, OTHER.uid, OTHER.gid)
        assert mode_of(file) == 0o777

    def test_changing_the_group_by_the_owner_clears_them(self, root: Path) -> None:
        file = self._program(root)
        os.chown(file, OTHER.uid, OTHER.gid)
        file.chmod(0o6777)
        in_thread(lambda: os.chown(file, -1, OTHER.groups[0]), OTHER)
        assert mode_of(file) == 0o777

    def test_a_directory_keeps_them_when_its_owner_changes(self, root: Path) -> None:
        (root / "folder").mkdir()
        (root / "folder").chmod(0o6755)
        os.chown(root / "folder", OTHER.uid, OTHER.gid)
        assert mode_of(root / "folder") == 0o6755

    def test_chmod_by_an_owner_outside_the_group_drops_set_group_id(self, root: Path) -> None:
        file = self._program(root)
        os.chown(file, OTHER.uid, STRANGER.gid)
        in_thread(lambda: file.chmod(0o6755), OTHER)
        assert mode_of(file) == 0o4755

    def test_chmod_by_an_owner_inside_the_group_keeps_set_group_id(self, root: Path) -> None:
        file = self._program(root)
        os.chown(file, OTHER.uid, OTHER.groups[0])
        in_thread(lambda: file.chmod(0o6755), OTHER)
        assert mode_of(file) == 0o6755

    def _program(self, root: Path) -> Path:
        (root / "program").write_bytes(b"content")
        (root / "program").chmod(0o6777)
        return root / "program"

    def _changed_by_another_user(self, root: Path, change: Callable[[Path], object]) -> None:
        file = self._program(root)
        in_thread(lambda: change(file), OTHER)
        assert mode_of(file) == 0o777


def _append(path: Path, piece: bytes) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(piece)


@needs_root
class TestSetGroupIdDirectory:
    def test_what_is_made_in_it_gets_its_group(self, root: Path) -> None:
        folder = self._folder(root)

        def make() -> None:
            (folder / "file").touch()
            (folder / "link").symlink_to("file")
            os.mkfifo(folder / "fifo")
            (folder / "sub").mkdir()

        in_thread(make, OTHER)
        for name in ("file", "link", "fifo", "sub"):
            status = (folder / name).lstat()
            assert (status.st_uid, status.st_gid) == (OTHER.uid, STRANGER.gid)

    def test_a_directory_made_in_it_is_set_group_id_too(self, root: Path) -> None:
        folder = self._folder(root)

        def make() -> None:
            (folder / "sub" / "deeper").mkdir(parents=True)
            (folder / "file").touch()

        in_thread(make, OTHER)
        assert mode_of(folder / "sub") & stat.S_ISGID
        assert mode_of(folder / "sub" / "deeper") & stat.S_ISGID
        assert (folder / "sub" / "deeper").stat().st_gid == STRANGER.gid
        assert not mode_of(folder / "file") & stat.S_ISGID

    def test_a_file_keeps_its_group_when_it_moves_in(self, root: Path) -> None:
        folder = self._folder(root)
        (root / "file").touch()
        before = (root / "file").stat().st_gid
        (root / "file").rename(folder / "file")
        assert (folder / "file").stat().st_gid == before

    def test_in_any_other_directory_the_group_is_the_creators(self, root: Path) -> None:
        folder = self._folder(root)
        folder.chmod(0o777)
        in_thread((folder / "file").touch, OTHER)
        assert (folder / "file").stat().st_gid == OTHER.gid

    def _folder(self, root: Path) -> Path:
        (root / "folder").mkdir()
        os.chown(root / "folder", 0, STRANGER.gid)
        (root / "folder").chmod(0o2777)
        return root / "folder"


@needs_root
class TestStickyDirectory:
    def test_others_cannot_remove_or_rename_what_is_not_theirs(self, root: Path) -> None:
        folder = self._folder(root)

        def try_all() -> None:
            with refused(errno.EPERM):
                (folder / "file").unlink()
            with refused(errno.EPERM):
                (folder / "sub").rmdir()
            with refused(errno.EPERM):
                (folder / "file").rename(folder / "renamed")
            (folder / "mine").touch()
            with refused(errno.EPERM):
                (folder / "mine").rename(folder / "file")

        in_thread(try_all, STRANGER)
        assert sorted(os.listdir(folder)) == ["file", "mine", "sub"]

    def test_the_owner_of_a_name_removes_and_renames_it(self, root: Path) -> None:
        folder = self._folder(root)

        def remove() -> None:
            (folder / "file").rename(folder / "renamed")
            (folder / "renamed").unlink()
            (folder / "sub").rmdir()

        in_thread(remove, OTHER)
        assert os.listdir(folder) == []

    def test_the_owner_of_the_directory_removes_anything(self, root: Path) -> None:
        folder = self._folder(root)
        os.chown(folder, STRANGER.uid, STRANGER.gid)
        in_thread((folder / "file").unlink, STRANGER)
        assert os.listdir(folder) == ["sub"]

    def test_others_still_make_and_link_names_in_it(self, root: Path) -> None:
        folder = self._folder(root)

        def make() -> None:
            (folder / "mine").touch()
            os.link(folder / "mine", folder / "second")
            (folder / "second").unlink()

        in_thread(make, STRANGER)
        assert "mine" in os.listdir(folder)

    def _folder(self, root: Path) -> Path:
        """One that belongs to root and holds a file and a directory of OTHER's."""
        folder = root / "folder"
        folder.mkdir()
        folder.chmod(0o1777)
        (folder / "file").touch()
        (folder / "sub").mkdir()
        for name in ("file", "sub"):
            os.chown(folder / name, OTHER.uid, OTHER.gid)
        return folder
