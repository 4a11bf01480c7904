"""Names, changed by one thread while another is about to change them."""

from __future__ import annotations

from pathlib import Path

from tests.core.trees import ROOT, exists, find, folder, opened


def test_names_that_two_drop_at_once_are_each_dropped_once(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        parent = folder(fs, "triton/key")
        ino, _ = fs.create(ROOT, parent, b"file", 0o644)
        fs.link(ROOT, ino, parent, b"second")
        fs.link(ROOT, ino, folder(fs, "triton/elsewhere"), b"third")
        one, other = fs.tree.drop_files({ino}), fs.tree.drop_files({ino})
        dropped = [next(one), *other, *one]
        assert sorted(name for _, name in dropped) == [b"file", b"second", b"third"]
        assert fs.attributes(parent).size == 0
        fs.forget(ino, 3)


def test_a_name_that_became_another_files_meanwhile_is_not_dropped(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        parent = folder(fs, "triton/key")
        ino, _ = fs.create(ROOT, parent, b"file", 0o644)
        fs.link(ROOT, ino, parent, b"second")
        dropping = fs.tree.drop_files({ino})
        _, first = next(dropping)
        left = b"second" if first == b"file" else b"file"
        anew, _ = fs.create(ROOT, parent, b"anew", 0o644)
        fs.rename(ROOT, parent, b"anew", parent, left)
        assert list(dropping) == []
        assert exists(fs, f"triton/key/{left.decode()}")
        assert find(fs, f"triton/key/{left.decode()}") == anew
        fs.forget(ino, 2)
        fs.forget(anew, 1)
