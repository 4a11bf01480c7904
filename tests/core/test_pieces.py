"""Long operations are done in pieces: no transaction, and so no hold of the lock, touches more than a few names.

Nobody who looks in between sees a part of an entry, and a kill in between leaves nothing behind.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kcachefs.core import Filesystem
from kcachefs.core.membership import MOVED_MAX, SEEN_MAX
from kcachefs.core.removal import PIECE
from kcachefs.core.report import Statistics
from kcachefs.core.sealing import TOGETHER_MAX
from kcachefs.core.tree import DEPTH_MAX, ROOT_NAMES_MAX
from kcachefs.errors import FsError, NoSpace
from kcachefs.store import fsck
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.journal import Changes
from kcachefs.store.records import Content, inode_key, names_prefix, unpack_name
from tests.core.trees import (
    LARGE,
    ROOT,
    exists,
    find,
    folder,
    nothing_acknowledged,
    opened,
    refused,
    rename,
    user,
    write,
)

CHANGES_MAX = 10 * PIECE
"""Records that one transaction may change."""
FILES = 6 * PIECE


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[Filesystem]:
    with opened(tmp_path / "store") as opened_fs:
        yield opened_fs


@contextmanager
def each_transaction(fs: Filesystem, after: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    """How many records each transaction changes; calls `after` after each."""
    sizes: list[int] = []
    commit = fs.store.catalog.commit

    def commit_and_look(changes: Changes) -> None:
        commit(changes)
        sizes.append(len(changes))
        after()

    fs.store.catalog.commit = commit_and_look  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        fs.store.catalog.commit = commit  # type: ignore[method-assign]


def fill(fs: Filesystem, path: str, files: int = FILES, name: str = "file{}") -> None:
    """Small files and empty ones, some of them in folders."""
    for number in range(files):
        above = f"{path}/folder{number % 5}/inner" if number % 3 == 0 else path
        if number % 10:
            ino, _ = fs.create(ROOT, folder(fs, above), os.fsencode(name.format(number)), 0o644)
            fs.forget(ino, 1)
        else:
            write(fs, f"{above}/{name.format(number)}", b"bytes of %d" % number)


def seal_all(fs: Filesystem) -> None:
    while fs.sealer.seal_next(0):
        pass
    fs.store.fold()


def counted(fs: Filesystem, top: str) -> int:
    return sum(1 for _ in fs.walk.below(find(fs, top))) if exists(fs, top) else 0


# --- eviction ---------------------------------------------------------------------------------------------------------


def test_a_large_entry_goes_in_pieces_and_is_whole_or_absent_at_every_moment(fs: Filesystem) -> None:
    fill(fs, "triton/KEY")
    seal_all(fs)
    before, seen = counted(fs, "triton/KEY"), set[int]()
    with each_transaction(fs, lambda: seen.add(counted(fs, "triton/KEY"))) as sizes:
        assert fs.evictor.evict_all([find(fs, "triton/KEY")])
    assert seen == {0}
    assert before > FILES
    assert len(sizes) > FILES // PIECE
    assert max(sizes) <= CHANGES_MAX
    assert fs.store.totals().objects == 0
    assert fs.statistics().total.entries == 0
    assert fs.statistics().total.evictions == 1
    assert not fs.nodes.orphans


def test_nothing_is_found_in_a_folder_that_is_being_removed_though_the_kernel_still_knows_it(fs: Filesystem) -> None:
    fill(fs, "triton/KEY")
    seal_all(fs)
    top, inner, other = find(fs, "triton/KEY"), find(fs, "triton/KEY/folder0/inner"), find(fs, "triton")
    fs.link(ROOT, find(fs, "triton/KEY/folder0/inner/file0"), folder(fs, "triton/OTHER"), b"linked")
    fs.forget(find(fs, "triton/OTHER/linked"), 1)
    seen: list[object] = []

    def look() -> None:
        for ino in (top, inner):
            if fs.nodes.exists(ino):
                seen.extend(name for _, name, _, _ in fs.listing(ino, 0, 1000) if name not in (b".", b".."))
        seen.extend(found for found in (fs.lookup(ROOT, inner, b"file%d" % n) for n in range(0, FILES, 3)) if found)
        linked = fs.lookup(ROOT, find(fs, "triton/OTHER"), b"linked")
        assert linked is not None
        fs.forget(linked, 1)

    with each_transaction(fs, look) as sizes:
        assert fs.evictor.evict_all([top])
    assert len(sizes) > 5
    assert seen == []
    assert not fs.lifetimes.leaving
    assert fs.listing(other, 0, 10)


def test_an_entry_that_could_not_be_removed_is_there_as_before(fs: Filesystem) -> None:
    fill(fs, "triton/KEY")
    seal_all(fs)
    top = find(fs, "triton/KEY")
    before = fs.listing(top, 0, 1000)
    with nothing_acknowledged(fs):
        fs.evictor.evict_all([top])
    assert fs.lookup(ROOT, top, b"file1") is not None
    assert fs.listing(top, 0, 1000) == before
    fs.forget(find(fs, "triton/KEY/file1"), 1)
    assert fs.evictor.evict_all([top])


@pytest.fixture
def left_behind(fs: Filesystem, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two folders that lost their names with everything in them, and are not cleared out yet."""
    for name in ("ONE", "TWO"):
        fill(fs, f"triton/{name}")
    seal_all(fs)
    tops = [find(fs, f"triton/{name}") for name in ("ONE", "TWO")]
    with monkeypatch.context() as dying:
        dying.setattr(fs.evictor._remover, "clear_out", lambda: None)
        assert fs.evictor.evict_all(tops)
    assert fs.nodes.orphans == set(tops)
    return tops


def test_a_folder_that_cannot_be_cleared_out_keeps_no_other_and_no_file(fs: Filesystem, left_behind: list[int]) -> None:
    stuck, other = left_behind
    ino, _ = fs.create(ROOT, find(fs, "triton"), b"unlinked", 0o644)
    fs.unlink(ROOT, find(fs, "triton"), b"unlinked")
    fs.nodes.lookups.clear()  # the kernel forgot it without our notice
    with refused(fs, lambda changes: inode_key(stuck) in changes):
        with pytest.raises(NoSpace):
            fs.clear_orphans()
        assert fs.nodes.orphans == {stuck}
        assert not fs.nodes.exists(other)
        assert not fs.nodes.exists(ino)
    fs.clear_orphans()
    assert not fs.nodes.orphans


def test_a_folder_goes_though_the_record_of_a_file_in_it_is_damaged(
    fs: Filesystem, left_behind: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    rows = fs.store.catalog.scan(names_prefix(left_behind[0]))
    damaged = next(ino for ino, kind in (unpack_name(raw) for _, raw in rows) if kind == stat.S_IFREG >> 12)
    fs.nodes._cache.clear()
    with fs.store.catalog._folded.env.begin(write=True) as txn:
        txn.put(inode_key(damaged), b"damaged")
    fs.clear_orphans()
    assert "fails its checksum" in caplog.text
    assert not fs.nodes.orphans
    assert not any(map(fs.nodes.exists, [*left_behind, damaged]))
    fs.store.fold()
    assert [key for key, _ in fs.store.catalog.walk(b"n") if b"file" in key] == []


def test_what_is_added_to_a_folder_while_it_is_cleared_goes_with_it(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(FILES):
        write(fs, f"triton/KEY/inner/file{number}", b"bytes of %d" % number)
    seal_all(fs)
    inner, added = find(fs, "triton/KEY/inner"), list[int]()

    def add(worked_seconds: float = 0.0) -> None:
        if len(added) < FILES and fs.nodes.exists(inner) and fs.nodes.get(inner).size:
            added.append(len(added))
            ino, _ = fs.create(ROOT, inner, b"added%d" % len(added), 0o644)
            fs.forget(ino, 1)

    monkeypatch.setattr(fs.evictor._remover, "breathe", add)
    assert fs.evictor.evict_all([find(fs, "triton/KEY")])
    assert len(added) > 3
    fs.clear_orphans()
    fs.store.fold()
    assert [inode for inode, _ in fs.store.catalog.walk(b"n") if b"added" in inode or b"file" in inode] == []
    assert not fs.nodes.orphans


def test_a_small_entry_goes_in_one_transaction(fs: Filesystem) -> None:
    fill(fs, "triton/KEY", files=20)
    seal_all(fs)
    with each_transaction(fs) as sizes:
        assert fs.evictor.evict_all([find(fs, "triton/KEY")])
    assert len(sizes) == 1


def test_a_kill_between_the_pieces_leaves_nothing_behind(fs: Filesystem, tmp_path: Path) -> None:
    """The next mount, or the next worker, goes on."""
    fill(fs, "triton/KEY")
    write(fs, "triton/OTHER/kernel.ptx", b"stays")
    seal_all(fs)
    copies: list[Path] = []

    def copy() -> None:
        copies.append(tmp_path / f"copy{len(copies)}")
        shutil.copytree(fs.store.path, copies[-1])

    with each_transaction(fs, copy):
        fs.evictor.evict_all([find(fs, "triton/KEY")])
    assert len(copies) > 5
    for path in copies:
        assert fsck.run(path).findings == []
        with opened(path) as killed:
            assert not exists(killed, "triton/KEY")
            killed.clear_orphans()
            assert not killed.nodes.orphans
            assert killed.statistics().total.files == 1
            assert killed.store.totals().objects == 1
            assert sum(1 for _ in killed.store.catalog.keys(b"i")) == sum(1 for _ in _everything(killed)) + 1


def _everything(fs: Filesystem) -> Iterator[int]:
    yield from (ino for ino, _, _ in fs.walk.below(ROOT_INO))


def test_a_file_of_a_large_entry_that_is_in_use_keeps_all_of_it(fs: Filesystem) -> None:
    fill(fs, "triton/KEY")
    seal_all(fs)
    before = counted(fs, "triton/KEY")
    inner = find(fs, "triton/KEY/folder0/inner")
    assert fs.lookup(ROOT, inner, b"file0") is not None
    assert fs.evictor.evict_all([find(fs, "triton/KEY")]) == set()
    assert counted(fs, "triton/KEY") == before
    fs.forget(find(fs, "triton/KEY/folder0/inner/file0"), 1)


def test_a_file_that_is_open_survives_the_removal_of_its_large_entry(fs: Filesystem) -> None:
    fill(fs, "triton/KEY")
    seal_all(fs)
    ino = fs.lookup(ROOT, find(fs, "triton/KEY/folder0/inner"), b"file0")
    assert ino is not None
    assert fs.evictor.evict(find(fs, "triton/KEY"), force=True)
    assert fs.read(ino, 0, 100) == b"bytes of 0"
    fs.forget(ino, 1)
    assert not fs.nodes.orphans


def test_a_file_with_another_name_elsewhere_stays_there(fs: Filesystem) -> None:
    fill(fs, "triton/KEY")
    seal_all(fs)
    fs.link(ROOT, find(fs, "triton/KEY/folder0/inner/file0"), folder(fs, "triton/OTHER"), b"linked")
    fs.forget(find(fs, "triton/OTHER/linked"), 1)
    assert fs.evictor.evict_all([find(fs, "triton/KEY")])
    assert fs.read(find(fs, "triton/OTHER/linked"), 0, 100) == b"bytes of 0"
    assert fs.statistics().total.entries == 1


def test_a_very_large_group_goes_in_pieces(fs: Filesystem) -> None:
    for number in range(3 * PIECE):
        write(fs, f"cute_dsl/stem.{number}", b"bytes of %d" % number)
    seal_all(fs)
    entry = fs.nodes.get(find(fs, "cute_dsl/stem.0")).entry
    with each_transaction(fs) as sizes:
        assert fs.evictor.evict_all([entry])
    assert max(sizes) <= CHANGES_MAX
    assert counted(fs, "cute_dsl") == 0


def test_a_folder_with_many_groups_is_searched_once_for_a_batch_of_them(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        write(fs, f"jax/{number}-cache", b"bytes of %d" % number)
    seal_all(fs)
    entries = [fs.nodes.get(find(fs, f"jax/{number}-cache")).entry for number in range(20)]
    searched, names_in = list[int](), fs.walk._names_in

    def search(ino: int) -> Iterator[tuple[int, bytes]]:
        searched.append(ino)
        return names_in(ino)

    monkeypatch.setattr(fs.walk, "_names_in", search)
    assert fs.evictor.evict_all(entries) == set(entries)
    assert len(searched) == 1


# --- reaping ----------------------------------------------------------------------------------------------------------


def test_what_a_dead_writer_left_goes_in_pieces(fs: Filesystem) -> None:
    fill(fs, "triton/KEY/tmp.1")
    fs.reaper.seconds = fs.reaper.unknown_seconds = 0.0
    with each_transaction(fs) as sizes:
        assert fs.reaper.reap() == 1
    assert max(sizes) <= CHANGES_MAX
    assert counted(fs, "triton/KEY") == 0
    assert not fs.nodes.orphans


def test_a_folder_with_much_that_dead_writers_left_is_searched_once(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        write(fs, f"triton/KEY/tmp.{number}", b"half")
    fs.reaper.seconds = fs.reaper.unknown_seconds = 0.0
    searched, names_in = list[int](), fs.walk._names_in

    def search(ino: int) -> Iterator[tuple[int, bytes]]:
        searched.append(ino)
        return names_in(ino)

    monkeypatch.setattr(fs.walk, "_names_in", search)
    assert fs.reaper.reap() == 30
    assert len(searched) == 1


# --- moving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["triton/OTHER/KEY", "tvm_ffi/KEY", "triton/locks"])
def test_a_folder_that_holds_much_is_not_moved_to_another_entry_or_folder(fs: Filesystem, where: str) -> None:
    """`mv` copies it then."""
    fill(fs, "triton/KEY", files=MOVED_MAX)
    seal_all(fs)
    folder(fs, "triton/OTHER")
    before = counted(fs, "triton/KEY")
    with each_transaction(fs) as sizes, pytest.raises(FsError) as refused:
        rename(fs, "triton/KEY", where)
    assert refused.value.errno == errno.EXDEV
    assert sizes == []
    assert counted(fs, "triton/KEY") == before


def test_a_folder_that_holds_much_gets_another_name_at_once(fs: Filesystem) -> None:
    fill(fs, "triton/tmp.1", files=MOVED_MAX)
    seal_all(fs)
    before = counted(fs, "triton/tmp.1")
    with each_transaction(fs) as sizes:
        rename(fs, "triton/tmp.1", "triton/KEY")
    assert max(sizes) < 10
    assert counted(fs, "triton/KEY") == before
    assert fs.evictor.evict_all([find(fs, "triton/KEY")])


def test_a_folder_that_stays_an_entry_moves_to_another_folder_at_once_however_much_it_holds(fs: Filesystem) -> None:
    folder(fs, "deep_gemm/cache")
    for number in range(3 * MOVED_MAX):
        write(fs, f"deep_gemm/tmp/1/f{number}", b"bytes of %d" % number)
    seal_all(fs)
    with each_transaction(fs) as sizes:
        rename(fs, "deep_gemm/tmp/1", "deep_gemm/cache/KEY")
    assert max(sizes) < 10
    assert counted(fs, "deep_gemm/cache/KEY") == 3 * MOVED_MAX


def test_a_folder_of_a_great_many_folders_is_not_moved_to_another_folder(fs: Filesystem) -> None:
    folder(fs, "deep_gemm/cache")
    for number in range(SEEN_MAX):
        folder(fs, f"deep_gemm/tmp/1/d{number}")
    with pytest.raises(FsError) as refused:
        rename(fs, "deep_gemm/tmp/1", "deep_gemm/cache/KEY")
    assert refused.value.errno == errno.EXDEV


def test_a_folder_that_holds_less_moves_with_all_that_is_in_it(fs: Filesystem) -> None:
    fill(fs, "triton/KEY", files=100)
    seal_all(fs)
    rename(fs, "triton/KEY", "triton/OTHER/KEY")
    other = find(fs, "triton/OTHER")
    assert {fs.nodes.get(ino).entry for ino, _, _ in fs.walk.below(other)} == {other}


def test_moving_folders_does_not_nest_them_deeper_than_making_them(fs: Filesystem) -> None:
    folder(fs, "/".join(["triton", "a", *["d"] * 60]))
    folder(fs, "/".join(["triton", "b", *["d"] * (DEPTH_MAX - 10)]))
    with pytest.raises(FsError) as refused:
        rename(fs, "triton/a", "/".join(["triton", "b", *["d"] * (DEPTH_MAX - 30), "a"]))
    assert refused.value.errno == errno.ENAMETOOLONG
    rename(fs, "triton/a", "/".join(["triton", "b", *["d"] * (DEPTH_MAX - 100), "a"]))


def test_no_way_of_making_names_puts_too_many_into_a_root(fs: Filesystem) -> None:
    taken = fs.attributes(ROOT_INO).size
    for number in range(ROOT_NAMES_MAX - taken):
        ino, _ = fs.make(ROOT, ROOT_INO, b"folder%d" % number, stat.S_IFDIR | 0o755)
        fs.forget(ino, 1)
    write(fs, "triton/KEY/file", b"bytes")
    for act in (
        lambda: fs.make(ROOT, ROOT_INO, b"more", stat.S_IFDIR | 0o755),
        lambda: fs.create(ROOT, ROOT_INO, b"more", 0o644),
        lambda: fs.rename(ROOT, find(fs, "triton"), b"KEY", ROOT_INO, b"more"),
        lambda: fs.link(ROOT, find(fs, "triton/KEY/file"), ROOT_INO, b"more"),
    ):
        with pytest.raises(FsError) as refused:
            act()
        assert refused.value.errno == errno.ENOSPC
    fs.rename(ROOT, ROOT_INO, b"folder1", ROOT_INO, b"renamed")


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_group_that_lost_a_file_before_any_was_sealed_is_found_again_without_a_search(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(fs, "jax/key-cache", b"bytes")
    write(fs, "jax/key-atime", b"more")
    fs.unlink(ROOT, find(fs, "jax"), b"key-atime")
    with monkeypatch.context() as patch:
        patch.setattr(fs.store.catalog, "scan", lambda *_, **__: pytest.fail("it looks through the folder"))
        assert fs.sealer.seal(find(fs, "jax/key-cache"))
    write(fs, "jax/key-atime", b"again")
    seal_all(fs)
    (entry,) = {fs.nodes.get(find(fs, f"jax/key-{part}")).entry for part in ("cache", "atime")}
    assert fs.evictor.evict_all([entry])


# --- sealing ----------------------------------------------------------------------------------------------------------


def test_users_take_turns_in_sealing(fs: Filesystem) -> None:
    for number in range(50):
        write(fs, f"jax/b{number}-cache", b"of B %d" % number, user(2))
    for number in range(5):
        write(fs, f"jax/a{number}-cache", b"of A %d" % number, user(1))
    assert fs.sealer.seal_next(0) == TOGETHER_MAX
    sealed = [fs.nodes.get(find(fs, f"jax/a{number}-cache")).content == Content.OBJECT for number in range(5)]
    assert sealed.count(True) == TOGETHER_MAX // 2
    assert fs.sealer.seal_next(0) == TOGETHER_MAX
    assert {fs.nodes.get(find(fs, f"jax/a{number}-cache")).content for number in range(5)} == {Content.OBJECT}
    assert fs.sealer.waiting() == 55 - 2 * TOGETHER_MAX


def test_the_unsealed_bytes_of_a_user_are_told(fs: Filesystem) -> None:
    changed = write(fs, "jax/a-changed", LARGE, user(1))
    fs.settle()
    fs.write(changed, 0, b"x")  # it is mutable from now on
    for number in range(20):
        write(fs, f"jax/b{number}-cache", b"B" * 1000, user(2))
    write(fs, "jax/a-cache", b"A" * 700, user(1))
    assert [fs.sealer.unsealed_bytes(uid) for uid in (1, 2, 3)] == [700 + len(LARGE), 20_000, 0]
    fs.settle()
    assert [fs.sealer.unsealed_bytes(uid) for uid in (1, 2, 3)] == [len(LARGE), 0, 0]


# --- reports ----------------------------------------------------------------------------------------------------------


def test_a_report_that_is_asked_for_all_the_time_is_not_made_each_time(fs: Filesystem) -> None:
    made, statistics = list[int](), fs.statistics

    def count() -> Statistics:
        made.append(1)
        return statistics()

    fs.statistics = count  # type: ignore[method-assign]
    for _ in range(200):
        ino = fs.report.find(ROOT, b"stats.json")
        assert ino is not None
        assert fs.report.read(ino, 0, 1 << 20).startswith(b"{")
    assert len(made) < 100


def test_a_report_that_is_no_longer_known_is_an_error_and_not_empty(fs: Filesystem) -> None:
    first = fs.report.find(ROOT, b"stats.json")
    assert first is not None
    last = max(fs.report.find(ROOT, b"stats.json") or 0 for _ in range(100))
    assert fs.report.read(last, 0, 1 << 20).startswith(b"{")
    with pytest.raises(FsError) as raised:
        fs.report.read(first, 0, 1 << 20)
    assert raised.value.errno == errno.ESTALE
    fs.report.forget(last)
    with pytest.raises(FsError):
        fs.report.read(last, 0, 1 << 20)
