"""Inodes, as they come into the cache and go from it."""

from __future__ import annotations

import threading
from pathlib import Path

from kcachefs.core.nodes import Nodes
from kcachefs.store.records import Content, Inode, inode_key
from tests.core.trees import find, folder, opened


def test_an_inode_that_changes_while_it_is_looked_for_is_not_remembered_as_it_was(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        parent = folder(fs, "triton/key")
        fs.create(parent, b"file", 0o644, 0, 0)
        ino = find(fs, "triton/key/file")
        fs.write(ino, 0, b"content")
        fs.nodes._cache.clear()
        catalog = fs.store.catalog
        look, lock = catalog.get, catalog.lock

        def seal() -> None:
            if lock.acquire(blocking=False):
                try:
                    fs.files.seal(ino)
                finally:
                    lock.release()

        def look_and_be_overtaken(key: bytes) -> bytes | None:
            found = look(key)
            if key == inode_key(ino) and threading.current_thread() is threading.main_thread():
                sealer = threading.Thread(target=seal)
                sealer.start()
                sealer.join()
            return found

        catalog.get = look_and_be_overtaken  # type: ignore[method-assign]
        fs.nodes.get(ino)
        catalog.get = look  # type: ignore[method-assign]
        raw = look(inode_key(ino))
        assert raw is not None
        assert fs.nodes.get(ino) == Inode.unpack(raw)
        fs.files.seal(ino)
        assert fs.nodes.get(ino).content == Content.OBJECT


def test_inodes_got_ready_together_are_those_that_are_got_one_by_one(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        parent = folder(fs, "triton/key")
        made = [fs.create(parent, b"%d" % number, 0o644, 0, 0)[0] for number in range(20)]
        together, alone = Nodes(fs.store), Nodes(fs.store)  # which folds
        fs.unlink(parent, b"3")
        for ino in made:
            fs.forget(ino, 1)  # with the last reference the one without a name is gone
        made += [fs.create(parent, b"%d" % number, 0o644, 0, 0)[0] for number in range(20, 25)]
        assert inode_key(made[-1]) in fs.store.catalog.unfolded_keys()
        together.get_ready([*made, 1 << 40])
        there = [ino for ino in made if alone.exists(ino)]
        assert len(there) == 24
        assert together._cache == {ino: alone.get(ino) for ino in there}
