"""After a power cut: nothing wrong, no part of an entry, and everything that was synced.

The cut is made by hand: the store is copied while it is open, and in the copy every byte that nobody has synced is
turned to zero. `tests/store/test_power_cut.py` cuts the power of a real disk.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kcachefs.core import Filesystem, recovery, syncing
from kcachefs.store import fsck
from kcachefs.store.journal import Changes
from kcachefs.store.places import HEADER
from kcachefs.store.records import Inode
from tests.core.clocks import Clock, clock
from tests.core.trees import ROOT, exists, find, folder, kernel, opened, rename, write

__all__ = ["clock"]

SMALL = b"the bytes of a small file" * 40
LARGE = b"the bytes of a file with a spool file of its own" * 40_000
SUFFIXES = ("source", "ttir", "llir", "ptx", "cubin", "json")


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[Filesystem]:
    with opened(tmp_path / "store") as opened_fs:
        yield opened_fs


@pytest.fixture
def after_cut(fs: Filesystem, tmp_path: Path) -> Callable[[], _Lost]:
    return lambda: _Lost(fs, tmp_path / "copy")


class _Lost:
    """What the next mount finds. The records are all there: of the journal's end, a power cut may spare anything."""

    def __init__(self, fs: Filesystem, copy: Path) -> None:
        shutil.copytree(fs.store.path, copy)
        header = json.loads((copy / HEADER).read_bytes())
        (copy / HEADER).write_text(json.dumps({**header, "boot": "another boot"}))
        for path in (copy / "spool.arena", *(copy / "spool").iterdir()):
            path.write_bytes(bytes(path.stat().st_size))
        self.store = copy

    @contextmanager
    def opened(self) -> Iterator[Filesystem]:
        with opened(self.store) as fs:
            assert not fs.store.lost_power
            yield fs


def content(fs: Filesystem, path: str) -> bytes:
    ino = find(fs, path)
    return fs.read(ino, 0, fs.attributes(ino).size)


def touch(fs: Filesystem, path: str) -> int:
    """Make an empty file, as CREATE does; its kernel forgets it."""
    above, _, name = path.rpartition("/")
    ino, _ = fs.create(ROOT, folder(fs, above), os.fsencode(name), 0o644)
    fs.forget(ino, 1)
    return ino


def overwrite(fs: Filesystem, path: str, data: bytes, offset: int = 0) -> None:
    fs.write(find(fs, path), offset, data)


def sync(fs: Filesystem, path: str) -> None:
    fs.sync(find(fs, path))


def seal_all(fs: Filesystem) -> None:
    while fs.sealer.seal_next(0):
        pass
    fs.store.fold()


# --- what was synced --------------------------------------------------------------------------------------------------


def _append(fs: Filesystem, path: str) -> None:
    overwrite(fs, path, b"more", fs.attributes(find(fs, path)).size)


def _write_past_a_slot(fs: Filesystem, path: str) -> None:
    overwrite(fs, path, b"far away", 2 << 20)


CHANGES: dict[str, Callable[[Filesystem, str], None]] = {
    "overwritten": lambda fs, path: overwrite(fs, path, b"other"),
    "appended to": _append,
    "grown": _write_past_a_slot,
    "truncated": lambda fs, path: fs.files.truncate(find(fs, path), 10),
    "emptied": lambda fs, path: fs.files.truncate(find(fs, path), 0),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("data", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
def test_a_synced_file_that_is_written_again_is_what_was_synced(
    fs: Filesystem, after_cut: Callable[[], _Lost], data: bytes, change: str
) -> None:
    ino = touch(fs, "jax/one-cache")
    if data:
        fs.write(ino, 0, data)
    sync(fs, "jax/one-cache")
    mtime = fs.attributes(find(fs, "jax/one-cache")).mtime
    for name in (change, "overwritten", change):
        CHANGES[name](fs, "jax/one-cache")
    with after_cut().opened() as lost:
        assert content(lost, "jax/one-cache") == data
        if data or change != "emptied":  # that alone would change its mtime, and nothing else
            assert lost.attributes(find(lost, "jax/one-cache")).mtime == mtime


def test_the_last_of_several_syncs_counts(fs: Filesystem, after_cut: Callable[[], _Lost]) -> None:
    write(fs, "jax/one-cache", SMALL)
    for data in (b"one", LARGE, b"three"):
        sync(fs, "jax/one-cache")
        fs.files.truncate(find(fs, "jax/one-cache"), 0)
        overwrite(fs, "jax/one-cache", data)
    with after_cut().opened() as lost:
        assert content(lost, "jax/one-cache") == LARGE


def test_sealing_again_is_as_good_as_a_sync(fs: Filesystem, after_cut: Callable[[], _Lost]) -> None:
    write(fs, "jax/one-cache", SMALL)
    sync(fs, "jax/one-cache")
    overwrite(fs, "jax/one-cache", b"SECOND")
    fs.sealer.seal_quiet(0)
    assert not fs.nodes.get(find(fs, "jax/one-cache")).keeps_synced
    overwrite(fs, "jax/one-cache", b"THE 3RD")
    with after_cut().opened() as lost:
        assert content(lost, "jax/one-cache") == b"SECOND" + SMALL[6:]


def test_what_is_kept_for_a_file_goes_with_it(fs: Filesystem) -> None:
    write(fs, "jax/one-cache", SMALL)
    sync(fs, "jax/one-cache")
    overwrite(fs, "jax/one-cache", b"other")
    assert fs.store.totals().objects == 1
    fs.unlink(ROOT, find(fs, "jax"), b"one-cache")
    assert fs.store.totals().objects == 0


def test_a_file_synced_when_it_was_unlinked_already_harms_nobody(fs: Filesystem) -> None:
    ino, _ = fs.create(ROOT, find(fs, "jax"), b"one-cache", 0o644)
    fs.write(ino, 0, SMALL)
    fs.unlink(ROOT, find(fs, "jax"), b"one-cache")
    fs.sync(ino)
    fs.forget(ino, 1)


def test_a_sync_that_fails_leaves_no_copy_behind(fs: Filesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    ino = write(fs, "jax/one-cache", LARGE)
    fs.write(ino, 0, b"goes on")

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(fs.sealer, "seal", lambda *_: False)  # as of a file that changes all the time
        failing.setattr(fs.store.volumes, "sync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            fs.sync(ino)
    assert not fs.store.volumes.incoming()
    assert not fs.store.volumes.staged


@pytest.mark.parametrize("turn", [1, 2])
def test_a_rename_succeeds_though_what_it_replaces_is_evicted_at_that_moment(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    write(fs, "jax/one-cache", SMALL)
    sync(fs, "jax/one-cache")
    fs.store.fold()
    write(fs, "jax/tmp.1", b"new")
    jax, turns, look = find(fs, "jax"), itertools.count(1), fs.tree.find

    def find_and_be_overtaken(parent: int, name: bytes) -> int | None:
        found = look(parent, name)
        if name == b"one-cache" and next(turns) == turn:
            fs.unlink(ROOT, jax, name)
        return found

    with monkeypatch.context() as evicting:
        evicting.setattr(fs.tree, "find", find_and_be_overtaken)
        fs.is_quick_to_rename(jax, b"tmp.1", jax, b"one-cache")
        fs.rename(ROOT, jax, b"tmp.1", jax, b"one-cache")
    assert content(fs, "jax/one-cache") == b"new"


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_a_sync_ends_and_holds_though_others_go_on_writing(
    fs: Filesystem, after_cut: Callable[[], _Lost], data: bytes, hasty_threads: None
) -> None:
    ino = write(fs, "jax/one-cache", data)
    stop = threading.Event()

    def keep_writing() -> None:
        number = 0
        while not stop.is_set():
            fs.write(ino, 0, b"%020d" % number)
            number += 1

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        for number in range(10):
            fs.write(ino, 100, b"%020d" % number)
            fs.sync(ino)
    finally:
        stop.set()
        writer.join()
    fs.write(ino, 100, b"written and not synced")
    with after_cut().opened() as lost:
        found = content(lost, "jax/one-cache")
        assert found[100:120] == b"%020d" % 9
        assert found[20:100] + found[120:] == data[20:100] + data[120:]
        assert found[:20].isdigit() or found[:20] == data[:20]


# --- replaced by a rename ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
def test_a_file_that_replaces_a_synced_one_has_its_bytes_on_disk_before_its_name(
    fs: Filesystem, after_cut: Callable[[], _Lost], data: bytes
) -> None:
    write(fs, "jax/one-cache", b"the first")
    sync(fs, "jax/one-cache")
    write(fs, "jax/tmp.1", data)
    rename(fs, "jax/tmp.1", "jax/one-cache")
    with after_cut().opened() as lost:
        assert content(lost, "jax/one-cache") == data


def test_bytes_that_were_synced_only_in_part_do_not_replace_what_was_synced(
    fs: Filesystem, after_cut: Callable[[], _Lost]
) -> None:
    write(fs, "jax/one-cache", b"the first")
    sync(fs, "jax/one-cache")
    write(fs, "jax/tmp.1", b"half ")
    sync(fs, "jax/tmp.1")
    overwrite(fs, "jax/tmp.1", b"and half", 5)
    rename(fs, "jax/tmp.1", "jax/one-cache")
    with after_cut().opened() as lost:
        assert content(lost, "jax/one-cache") == b"half and half"


def test_what_replaces_a_file_that_was_never_synced_is_not_sealed_for_it(fs: Filesystem) -> None:
    write(fs, "jax/one-cache", b"the first")
    ino = write(fs, "jax/tmp.1", b"the second")
    rename(fs, "jax/tmp.1", "jax/one-cache")
    assert not fs.nodes.get(ino).flags & Inode.SYNCED
    assert fs.store.totals().objects == 0


# --- entries ----------------------------------------------------------------------------------------------------------


def test_an_entry_of_which_one_file_was_not_on_disk_is_absent(fs: Filesystem, after_cut: Callable[[], _Lost]) -> None:
    for key in ("WHOLE", "WRITTEN", "ADDED"):
        kernel(fs, key)
    seal_all(fs)
    overwrite(fs, "triton/WRITTEN/kernel.ptx", b"other bytes")
    write(fs, "triton/ADDED/kernel.log", b"one more")
    with after_cut().opened() as lost:
        assert all(exists(lost, f"triton/WHOLE/kernel.{suffix}") for suffix in SUFFIXES)
        assert not exists(lost, "triton/WRITTEN")
        assert not exists(lost, "triton/ADDED")
        assert lost.statistics().total.entries == 1


def test_a_group_of_files_is_absent_as_a_whole(fs: Filesystem, after_cut: Callable[[], _Lost]) -> None:
    for stem in ("one", "two"):
        write(fs, f"cute_dsl/{stem}.o", SMALL)
        write(fs, f"cute_dsl/{stem}.json", b"{}")
    seal_all(fs)
    overwrite(fs, "cute_dsl/one.json", b"[]")
    with after_cut().opened() as lost:
        assert [exists(lost, f"cute_dsl/{name}") for name in ("one.o", "one.json")] == [False, False]
        assert [exists(lost, f"cute_dsl/{name}") for name in ("two.o", "two.json")] == [True, True]


def test_what_was_being_written_under_a_temporary_name_takes_no_entry_with_it(
    fs: Filesystem, after_cut: Callable[[], _Lost]
) -> None:
    kernel(fs, "KEY")
    seal_all(fs)
    write(fs, "triton/KEY/tmp.pid_7_abc/kernel.cubin", b"the next")
    write(fs, "triton/KEY/.1.2.tmp", b"and another")
    with after_cut().opened() as lost:
        assert all(exists(lost, f"triton/KEY/kernel.{suffix}") for suffix in SUFFIXES)
        assert not exists(lost, "triton/KEY/tmp.pid_7_abc/kernel.cubin")
        assert not exists(lost, "triton/KEY/.1.2.tmp")


def test_a_sync_of_one_file_is_one_of_its_entry(
    fs: Filesystem, after_cut: Callable[[], _Lost], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of that moment: what is written later does not count, and what somebody is writing is not touched."""
    monkeypatch.setattr(syncing, "REST_SECONDS", 3600)  # what was written a moment ago is still being written
    kernel(fs, "KEY")
    write(fs, "triton/KEY/in_place.so", b"half a lib")
    sync(fs, "triton/KEY/kernel.json")
    before = {suffix: content(fs, f"triton/KEY/kernel.{suffix}") for suffix in SUFFIXES}
    overwrite(fs, "triton/KEY/kernel.ptx", b"other bytes")
    overwrite(fs, "triton/KEY/in_place.so", b"rary", 10)
    write(fs, "triton/KEY/added", b"one more")
    with after_cut().opened() as lost:
        assert {suffix: content(lost, f"triton/KEY/kernel.{suffix}") for suffix in SUFFIXES} == before
        assert not exists(lost, "triton/KEY/in_place.so")
        assert not exists(lost, "triton/KEY/added")


def test_an_entry_that_lost_something_added_after_its_sync_is_what_was_synced(
    fs: Filesystem, after_cut: Callable[[], _Lost]
) -> None:
    kernel(fs, "KEY")
    sync(fs, "triton/KEY/kernel.json")
    write(fs, "triton/KEY/second.cubin", LARGE)
    write(fs, "triton/KEY/second.json", b"names second.cubin")
    assert fs.sealer.seal(find(fs, "triton/KEY/second.json"))
    fs.store.fold()
    with after_cut().opened() as lost:
        assert all(exists(lost, f"triton/KEY/kernel.{suffix}") for suffix in SUFFIXES)
        assert not exists(lost, "triton/KEY/second.cubin")
        assert not exists(lost, "triton/KEY/second.json")


def test_what_replaces_a_synced_file_brings_the_rest_of_its_entry_along(
    fs: Filesystem, after_cut: Callable[[], _Lost]
) -> None:
    kernel(fs, "KEY")
    sync(fs, "triton/KEY/kernel.json")
    for name in ("second.cubin", "kernel.json"):
        write(fs, f"triton/KEY/tmp.pid_1_second/{name}", name.encode())
        rename(fs, f"triton/KEY/tmp.pid_1_second/{name}", f"triton/KEY/{name}")
    with after_cut().opened() as lost:
        assert content(lost, "triton/KEY/kernel.json") == b"kernel.json"
        assert content(lost, "triton/KEY/second.cubin") == b"second.cubin"


@pytest.mark.parametrize("was_synced", [False, True], ids=["first sync", "second sync"])
def test_a_power_cut_in_the_middle_of_a_sync_leaves_no_part_of_an_entry(
    fs: Filesystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_synced: bool
) -> None:
    """Before and after each transaction and each fdatasync, whichever of the volumes the disk had got until then."""
    kernel(fs, "KEY", size=100_000)
    if was_synced:
        sync(fs, "triton/KEY/kernel.json")
    else:
        overwrite(fs, "triton/KEY/kernel.cubin", os.urandom(900_000))
        rename(fs, "triton/KEY/kernel.cubin", "triton/KEY/cubin")
        rename(fs, "triton/KEY/cubin", "triton/KEY/kernel.cubin")
    write(fs, "triton/KEY/tmp.pid_2_more/second.cubin", os.urandom(900_000))
    rename(fs, "triton/KEY/tmp.pid_2_more/second.cubin", "triton/KEY/second.cubin")
    write(fs, "triton/KEY/tmp.pid_2_more/second.json", os.urandom(3000))
    rename(fs, "triton/KEY/tmp.pid_2_more/second.json", "triton/KEY/second.json")
    disk = _Disk(fs, tmp_path, monkeypatch)
    sync(fs, "triton/KEY/second.json")
    monkeypatch.undo()
    found = set[tuple[int, int]]()
    for cut in disk.cuts:
        with cut.opened() as lost:
            first = [exists(lost, f"triton/KEY/kernel.{suffix}") for suffix in SUFFIXES].count(True)
            second = [exists(lost, f"triton/KEY/second.{suffix}") for suffix in ("cubin", "json")].count(True)
            found.add((first, second))
        shutil.rmtree(cut.store)
    assert len(disk.cuts) > 2 * len(SUFFIXES)
    assert found == {(6 if was_synced else 0, 0), (6, 2)}


def test_an_entry_of_which_a_synced_file_is_damaged_is_absent(fs: Filesystem, after_cut: Callable[[], _Lost]) -> None:
    for key in ("KEY", "OTHER"):
        kernel(fs, key)
        write(fs, f"triton/{key}/tmp.pid_2_more/large.cubin", os.urandom(900_000))
        rename(fs, f"triton/{key}/tmp.pid_2_more/large.cubin", f"triton/{key}/large.cubin")
        sync(fs, f"triton/{key}/kernel.json")
    lost = after_cut()
    large = [path for path in (lost.store / "volumes").iterdir() if path.stat().st_size > 900_000]
    os.truncate(max(large), 1000)
    with lost.opened() as found:
        assert len(large) == 2
        assert exists(found, "triton/KEY/large.cubin")
        assert not any(exists(found, f"triton/OTHER/kernel.{suffix}") for suffix in SUFFIXES)


@pytest.mark.parametrize("tries", [1, 4])
def test_a_file_that_changes_while_its_bytes_are_synced_is_what_was_synced(
    fs: Filesystem, after_cut: Callable[[], _Lost], monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """However often the sync starts over."""
    monkeypatch.setattr(syncing, "_TRIES", tries)
    ino, fdatasync, versions = write(fs, "jax/one-cache", b"version 0"), os.fdatasync, iter(range(1, 100))

    def change_and_sync(fd: int) -> None:
        fdatasync(fd)
        if not fs.nodes.get(ino).flags & Inode.SYNCED:
            fs.write(ino, 0, b"version %d" % next(versions))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", change_and_sync)
        sync(fs, "jax/one-cache")
    overwrite(fs, "jax/one-cache", b"not synced")
    with after_cut().opened() as lost:
        assert content(lost, "jax/one-cache") == b"version %d" % (tries - 1)


def test_a_sync_in_a_very_large_entry_is_one_of_the_file_alone(
    fs: Filesystem, after_cut: Callable[[], _Lost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "ENTRY_MAX", 3)
    kernel(fs, "KEY")
    sync(fs, "triton/KEY/kernel.json")
    with after_cut().opened() as lost:
        assert [suffix for suffix in SUFFIXES if exists(lost, f"triton/KEY/kernel.{suffix}")] == ["json"]


class _Disk:
    """Knows what of each volume was synced, and cuts the power at every step, once for each set of volumes to lose."""

    def __init__(self, fs: Filesystem, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cuts: list[_Lost] = []
        self._fs = fs
        self._folder = folder
        self._synced = {path.stat().st_ino: path.stat().st_size for path in self._volumes(fs.store.path)}
        commit, fdatasync = fs.store.catalog.commit, os.fdatasync

        def commit_and_cut(changes: Changes) -> None:
            self.cut()
            commit(changes)
            self.cut()

        def sync_and_cut(fd: int) -> None:
            self.cut()
            fdatasync(fd)
            self._synced[os.fstat(fd).st_ino] = os.fstat(fd).st_size
            self.cut()

        monkeypatch.setattr(fs.store.catalog, "commit", commit_and_cut)
        monkeypatch.setattr(os, "fdatasync", sync_and_cut)

    def cut(self) -> None:
        """The power goes now."""
        store = self._fs.store.path
        lengths = {path.relative_to(store): self._synced.get(path.stat().st_ino, 0) for path in self._volumes(store)}
        unsynced = [path for path, length in lengths.items() if (store / path).stat().st_size > length]
        for lost in {tuple(unsynced), *((path,) for path in unsynced)}:
            cut = _Lost(self._fs, self._folder / f"copy{len(self.cuts)}")
            for path in lost:
                os.truncate(cut.store / path, lengths[path])
            self.cuts.append(cut)

    def _volumes(self, store: Path) -> list[Path]:
        return [path for folder in ("volumes", "incoming") for path in (store / folder).iterdir()]


def test_a_file_with_a_name_in_two_entries_takes_both_with_it(fs: Filesystem, after_cut: Callable[[], _Lost]) -> None:
    for key in ("ONE", "TWO", "THREE"):
        kernel(fs, key)
    fs.link(ROOT, find(fs, "triton/ONE/kernel.ptx"), folder(fs, "triton/TWO"), b"linked")
    fs.forget(find(fs, "triton/ONE/kernel.ptx"), 1)
    seal_all(fs)
    overwrite(fs, "triton/ONE/kernel.ptx", b"other bytes")
    with after_cut().opened() as lost:
        assert [exists(lost, f"triton/{key}") for key in ("ONE", "TWO", "THREE")] == [False, False, True]


def test_an_object_whose_record_got_to_the_disk_before_its_bytes_takes_its_entry_with_it(
    fs: Filesystem, after_cut: Callable[[], _Lost]
) -> None:
    kernel(fs, "FOLDED")
    seal_all(fs)
    folded = max(path.stat().st_size for path in (fs.store.path / "volumes").iterdir())
    kernel(fs, "KEY")
    while fs.sealer.seal_next(0):
        pass
    lost = after_cut()
    (volume,) = (lost.store / "volumes").iterdir()
    assert volume.stat().st_size > folded + 6 * 3000
    os.truncate(volume, folded + 3 * 3000)
    with lost.opened() as found:
        assert all(content(found, f"triton/FOLDED/kernel.{suffix}") for suffix in SUFFIXES)
        assert not exists(found, "triton/KEY")


# --- empty files ------------------------------------------------------------------------------------------------------


def test_an_empty_file_that_may_have_been_about_to_be_written_is_absent(
    fs: Filesystem, after_cut: Callable[[], _Lost]
) -> None:
    touch(fs, "triton/KEY/kernel.so")
    with after_cut().opened() as lost:
        assert not exists(lost, "triton/KEY")


def test_an_empty_file_that_has_long_been_there_stays(
    fs: Filesystem, after_cut: Callable[[], _Lost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "YOUNG_SECONDS", 0.0)
    touch(fs, "triton/KEY/marker")
    touch(fs, "triton/OTHER/marker")
    with after_cut().opened() as lost:
        assert exists(lost, "triton/KEY/marker")


def test_so_it_is_where_the_clock_was_ahead_for_a_while(
    fs: Filesystem, after_cut: Callable[[], _Lost], clock: Clock
) -> None:
    """Beside a file of the future it would seem to be old."""
    clock.ahead = 365 * 86400.0
    touch(fs, "triton/OLD/marker")
    clock.ahead = 0.0
    touch(fs, "triton/KEY/kernel.so")
    with after_cut().opened() as lost:
        assert not exists(lost, "triton/KEY")


# --- fsck -------------------------------------------------------------------------------------------------------------


def test_a_repair_before_the_mount_leaves_no_part_of_an_entry_and_nothing_synced_out(
    fs: Filesystem, after_cut: Callable[[], _Lost]
) -> None:
    kernel(fs, "KEY")
    write(fs, "jax/one-cache", LARGE)
    sync(fs, "jax/one-cache")
    seal_all(fs)
    overwrite(fs, "jax/one-cache", b"other")
    overwrite(fs, "triton/KEY/kernel.ptx", b"far away", 2 << 20)
    lost = after_cut()
    for path in (lost.store / "spool").iterdir():
        path.unlink()
    assert fsck.run(lost.store, repair=True).exit_code <= 1
    with lost.opened() as found:
        assert content(found, "jax/one-cache") == LARGE
        assert not exists(found, "triton/KEY")


def test_a_repair_drops_the_whole_entry_of_a_damaged_file(fs: Filesystem, after_cut: Callable[[], _Lost]) -> None:
    kernel(fs, "KEY")
    kernel(fs, "OTHER", size=700_000)
    seal_all(fs)
    lost = after_cut()
    next(path for path in (lost.store / "volumes").iterdir() if path.stat().st_size > 700_000).unlink()
    assert fsck.run(lost.store, repair=True).exit_code == 1
    with lost.opened() as found:
        assert all(exists(found, f"triton/KEY/kernel.{suffix}") for suffix in SUFFIXES)
        assert not any(exists(found, f"triton/OTHER/kernel.{suffix}") for suffix in SUFFIXES)
