"""The bytes of files, seen by one thread while another moves them."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcachefs.core import Filesystem
from kcachefs.core.files import QUICK_READ, ZERO_RANGE
from kcachefs.core.unsealed import SpoolFile
from kcachefs.errors import FsError, NoSpace, ObjectMissing
from kcachefs.store.frames import FRAME_SIZE
from kcachefs.store.ledger import Staged
from kcachefs.store.records import Content, Inode
from kcachefs.store.slots import SLOT_SIZE
from tests.core.trees import LARGE, ROOT, after_stage, find, folder, nothing_acknowledged, opened, write
from tests.disks import Disk
from tests.waiting import until

CONTENT = b"content" * 20
PAGE = 4096


@pytest.mark.usefixtures("hasty_threads")
def test_whoever_reads_sees_all_of_a_file_while_it_is_sealed_and_unsealed(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        parent = folder(fs, "triton/key")
        fs.create(ROOT, parent, b"file", 0o644)
        ino = find(fs, "triton/key/file")
        fs.write(ino, 0, CONTENT)
        stop = threading.Event()
        seen: list[object] = []

        def read() -> None:
            while not stop.is_set():
                size, content = fs.attributes(ino).size, fs.read(ino, 0, 1000)
                if (size, content) != (len(CONTENT), CONTENT):
                    seen.append((size, content))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for _ in range(200):
                fs.sealer.seal(ino)
                fs.write(ino, 0, CONTENT[:1])  # brings it back from the objects
        finally:
            stop.set()
            reader.join()
        assert seen == []
        fs.forget(ino, 1)


@pytest.mark.parametrize("size", [100, QUICK_READ + 1, FRAME_SIZE, FRAME_SIZE + 1, SLOT_SIZE, SLOT_SIZE + 1, 5_000_000])
def test_the_end_of_a_file_that_was_just_sealed_is_read_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    with opened(tmp_path / "store") as fs:
        content = os.urandom(size)
        ino = write(fs, "triton/key/file", content)
        assert fs.sealer.seal(ino)
        volumes, seen = fs.store.volumes, []

        def read(number: int, offset: int, length: int) -> bytes:
            seen.append(number)
            return type(volumes).read(volumes, number, offset, length)

        page = (size - 1) // PAGE * PAGE
        with monkeypatch.context() as patch:
            patch.setattr(volumes, "read", read)
            assert fs.files.is_quick(ino, page)
            assert fs.read(ino, page, PAGE) == content[page:]
            assert seen == []
            assert fs.read(ino, 0, size) == content
        assert bool(seen) == (size > FRAME_SIZE)


def test_a_write_beside_two_who_seal_the_file_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store") as fs:
        ino = write(fs, "triton/key/file", LARGE)

        def overtake() -> None:
            fs.write(ino, 0, b"written")
            fs.sealer.seal_next(0)

        after_stage(fs, monkeypatch, overtake, way="stage_file")
        assert not fs.sealer.seal(ino)
        assert fs.read(ino, 0, 7) == b"written"
        assert fs.sealer.seal_next(0)
        assert fs.attributes(ino).content == Content.OBJECT
        assert fs.read(ino, 0, 7) == b"written"


def test_an_end_that_was_written_beside_the_sealer_is_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = len(LARGE) - 7
    with opened(tmp_path / "store") as fs:
        ino = write(fs, "triton/key/file", LARGE)
        after_stage(fs, monkeypatch, lambda: fs.write(ino, end, b"written"), way="stage_file")
        assert not fs.sealer.seal(ino)
        twin = write(fs, "triton/key/twin", LARGE)
        assert fs.sealer.seal(twin)
        assert fs.sealer.seal(ino)
        assert fs.read(twin, end, 100) == LARGE[end:]
        assert fs.read(ino, end, 100) == b"written"


def test_a_file_that_is_emptied_beside_the_sealer_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store") as fs:
        ino = write(fs, "triton/key/file", LARGE)
        stage = fs.store.objects.stage_file

        def be_overtaken_and_stage(fd: int) -> Staged:
            monkeypatch.undo()
            fs.files.truncate(ino, 0)
            return stage(fd)

        monkeypatch.setattr(fs.store.objects, "stage_file", be_overtaken_and_stage)
        assert not fs.sealer.seal(ino)
        assert fs.read(ino, 0, 100) == b""
        assert fs.sealer.seal(ino)
        assert fs.attributes(ino).content == Content.NONE


CHANGES: dict[str, Callable[[Filesystem, int], object]] = {
    "write": lambda fs, ino: fs.write(ino, 0, b"written"),
    "truncate": lambda fs, ino: fs.files.truncate(ino, 7),
    "fallocate": lambda fs, ino: fs.files.fallocate(ino, 0, 0, len(LARGE) + 7),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_is_about_to_be_changed_is_not_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    expected = {"write": b"written" + LARGE[7:], "truncate": LARGE[:7], "fallocate": LARGE + bytes(7)}[change]
    with opened(tmp_path / "store") as fs:
        ino = write(fs, "triton/key/file", LARGE)
        prepare = fs.unsealed.spool_to_change

        def prepare_and_be_overtaken(ino: int, node: Inode) -> SpoolFile:
            spool = prepare(ino, node)
            fs.sealer.seal(ino)
            return spool

        monkeypatch.setattr(fs.unsealed, "spool_to_change", prepare_and_be_overtaken)
        CHANGES[change](fs, ino)
        monkeypatch.undo()
        assert fs.attributes(ino).content == Content.SPOOL
        fs.settle()
        assert fs.attributes(ino).content == Content.OBJECT
        assert fs.read(ino, 0, len(LARGE) + 100) == expected


def test_a_mode_of_allocation_that_the_filesystem_of_the_store_lacks_is_refused(small_disk: Disk) -> None:
    """Which is no fault that a log would tell: a tmpfs cannot zero a range."""
    refused = 0
    with opened(small_disk.path / "store") as fs:
        ino = write(fs, "triton/key/file", LARGE)
        try:
            fs.files.fallocate(ino, ZERO_RANGE, 100, len(LARGE) - 100)
        except FsError as error:
            refused = error.errno
        zeroed = LARGE[:100] + bytes(len(LARGE) - 100)
        assert fs.read(ino, 0, len(LARGE)) == (LARGE if refused else zeroed)
    assert refused in ((0,) if small_disk.image else (0, errno.EOPNOTSUPP)), "a disk can"


def test_nothing_is_forgotten_by_two_who_seal_what_waits(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        written = [write(fs, f"triton/key/{number}", b"%d" % number) for number in range(4)]
        other = threading.Thread(target=fs.sealer.seal_next, args=(0,))
        queue, lock, is_at_the_lock = fs.sealer._queue, fs.sealer._queue._lock, threading.Event()

        class Told:
            """The lock of the queue, which tells when the other one comes to it."""

            def __enter__(self) -> None:
                if threading.current_thread() is other:
                    is_at_the_lock.set()
                lock.__enter__()

            def __exit__(self, *how: Any) -> None:
                lock.__exit__(*how)

        def has_gone_as_far_as_it_can() -> bool:
            return not other.is_alive() or (is_at_the_lock.is_set() and lock._is_owned())  # type: ignore[attr-defined]

        class Overtaken(deque[tuple[int, float]]):
            def __getitem__(self, index: object) -> Any:
                found = super().__getitem__(index)  # type: ignore[index]
                if not other.ident:
                    other.start()
                    until(has_gone_as_far_as_it_can)
                return found

        queue._lock = Told()  # type: ignore[assignment]
        queue._waiting = {uid: Overtaken(files) for uid, files in queue._waiting.items()}
        while fs.sealer.seal_next(0):
            pass
        other.join()
        assert {fs.attributes(ino).content for ino in written} == {Content.OBJECT}
        assert not queue._queued, "what is thought to wait is never sealed"


def test_a_file_that_rested_while_it_was_empty_is_sealed_when_it_is_written_again(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        ino = write(fs, "triton/key/file", CONTENT)
        assert fs.sealer.seal(ino)
        fs.set_attributes(ROOT, ino, size=0)
        fs.sealer.seal_quiet(0)
        fs.write(ino, 0, b"again")
        assert fs.attributes(ino).content == Content.SLOT
        fs.sealer.seal_quiet(0)
        assert fs.attributes(ino).content == Content.OBJECT


@pytest.mark.parametrize("overtaken", ["before it looks", "while it copies"])
def test_two_who_write_to_a_large_object_at_once_both_have_their_bytes_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overtaken: str
) -> None:
    with opened(tmp_path / "store") as fs:
        ino = write(fs, "triton/key/file", LARGE)
        assert fs.sealer.seal(ino)
        method = {"before it looks": "_make_writable", "while it copies": "_copy_out"}[overtaken]
        go_on = getattr(fs.files, method)

        def be_overtaken(*arguments: object) -> None:
            monkeypatch.undo()
            fs.nodes._cache.clear()  # as after any request that failed
            fs.files.write(ino, 0, b"other")
            go_on(*arguments)

        monkeypatch.setattr(fs.files, method, be_overtaken)
        fs.files.write(ino, 10, b"one")
        assert fs.read(ino, 0, len(LARGE)) == b"other" + LARGE[5:10] + b"one" + LARGE[13:]
        fs.store.fold()
        assert len(fs.store.spool.numbers()) - len(fs.store.spool._free) == 1


def test_a_file_that_cannot_be_sealed_does_not_keep_others(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        files = [write(fs, f"triton/key/{number}", b"%d" % number) for number in range(5)]
        for ino in files:
            fs.sealer.seal(ino)
            fs.write(ino, 0, LARGE + b"%d" % ino)
        broken = fs.nodes.get(files[2]).spool
        fs.unsealed._open.clear()
        os.rename(fs.store.spool.path(broken), tmp_path / "away")
        with pytest.raises(ObjectMissing):
            fs.sealer.seal_quiet(0)
        assert [fs.nodes.get(ino).content for ino in files].count(Content.OBJECT) == 4
        os.rename(tmp_path / "away", fs.store.spool.path(broken))
        fs.sealer.seal_quiet(0)
        assert fs.nodes.get(files[2]).content == Content.OBJECT


# --- changes that fail ------------------------------------------------------------------------------------------------


def test_a_write_that_fails_takes_no_slot(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        parent = folder(fs, "triton/key")
        ino, _ = fs.create(ROOT, parent, b"file", 0o644)
        for _ in range(3):
            with nothing_acknowledged(fs):
                fs.write(ino, 0, CONTENT)
        fs.write(ino, 0, CONTENT)
        assert fs.nodes.get(ino).spool == 0
        fs.forget(ino, 1)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_file_that_does_not_fit_where_it_is_to_be_written_stays_whole(small_disk: Disk, sealed: bool) -> None:
    """The spool file that it did not fit into is gone too."""
    content = os.urandom(900 << 10)
    with opened(small_disk.path / "store") as fs:
        ino = write(fs, "triton/key/file", content)
        if sealed:
            fs.sealer.seal(ino)
            fs.store.fold()
        small_disk.fill(leave=300 << 10)
        for _ in range(3):
            with pytest.raises(NoSpace):
                fs.write(ino, SLOT_SIZE, b"more", may_wait=False)
        assert fs.store.spool.allocated_bytes() == 0
        assert fs.read(ino, 0, SLOT_SIZE) == content
        small_disk.make_room()
        fs.write(ino, SLOT_SIZE, b"more")
        assert fs.read(ino, 0, 2 * SLOT_SIZE) == content + bytes(SLOT_SIZE - len(content)) + b"more"


def test_a_number_whose_reservation_failed_is_not_given_out_twice(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        parent = folder(fs, "triton/key")
        fs.nodes._next_ino = fs.nodes._reserved_ino
        with nothing_acknowledged(fs):
            fs.create(ROOT, parent, b"refused", 0o644)
        first = write(fs, "triton/key/first", CONTENT)
        fs.unsealed._next_spool = fs.unsealed._reserved_spool
        large = write(fs, "triton/key/large", b"")
        with nothing_acknowledged(fs):
            fs.write(large, 0, LARGE)
        fs.write(large, 0, LARGE)
        number = fs.nodes.get(large).spool
        assert not fs.store.spool._free
        names = {path.name for path in (tmp_path / "store" / "spool").iterdir()}
        assert names == {f"{number:016x}"}
        killed = tmp_path / "killed"
        shutil.copytree(tmp_path / "store", killed)
    with opened(killed) as fs:
        assert write(fs, "triton/key/second", b"second") != first
        other = write(fs, "triton/key/other", b"other")
        fs.write(other, 0, LARGE[::-1])
        assert fs.nodes.get(other).spool != number
        assert fs.read(find(fs, "triton/key/first"), 0, 1000) == CONTENT
        assert fs.read(find(fs, "triton/key/large"), 0, len(LARGE)) == LARGE
