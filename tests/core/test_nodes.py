"""Inodes that enter and leave the cache."""

from __future__ import annotations

import errno
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcachefs.core import Filesystem, FsOptions
from kcachefs.core.kernel import Kernel
from kcachefs.core.lifetimes import TOGETHER_MAX
from kcachefs.core.limits import Limits
from kcachefs.core.nodes import Nodes
from kcachefs.core.removal import PIECE
from kcachefs.errors import FsError, NoSpace, ObjectDamaged
from kcachefs.store import Store
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.journal import Changes
from kcachefs.store.records import Content, Inode, inode_key
from tests.core.trees import ROOT, exists, find, folder, nothing_acknowledged, opened, refused, write


def test_an_inode_that_changes_while_it_is_looked_for_is_not_remembered_as_it_was(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        parent = folder(fs, "triton/key")
        fs.create(ROOT, parent, b"file", 0o644)
        ino = find(fs, "triton/key/file")
        fs.write(ino, 0, b"content")
        fs.nodes._cache.clear()
        catalog = fs.store.catalog
        look, lock = catalog.get, catalog.lock

        def seal() -> None:
            if lock.acquire(blocking=False):
                try:
                    fs.sealer.seal(ino)
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
        fs.sealer.seal(ino)
        assert fs.nodes.get(ino).content == Content.OBJECT


def test_inodes_that_are_prefetched_are_those_that_are_got_one_by_one(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        parent = folder(fs, "triton/key")
        made = [fs.create(ROOT, parent, b"%d" % number, 0o644)[0] for number in range(20)]
        fs.store.fold()
        together, alone = Nodes(fs.store, Kernel()), Nodes(fs.store, Kernel())
        fs.unlink(ROOT, parent, b"3")
        for ino in made:
            fs.forget(ino, 1)  # its last reference: an inode without a name is gone now
        made += [fs.create(ROOT, parent, b"%d" % number, 0o644)[0] for number in range(20, 25)]
        assert inode_key(made[-1]) in fs.store.catalog.unfolded_keys()
        together.prefetch([*made, 1 << 40])
        there = [ino for ino in made if alone.exists(ino)]
        assert len(there) == 24
        assert together._cache == {ino: alone.get(ino) for ino in there}


def test_what_was_not_removed_after_all_stays_when_the_kernel_forgets_it(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        ino, _ = fs.create(ROOT, folder(fs, "triton/key"), b"file", 0o644)
        fs.write(ino, 0, b"content")
        with nothing_acknowledged(fs):
            fs.unlink(ROOT, find(fs, "triton/key"), b"file")
        fs.forget(ino, 1)
        assert fs.read(find(fs, "triton/key/file"), 0, 100) == b"content"
        assert not fs.nodes.orphans


def test_a_namespace_that_cannot_be_moved_leaves_what_it_was_to_replace(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        ino, _ = fs.make(ROOT, ROOT_INO, b"empty", stat.S_IFDIR | 0o755)
        with pytest.raises(FsError) as refused:
            fs.rename(ROOT, ROOT_INO, b"triton", ROOT_INO, b"empty")
        assert refused.value.errno == errno.EBUSY
        fs.forget(ino, 1)
        assert fs.attributes(find(fs, "empty")).is_dir
        fs.rmdir(ROOT, ROOT_INO, b"empty")


def test_what_could_not_be_removed_on_a_full_disk_is_removed_later(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        ino, _ = fs.create(ROOT, folder(fs, "triton/key"), b"file", 0o644)
        fs.write(ino, 0, b"content")
        fs.unlink(ROOT, find(fs, "triton/key"), b"file")
        assert fs.lifetimes.clear_orphans() == 0, "the kernel still has it"
        with nothing_acknowledged(fs):
            fs.forget(ino, 1)
        assert fs.lifetimes.clear_orphans() == 1
        assert not fs.nodes.exists(ino)


def test_a_filesystem_begins_though_the_disk_is_too_full_to_fold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as fs:
        parent = folder(fs, "inductor/ab")
        orphan, _ = fs.create(ROOT, parent, b"gone", 0o644)
        fs.unlink(ROOT, parent, b"gone")
        file, _ = fs.create(ROOT, parent, b".1.2.tmp", 0o644)
        fs.write(file, 0, b"content")

        def refuse(*arguments: object) -> None:
            raise NoSpace("the disk is full")

        with monkeypatch.context() as full:
            full.setattr(fs.store.catalog._folded, "write", refuse)
            successor = Filesystem(fs.store, FsOptions(resumed=True))
            assert (successor.nodes.orphans, successor.temporaries.inodes) == ({orphan}, {file})
            assert [ino for ino, _ in successor.unsealed.files()] == [file]
            assert successor.read(file, 0, 100) == b"content"
        fs.forget(orphan, 1)
        fs.forget(file, 1)


@pytest.fixture
def orphans(tmp_path: Path) -> Iterator[tuple[Filesystem, list[int]]]:
    """Many unlinked files that the kernel forgot when nobody was there to hear it."""
    with opened(tmp_path / "store") as fs:
        parent = folder(fs, "triton/key")
        inos = [fs.create(ROOT, parent, b"f%d" % number, 0o644)[0] for number in range(3 * TOGETHER_MAX)]
        for number in range(len(inos)):
            fs.unlink(ROOT, parent, b"f%d" % number)
        fs.store.fold()
        fs.nodes._cache.clear()
        fs.nodes.lookups.clear()
        yield fs, inos


@pytest.mark.parametrize("at_mount", [False, True])
def test_a_damaged_orphan_goes_with_the_others(
    orphans: tuple[Filesystem, list[int]], at_mount: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fs, inos = orphans
    with fs.store.catalog._folded.env.begin(write=True) as txn:
        txn.put(inode_key(inos[TOGETHER_MAX + 3]), b"damaged")
    if at_mount:
        fs = Filesystem(fs.store)
    else:
        fs.clear_orphans()
    assert "fails its checksum" in caplog.text
    assert not fs.nodes.orphans
    assert not any(map(fs.nodes.exists, inos))


def test_an_orphan_that_cannot_go_keeps_no_other(orphans: tuple[Filesystem, list[int]]) -> None:
    fs, inos = orphans
    stuck = inos[TOGETHER_MAX + 3]
    with refused(fs, lambda changes: inode_key(stuck) in changes):
        with pytest.raises(NoSpace):
            fs.clear_orphans()
        assert fs.nodes.orphans == {stuck}
        fs = Filesystem(fs.store)  # mounting is no less possible
        assert fs.nodes.orphans == {stuck}
    fs.clear_orphans()
    assert not fs.nodes.orphans


def test_orphans_that_can_only_go_one_by_one_go(orphans: tuple[Filesystem, list[int]]) -> None:
    fs, inos = orphans
    with refused(fs, lambda changes: sum(inode_key(ino) in changes for ino in inos) > 1):
        fs.clear_orphans()
    assert not fs.nodes.orphans


def test_on_a_full_disk_not_every_orphan_is_tried(orphans: tuple[Filesystem, list[int]]) -> None:
    fs, inos = orphans
    tried: list[int] = []

    def refuse(changes: Changes) -> bool:
        tried.append(len(changes))
        return True

    with refused(fs, refuse), pytest.raises(NoSpace):
        fs.clear_orphans()
    assert len(tried) == 1 + TOGETHER_MAX
    assert fs.nodes.orphans == set(inos)
    fs.clear_orphans()
    assert not fs.nodes.orphans


def evict(fs: Filesystem) -> tuple[int, bytes]:
    assert fs.evictor.evict(find(fs, "triton/KEY"), force=True)
    return find(fs, "triton"), b"KEY"


def condemn(fs: Filesystem) -> tuple[int, bytes]:
    fs.condemn(find(fs, "triton/KEY/kernel.ptx"), ObjectDamaged("a bit is wrong"))
    return find(fs, "triton/KEY"), b"kernel.ptx"


def drop(fs: Filesystem) -> tuple[int, bytes]:
    with fs.nodes.change() as txn:
        fs._remover.drop(txn, find(fs, "triton/KEY/tmp.x"), find(fs, "triton/KEY"), b"tmp.x")
    return find(fs, "triton/KEY"), b"tmp.x"


@pytest.mark.parametrize("remove", [evict, condemn, drop])
def test_the_next_worker_tells_the_kernel_of_names_that_the_last_one_removed(
    tmp_path: Path, remove: Callable[[Filesystem], tuple[int, bytes]]
) -> None:
    """The last one may have been killed before it did."""
    with opened(tmp_path / "store") as fs:
        for path in (
            "triton/KEY/kernel.ptx",
            "triton/KEY/tmp.x/kernel.json",
            "triton/KEY/removed",
            "triton/OTHER/file",
        ):
            write(fs, path, b"content")
        fs.settle()
        for path in ("triton/KEY", "triton/KEY/kernel.ptx", "triton/KEY/tmp.x", "triton/KEY/removed"):
            fs.hold(find(fs, path))
        fs.unlink(ROOT, find(fs, "triton/KEY"), b"removed")
        name = remove(fs)
    told = Told()
    with Store(tmp_path / "store") as store:
        Filesystem(store, FsOptions(resumed=True), told)
    assert name in told.gone
    assert b"removed" not in {name for _, name in told.gone}, "the kernel removed it itself"
    with opened(tmp_path / "store") as fs:
        assert exists(fs, "triton/OTHER/file")
        assert not fs.nodes.orphans


@pytest.mark.parametrize("files", [2, 3 * PIECE])
def test_the_kernel_is_told_of_each_file_that_was_open_when_its_entry_went(tmp_path: Path, files: int) -> None:
    """In the folder, which has no name any more, it would keep the file's name, and with it the file."""
    told = Told()
    with opened(tmp_path / "store", Limits(grace=0.0), told) as fs:
        for number in range(files):
            write(fs, f"triton/KEY/{number}", b"%d" % number)
        fs.settle()
        key, last = find(fs, "triton/KEY"), f"{files - 1}"
        ino = fs.hold(find(fs, f"triton/KEY/{last}"))
        assert fs.evictor.evict(key, force=True)
        fs.clear_orphans()
        assert (key, last.encode()) in told.gone
        told.gone.clear()
        fs.clear_orphans()
        assert told.gone == [], "once is enough"
        fs.forget(ino, 1)
        assert not fs.nodes.orphans


def test_the_kernel_is_told_of_each_name_that_a_file_had(tmp_path: Path) -> None:
    told = Told()
    with opened(tmp_path / "store", Limits(grace=0.0), told) as fs:
        write(fs, "triton/KEY/one", b"content")
        write(fs, "triton/OTHER/kept", b"content")
        fs.settle()
        key, ino, other = (find(fs, f"triton/{path}") for path in ("KEY", "KEY/one", "OTHER/kept"))
        for file, name in ((ino, b"two"), (other, b"linked")):
            fs.link(ROOT, file, key, name)  # the kernel knows it from then on
        assert fs.evictor.evict(key, force=True)
        fs.clear_orphans()
        assert {(key, b"one"), (key, b"two"), (key, b"linked")} <= set(told.gone)
        fs.forget(ino, 1)
        fs.forget(other, 1)
        assert not fs.nodes.orphans
        assert exists(fs, "triton/OTHER/kept")


def test_a_miss_is_not_to_be_remembered_in_a_folder_that_no_name_leads_to(tmp_path: Path) -> None:
    """The kernel would keep the folder for it."""
    told = Told()
    with opened(tmp_path / "store", Limits(grace=0.0), told) as fs:
        write(fs, "triton/KEY/kernel.ptx", b"content")
        write(fs, "triton/OTHER/kernel.ptx", b"content")
        write(fs, "triton/THIRD/kernel.ptx", b"content")
        fs.settle()
        key, other = (fs.hold(find(fs, f"triton/{name}")) for name in ("KEY", "OTHER"))
        missed(fs, key)
        assert told.gone == []
        assert fs.evictor.evict_all([key]) == set()
        missed(fs, key)
        assert (key, b"missing") in told.gone, "it was told to drop the folder's name"
        told.gone.clear()
        assert fs.evictor.evict_all([find(fs, "triton/THIRD")])
        missed(fs, key)
        assert (key, b"missing") in told.gone, "whatever else was evicted since"
        fs.forget(fs.lookup(ROOT, find(fs, "triton"), b"KEY") or 0, 1)
        told.gone.clear()
        missed(fs, key)
        assert told.gone == [], "it has asked for the name since"
        assert fs.evictor.evict(key, force=True)
        missed(fs, key)
        assert (key, b"missing") in told.gone, "the folder was evicted while it was in use"
        told.gone.clear()
        missed(fs, other)
        assert told.gone == []
        fs.forget(key, 1)
        fs.forget(other, 1)


def missed(fs: Filesystem, folder: int) -> None:
    assert fs.lookup(ROOT, folder, b"missing") is None


class Told(Kernel):
    """Remembers which names it was told to be gone."""

    def __init__(self) -> None:
        self.gone: list[tuple[int, bytes]] = []

    def name_gone(self, parent: int, name: bytes, shown: int) -> None:
        self.gone.append((parent, name))
