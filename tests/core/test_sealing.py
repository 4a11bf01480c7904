"""Files that wait are sealed a few at a time, in one transaction: each as if it were alone."""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kcachefs.core import Filesystem, sealing, uses
from kcachefs.core.limits import Limits
from kcachefs.core.sealing import TOGETHER_MAX
from kcachefs.errors import NoSpace, ObjectMissing
from kcachefs.store.entry_records import EntryRecord, NamespaceRecord
from kcachefs.store.journal import encode_record
from kcachefs.store.ledger import Staged
from kcachefs.store.object_records import ObjectRecord, Totals
from kcachefs.store.records import Content, Inode
from tests.core.trees import (
    LARGE,
    ROOT,
    after_stage,
    find,
    folder,
    look_up,
    nothing_acknowledged,
    opened,
    refused,
    rename,
    user,
    write,
)
from tests.disks import Disk, ext4, need_root
from tests.waiting import PATIENCE


def contents(fs: Filesystem, files: list[int]) -> list[int]:
    return [fs.attributes(ino).content for ino in files]


def test_what_waits_is_sealed_in_few_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store") as fs:
        files = [write(fs, f"triton/KEY/{number}", b"%d" % number) for number in range(TOGETHER_MAX + 3)]
        commit, commits = fs.store.catalog.commit, []

        def count(changes: Any) -> None:
            commits.append(len(changes))
            commit(changes)

        monkeypatch.setattr(fs.store.catalog, "commit", count)
        # The volume that they go to is made in a transaction of its own.
        assert (fs.sealer.seal_next(0), len(commits)) == (TOGETHER_MAX, 3)
        assert contents(fs, files).count(Content.OBJECT) == TOGETHER_MAX
        assert (fs.sealer.seal_next(0), len(commits)) == (3, 4)
        assert (fs.sealer.seal_next(0), len(commits)) == (0, 4)
        assert set(contents(fs, files)) == {Content.OBJECT}
        record = fs.table.get(find(fs, "triton/KEY"))
        assert record is not None
        assert (record.files, record.plain) == (len(files), sum(len(b"%d" % number) for number in range(len(files))))


def test_small_files_do_not_wait_for_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store") as fs:
        small = [write(fs, f"triton/KEY/{number}", b"%d" % number) for number in range(3)]
        large = [write(fs, f"triton/KEY/large{number}", LARGE + b"%d" % number) for number in range(2)]
        stage, seen = fs.store.objects.stage_file, []

        def look_and_stage(*arguments: Any) -> Staged:
            seen.append(contents(fs, [*small, *large]))
            return stage(*arguments)

        monkeypatch.setattr(fs.store.objects, "stage_file", look_and_stage)
        assert [fs.sealer.seal_next(0) for _ in range(3)] == [4, 1, 0]
        assert seen == [[1, 1, 1, 2, 2], [1, 1, 1, 1, 2]]
        assert (Content.OBJECT, Content.SPOOL) == (1, 2)


def test_equal_files_that_are_sealed_together_are_stored_once(tmp_path: Path) -> None:
    sizes = {}
    for copies in (1, 5):
        with opened(tmp_path / f"store{copies}") as fs:
            for number in range(copies):
                write(fs, f"triton/KEY/{number}", LARGE[:50_000] + b"same")
                write(fs, f"triton/OTHER/{number}", LARGE)  # from the spool
            assert fs.sealer.seal_next(0)
            while fs.sealer.seal_next(0):
                pass
            totals = fs.store.objects.totals()
            sizes[copies] = totals.objects, totals.live, totals.volumes
            assert totals.referenced == copies * (50_004 + len(LARGE))
    assert sizes[1] == sizes[5]


def test_one_that_is_written_meanwhile_is_sealed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store") as fs:
        files = [write(fs, f"triton/KEY/{number}", b"%d" % number) for number in range(4)]
        after_stage(fs, monkeypatch, lambda: fs.write(files[1], 0, b"written"), number=3)
        assert fs.sealer.seal_next(0) == 4
        assert contents(fs, files) == [Content.OBJECT, Content.SLOT, Content.OBJECT, Content.OBJECT]
        assert fs.read(files[1], 0, 100) == b"written"
        assert fs.sealer.seal_next(0) == 1
        assert fs.attributes(files[1]).content == Content.OBJECT
        assert fs.read(files[1], 0, 100) == b"written"


def test_one_that_is_removed_meanwhile_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as fs:
        files = [write(fs, f"triton/KEY/{number}", b"%d" % number) for number in range(4)]
        parent = find(fs, "triton/KEY")
        after_stage(fs, monkeypatch, lambda: fs.unlink(ROOT, parent, b"2"), number=2)
        assert fs.sealer.seal_next(0) == 4
        assert contents(fs, [files[0], files[1], files[3]]) == [Content.OBJECT] * 3
        record = fs.table.get(parent)
        assert record is not None
        assert record.files == 3


def test_a_twin_that_goes_meanwhile_is_stored_after_all_and_nothing_counts_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as fs:
        write(fs, "triton/OLD/twin", b"the same bytes")
        fs.settle()
        files = [write(fs, f"triton/NEW{number}/file", b"%d" % number) for number in range(3)]
        files.append(write(fs, "triton/NEW3/twin", b"the same bytes"))
        after_stage(fs, monkeypatch, lambda: fs.unlink(ROOT, find(fs, "triton/OLD"), b"twin"), number=4)
        assert fs.sealer.seal_next(0) == 4
        assert contents(fs, files) == [Content.OBJECT] * 4
        assert fs.read(files[3], 0, 100) == b"the same bytes"
        row = fs.history.row(find(fs, "triton"), 0)
        assert row.misses == 4, "those since the last time that they were written down"


def test_one_that_is_written_while_another_fails_rests_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the middle of being written: sealed now, its next write would make it mutable."""
    with opened(tmp_path / "store") as fs:
        write(fs, "triton/OLD/twin", b"the same bytes")
        fs.settle()
        files = [write(fs, f"triton/NEW/{number}", b"%d" % number) for number in range(3)]
        files.append(write(fs, "triton/NEW/twin", b"the same bytes"))

        def overtake() -> None:
            fs.unlink(ROOT, find(fs, "triton/OLD"), b"twin")
            fs.write(files[1], 0, b"the first half")

        after_stage(fs, monkeypatch, overtake, number=4)
        assert fs.sealer.seal_next(0) == 4
        assert contents(fs, files) == [Content.OBJECT, Content.SLOT, Content.OBJECT, Content.OBJECT]
        fs.write(files[1], 14, b" and the second")
        assert not fs.nodes.get(files[1]).flags & Inode.MUTABLE


def test_one_that_cannot_be_looked_at_does_not_keep_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store") as fs:
        files = [write(fs, f"triton/KEY/{number}", b"%d" % number) for number in range(6)]
        look = fs.files.attributes

        def fail(ino: int) -> Inode:
            if ino == files[3]:
                raise OSError(errno.EMFILE, "too many open files")
            return look(ino)

        with monkeypatch.context() as patch:
            patch.setattr(fs.files, "attributes", fail)
            with pytest.raises(OSError, match="too many open files"):
                fs.sealer.seal_next(0)
        assert contents(fs, files).count(Content.OBJECT) == 5
        assert fs.sealer.seal(files[3])


def test_settling_waits_for_what_another_thread_is_sealing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store") as fs:
        files = [write(fs, f"triton/KEY{number}/file", b"%d" % number) for number in range(TOGETHER_MAX)]
        begun, go_on = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            go_on.wait(PATIENCE)

        after_stage(fs, monkeypatch, wait, number=1)
        other = threading.Thread(target=fs.sealer.seal_next, args=(0,))
        other.start()
        assert begun.wait(PATIENCE)
        assert fs.sealer.unsealed_bytes(0) == TOGETHER_MAX
        sleep = time.sleep

        def let_go_on(seconds: float) -> None:
            go_on.set()
            sleep(seconds)

        monkeypatch.setattr(time, "sleep", let_go_on)  # as soon as somebody waits for it
        fs.settle()
        other.join()
        assert contents(fs, files) == [Content.OBJECT] * TOGETHER_MAX
        assert fs.table.counts(find(fs, "triton")).entries == TOGETHER_MAX


# --- groups whose record went -----------------------------------------------------------------------------------------


def test_what_belongs_nowhere_any_more_is_not_taken_for_a_lock(tmp_path: Path) -> None:
    """A lock is everybody's; this file is its owner's. Its newest name is a lock's, and its group's record is gone."""
    with opened(tmp_path / "store") as fs:
        files = {name: write(fs, f"inductor/xy/ck.{name}", b"bytes", user(1000)) for name in ("x", "so")}
        fs.link(user(1000), files["so"], folder(fs, "inductor/zz", user(1000)), b"k.lock")
        fs.unlink(user(1000), find(fs, "inductor/xy"), b"ck.x")
        node = fs.nodes.get(files["so"])
        assert fs.table.get(node.entry) is None
        fs.settle()
        assert (node.entry, node.content) == (0, Content.OBJECT)
        assert node.flags & Inode.PUBLISHED
        fs.forget(files["so"], 1)


def test_one_that_belongs_nowhere_any_more_does_not_take_its_group_along(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        other = folder(fs, "inductor/zz")
        files = {name: write(fs, f"inductor/xy/ck.{name}", b"bytes") for name in ("x", "so", "py", "h")}
        fs.link(ROOT, files["so"], other, b"other.so")
        fs.unlink(ROOT, other, b"other.so")
        fs.unlink(ROOT, find(fs, "inductor/xy"), b"ck.x")
        assert fs.table.get(fs.nodes.get(files["py"]).entry) is None
        fs.settle()
        (entry,) = {fs.nodes.get(files[name]).entry for name in ("py", "h")}
        record = fs.table.get(entry)
        assert record is not None
        assert (record.files, fs.nodes.get(files["so"]).entry) == (2, 0)
        fs.forget(files["so"], 1)


# --- full disks -------------------------------------------------------------------------------------------------------


def test_what_could_not_be_acknowledged_does_not_count(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        for number in range(4):
            write(fs, f"triton/KEY{number}/file", b"%d" % number)
        row = fs.history.row(find(fs, "triton"), 0)
        for _ in range(3):
            with nothing_acknowledged(fs):
                fs.sealer.seal_next(0)
            assert (row.misses, row.compiled) == (0, 0)
        while fs.sealer.seal_next(0):
            pass
        assert (row.misses, fs.table.counts(find(fs, "triton")).misses) == (4, 4)


def test_a_journal_with_little_room_gets_one_file_after_the_other(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        files = [write(fs, f"triton/KEY{number}/file", os.urandom(1000)) for number in range(16)]
        refusals = 0
        with refused(fs, lambda changes: len(encode_record(1, changes)) > 1500):
            while fs.sealer.waiting():
                try:
                    fs.sealer.seal_next(0)
                except NoSpace:
                    refusals += 1
        assert contents(fs, files) == [Content.OBJECT] * 16
        assert 0 < refusals < 16


def test_one_that_cannot_be_read_does_not_keep_the_others(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        files = [write(fs, f"triton/KEY/{number}", LARGE) for number in range(5)]
        broken = fs.store.spool.path(fs.nodes.get(files[2]).spool)
        fs.unsealed._open.clear()
        os.rename(broken, tmp_path / "away")
        failures = 0
        while fs.sealer.waiting():
            try:
                fs.sealer.seal_next(0)
            except ObjectMissing:
                failures += 1
        assert failures == 1
        assert [fs.nodes.get(ino).content for ino in files].count(Content.OBJECT) == 4
        os.rename(tmp_path / "away", broken)
        assert fs.sealer.seal(files[2])


def test_what_fails_for_a_moment_is_sealed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files, a disk that fails: nothing says so of the file itself."""
    with opened(tmp_path / "store") as fs:
        files = [write(fs, f"triton/KEY/{number}", data) for number, data in enumerate((b"small", b"other", LARGE))]

        def fail(changes: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as failing:
            failing.setattr(fs.store.catalog._journal, "append", fail)
            for _ in range(3):
                with pytest.raises(OSError, match="Input/output error"):
                    fs.sealer.seal_next(0)
        assert fs.sealer.waiting() == 3
        while fs.sealer.seal_next(0):
            pass
        assert set(contents(fs, files)) == {Content.OBJECT}


def test_a_file_whose_truncation_fails_while_it_is_sealed_is_sealed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as fs:
        ino = write(fs, "triton/KEY/file", b"content" * 100)

        def truncate() -> None:
            with nothing_acknowledged(fs):
                fs.files.truncate(ino, 0)

        after_stage(fs, monkeypatch, truncate)
        fs.sealer.seal_next(0)
        assert contents(fs, [ino]) == [Content.SLOT]
        assert fs.sealer.waiting() == 1
        assert fs.sealer.seal_next(0) == 1
        assert contents(fs, [ino]) == [Content.OBJECT]
        assert fs.read(ino, 0, 1000) == b"content" * 100


@need_root
def test_on_a_full_disk_what_fits_is_sealed_and_the_rest_waits(small_disk: Disk) -> None:
    with opened(small_disk.path / "store") as fs:
        files = [write(fs, f"triton/KEY/{number}", os.urandom(100 << 10)) for number in range(TOGETHER_MAX)]
        before = [fs.read(ino, 0, 1 << 20) for ino in files]
        small_disk.fill(leave=450 << 10)
        with pytest.raises(NoSpace):
            fs.sealer.seal_next(0)
        sealed = contents(fs, files).count(Content.OBJECT)
        assert 0 < sealed < TOGETHER_MAX
        assert fs.sealer.waiting() >= TOGETHER_MAX - sealed
        small_disk.make_room()
        while fs.sealer.seal_next(0):
            pass
        assert set(contents(fs, files)) == {Content.OBJECT}
        assert [fs.read(ino, 0, 1 << 20) for ino in files] == before


def books(fs: Filesystem) -> dict[str, Any]:
    """Everything that is counted, without the moments at which it happened."""
    fs.store.fold()
    found: dict[str, Any] = {}
    for key, raw in fs.store.catalog.walk(b""):
        assert raw is not None
        name = key.hex()
        if key[:1] == b"e":
            entry = EntryRecord.unpack(raw)
            entry.created, entry.used = 0, int(entry.used > 0)
            found[name] = entry
        elif key[:1] in (b"c", b"u"):
            account = NamespaceRecord.unpack(raw)
            account.used = int(account.used > 0)
            found[name] = account
        elif key[:1] == b"o":
            record = ObjectRecord.unpack(raw)
            found[name] = record.length, record.plain, record.refs, record.flags
        elif key[:1] == b"i":
            node = Inode.unpack(raw)
            found[name] = node.content, node.digest, node.entry, node.flags, node.size, node.nlink, node.uid
        elif key[:1] == b"t":
            found[name] = Totals.unpack(raw)
        elif key[:1] in (b"d", b"g"):
            found[name] = len(raw)
    rows = fs.history.row(find(fs, "triton"), 0)
    return found | {"misses": rows.misses, "remade": rows.remade}


@pytest.mark.parametrize("seed", range(6))
def test_the_books_are_the_same_as_when_each_is_sealed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Kernels, groups of files, equal bytes, empty files, files of others, replaced and rewritten ones."""
    monkeypatch.setattr(uses, "COMPLETE_NS", 0)  # whether a use is a hit must not depend on how long the writes take
    seen = []
    for together in (1, TOGETHER_MAX, 3):
        monkeypatch.setattr(sealing, "TOGETHER_MAX", together)
        random_choice = random.Random(seed)
        with opened(tmp_path / f"store{together}") as fs:
            for step in range(60):
                key = f"triton/KEY{random_choice.randrange(6)}"
                what, data = random_choice.randrange(8), random_choice.randbytes(random_choice.randrange(3000))
                caller = user(random_choice.choice([0, 0, 1000]), pid=random_choice.choice([1_000_001, 1_000_003]))
                if what < 3:
                    write(fs, f"{key}/file{step}", data, caller)
                elif what == 3:
                    write(
                        fs,
                        f"inductor/xy/cxy{step % 4}.{random_choice.choice(['py', 'so', 'main.o'])}{step}",
                        data,
                        caller,
                    )
                elif what == 4:
                    write(fs, f"{key}/same{step}", b"the same bytes")
                elif what == 5:
                    write(fs, f"{key}/empty{step}", b"")
                elif what == 6:
                    folder(fs, key)
                    write(fs, f"{key}/tmp.{step}", data)
                    rename(fs, f"{key}/tmp.{step}", f"{key}/kernel.cubin")
                elif (parent := folder(fs, key)) and (found := fs.tree.find(parent, b"kernel.cubin")):
                    look_up(fs, f"{key}/kernel.cubin", 1_000_002)
                    fs.write(found, random_choice.randrange(100), data)
                if step % 20 == 19:
                    while fs.sealer.seal_next(0):
                        pass
                    fs.sealer.seal_quiet(0)
            fs.settle()
            seen.append(books(fs))
    assert len(seen[0]) > 50
    assert seen[0] == seen[1] == seen[2]


@need_root
def test_on_a_disk_that_is_nearly_full_sealing_gives_room_back_before_it_takes_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_limits = Limits(max_size=1 << 40, grace=0.0, min_free=0)
    with ext4(tmp_path, "disk", megabytes=48) as disk, opened(disk.path / "store", no_limits) as fs:
        for number in itertools.count():
            if disk.free < 7 << 20:
                break
            write(fs, f"triton/{number}/kernel.ptx", os.urandom(60_000))
        fs.set_limits(Limits(max_size=1 << 40, grace=0.0, min_free=8 << 20))
        seal_next, free = fs.sealer.seal_next, []

        def seal_and_look(rest_seconds: float) -> int:
            taken = seal_next(rest_seconds)
            free.append(disk.free)
            return taken

        monkeypatch.setattr(fs.sealer, "seal_next", seal_and_look)
        now = time.monotonic()
        with monkeypatch.context() as no_time_passes:
            no_time_passes.setattr(sealing, "time", SimpleNamespace(monotonic=lambda: now, time_ns=time.time_ns))
            fs.evictor.seal(now + PATIENCE)
        assert fs.sealer.waiting() == 0
        assert len(free) > 10
        assert min(free) > 3 << 20
