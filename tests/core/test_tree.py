"""Names: changed by one thread while another is about to change them, and how many there may be."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kcachefs.core.tree import DEPTH_MAX, ROOT_NAMES_MAX
from kcachefs.errors import FsError
from tests.core.trees import ROOT, exists, find, folder, opened


def test_names_that_two_drop_at_once_are_each_dropped_once(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        parent = folder(fs, "triton/key")
        ino, _ = fs.create(ROOT, parent, b"file", 0o644)
        fs.link(ROOT, ino, parent, b"second")
        fs.link(ROOT, ino, folder(fs, "triton/elsewhere"), b"third")
        one, other = fs.distrust.drop_files({ino}), fs.distrust.drop_files({ino})
        dropped = [next(one), *other, *one]
        assert sorted(name for _, name in dropped) == [b"file", b"second", b"third"]
        assert fs.attributes(parent).size == 0
        fs.forget(ino, 3)


def test_a_name_that_became_another_files_meanwhile_is_not_dropped(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        parent = folder(fs, "triton/key")
        ino, _ = fs.create(ROOT, parent, b"file", 0o644)
        fs.link(ROOT, ino, parent, b"second")
        dropping = fs.distrust.drop_files({ino})
        _, first = next(dropping)
        left = b"second" if first == b"file" else b"file"
        anew, _ = fs.create(ROOT, parent, b"anew", 0o644)
        fs.rename(ROOT, parent, b"anew", parent, left)
        assert list(dropping) == []
        assert exists(fs, f"triton/key/{left.decode()}")
        assert find(fs, f"triton/key/{left.decode()}") == anew
        fs.forget(ino, 2)
        fs.forget(anew, 1)


def test_folders_are_nested_only_so_deeply(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        ino = find(fs, "triton")
        for number in range(DEPTH_MAX - 1):
            ino, _ = fs.make(ROOT, ino, b"%d" % number, 0o040755)
        with pytest.raises(FsError) as caught:
            fs.make(ROOT, ino, b"deeper", 0o040755)
        assert caught.value.errno == errno.ENAMETOOLONG
        fs.make(ROOT, find(fs, "inductor"), b"top", 0o040755)
        with pytest.raises(FsError) as caught:
            fs.rename(ROOT, find(fs, "inductor"), b"top", ino, b"deeper")
        assert caught.value.errno == errno.ENAMETOOLONG


def test_the_root_holds_only_so_many_names(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        for number in range(ROOT_NAMES_MAX - fs.attributes(1).size):
            fs.make(ROOT, 1, b"folder %d" % number, 0o040755)
        with pytest.raises(FsError) as caught:
            fs.make(ROOT, 1, b"one more", 0o040755)
        assert caught.value.errno == errno.ENOSPC
        fs.make(ROOT, find(fs, "triton"), b"KEY", 0o040755)
