"""Salvage: a catalog whose LMDB file is damaged is made again from what is left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcachefs.errors import NoSpace
from kcachefs.store import ContentStore, Store
from kcachefs.store.fsck import run
from kcachefs.store.lmdb_file import make_lmdb
from tests.store import tree
from tests.store.repairs import OPTIONS, what


def leaf_pages(data: bytes) -> Iterator[int]:
    """Offsets of LMDB's leaf pages."""
    for offset in range(8192, len(data), 4096):
        if int.from_bytes(data[offset + 10 : offset + 12], "little") == 2:
            yield offset


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def zero_a_leaf(data: bytes) -> bytes:
    page = max(leaf_pages(data))
    return data[:page] + bytes(4096) + data[page + 4096 :]


def garble_a_leaf(data: bytes) -> bytes:
    page = max(leaf_pages(data))
    return data[: page + 16] + b"\xff" * 200 + data[page + 216 :]


def with_a_damaged_tree(path: Path, how: Callable[[bytes], bytes]) -> dict[bytes, bytes]:
    """Make a store and damage its catalog in that way; returns the contents of its files."""
    contents = {b"file-%d" % number: b"kernel %d " % number * 50 for number in range(400)}
    with Store(path, OPTIONS) as store:
        tree.make_root(store)
        for name, data in contents.items():
            tree.create(store, name, data)
    catalog = path / "catalog" / "data.mdb"
    catalog.write_bytes(how(catalog.read_bytes()))
    return contents


@pytest.mark.parametrize("how", [cut, zero_a_leaf, garble_a_leaf])
def test_a_catalog_with_a_damaged_tree_is_made_again_from_what_can_be_read(
    tmp_path: Path, how: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    contents = with_a_damaged_tree(path, how)
    found = run(path)
    assert what(found) == {"structure"}
    assert found.exit_code == 2
    assert run(path, repair=True).exit_code == 1
    assert run(path).exit_code == 0
    assert (path / "quarantine" / "catalog-1" / "data.mdb").exists()
    with Store(path, OPTIONS) as store:
        for name in tree.listing(store):
            assert tree.read(store, name) == contents[name]
        if how is not cut:
            assert len(tree.listing(store)) > 50


@pytest.mark.parametrize("ruin", [b"", b"\0" * 100_000, None], ids=["empty", "zeros", "gone"])
def test_a_lost_catalog_is_made_again_from_the_volumes(
    tmp_path: Path, ruin: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    with ContentStore(path) as store:
        contents = {store.put(data): data for data in [os.urandom(size) for size in (100, 5000, 300_000, 900_000)]}
    if ruin is None:
        (path / "catalog" / "data.mdb").unlink()
    else:
        (path / "catalog" / "data.mdb").write_bytes(ruin)
    report = run(path, repair=True)
    assert report.exit_code == 1
    assert "4 objects were found in the volumes" in report.findings[0].remedy
    assert run(path).exit_code == 0
    with ContentStore(path) as store:
        assert {digest: store.get(digest) for digest in store.digests()} == contents


@pytest.mark.parametrize("moment", ["full disk", "killed", "killed later"])
def test_an_interrupted_repair_costs_nothing(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    contents = with_a_damaged_tree(path, garble_a_leaf)
    with monkeypatch.context() as interrupted:
        if moment == "full disk":
            interrupted.setattr("kcachefs.store.salvage.make_lmdb", _make_and_fail)
        else:
            renames = [os.rename] * (1 if moment == "killed" else 2)
            interrupted.setattr("kcachefs.store.salvage.os.rename", lambda *names: renames.pop()(*names))
        with pytest.raises((NoSpace, IndexError)):
            run(path, repair=True)
    # Opening it now may crash on the damaged tree, but must not take it for an empty one.
    open_it = "import sys; from pathlib import Path; from kcachefs.store import Store; Store(Path(sys.argv[1])).close()"
    subprocess.run([sys.executable, "-c", open_it, str(path)], capture_output=True, check=False)
    assert run(path, repair=True).exit_code == 1
    assert run(path).exit_code == 0
    with Store(path, OPTIONS) as store:
        assert len(tree.listing(store)) > 50
        assert all(tree.read(store, name) == contents[name] for name in tree.listing(store))


def _make_and_fail(directory: Path, records: object) -> None:
    make_lmdb(directory)
    raise NoSpace("the disk is full")
