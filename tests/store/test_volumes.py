"""Volumes: appended bytes are read back, wherever the file is at that moment, and removed ones are gone."""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kcachefs.errors import ObjectDamaged
from kcachefs.store.volumes import Volumes


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    for name in ("volumes", "incoming"):
        (tmp_path / name).mkdir()
    return Volumes(tmp_path / "volumes", tmp_path / "incoming")


def activate(volumes: Volumes, number: int, size: int = 0) -> None:
    fd = volumes.open_active(number, size)
    assert fd is not None
    volumes.switch(number, fd, size)


def test_what_is_appended_is_read_back(volumes: Volumes) -> None:
    activate(volumes, 1)
    first = volumes.append([b"abc", b"def"])
    second = volumes.append([b"ghi"])
    assert (first, second) == ((1, 0), (1, 6))
    assert volumes.read(1, 0, 9) == b"abcdefghi"
    with pytest.raises(ObjectDamaged, match="ends before"):
        volumes.read(1, 4, 6)


def test_a_resumed_volume_is_cut_to_what_the_catalog_knows(volumes: Volumes) -> None:
    activate(volumes, 1)
    volumes.append([b"known", b"unknown"])
    activate(volumes, 1, 5)
    assert volumes.append([b"!"]) == (1, 5)
    assert volumes.read(1, 0, 6) == b"known!"


def test_a_volume_that_lost_its_end_is_not_overwritten(volumes: Volumes) -> None:
    activate(volumes, 1)
    volumes.append([b"known"])
    os.truncate(volumes.path(1), 3)
    assert volumes.open_active(1, 5) is None
    assert volumes.path(1).read_bytes() == b"kno"


def test_a_volume_of_its_own_is_read_before_and_after_it_is_finished(volumes: Volumes) -> None:
    fd = volumes.begin(7)
    os.write(fd, b"large")
    os.close(fd)
    assert volumes.incoming() == [7]
    assert volumes.read(7, 0, 5) == b"large"
    volumes.finish(7)
    assert (volumes.incoming(), volumes.numbers()) == ([], [7])
    assert volumes.read(7, 0, 5) == b"large"


def test_removing_works_wherever_the_volume_is(volumes: Volumes) -> None:
    os.close(volumes.begin(7))
    volumes.remove(7)
    volumes.finish(7)
    volumes.abandon(7)
    volumes.remove(7)
    assert (volumes.incoming(), volumes.numbers()) == ([], [])
    with pytest.raises(FileNotFoundError):
        volumes.read(7, 0, 1)


def test_a_reader_that_has_a_removed_volume_open_is_not_given_another_file(volumes: Volumes) -> None:
    activate(volumes, 1)
    volumes.append([b"abc"])
    assert volumes.read(1, 0, 3) == b"abc"
    volumes.remove(1)
    with pytest.raises(FileNotFoundError):
        volumes.read(1, 0, 3)


def test_volumes_are_synced_and_read_while_they_are_removed(volumes: Volumes, hasty_threads: None) -> None:
    before = len(os.listdir("/proc/self/fd"))
    removed: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def remove() -> None:
        while (number := removed.get()) is not None:
            volumes.remove(number)

    def read(number: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            volumes.read(number, 0, 1)

    with ThreadPoolExecutor(2) as pool:
        removing = pool.submit(remove)
        try:
            for number in range(1, 1500):
                volumes.path(number).write_bytes(b"x")
                volumes.mark_unsynced([number])
                reading = pool.submit(read, number)
                removed.put(number)
                volumes.sync()
                reading.result()
        finally:
            removed.put(None)
        removing.result()
    assert volumes.numbers() == []
    assert len(os.listdir("/proc/self/fd")) == before, "a removed volume is still open"


def test_more_volumes_than_descriptors_are_kept(volumes: Volumes) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, 400):
        volumes.path(number).write_bytes(b"%03d" % number)
    assert all(volumes.read(number, 0, 3) == b"%03d" % number for number in range(1, 400))
    assert len(os.listdir("/proc/self/fd")) < before + 350
    volumes.close()


def test_other_files_are_not_taken_for_volumes(volumes: Volumes, tmp_path: Path) -> None:
    (tmp_path / "volumes" / "notes.txt").write_text("hello")
    (tmp_path / "volumes" / "zz.vol").write_text("hello")
    assert volumes.numbers() == []


def test_bytes_written_after_a_sync_are_synced_by_the_next(volumes: Volumes, monkeypatch: pytest.MonkeyPatch) -> None:
    activate(volumes, 1)
    synced: list[str] = []
    write, sync = os.pwritev, os.fdatasync

    def write_behind_a_sync(fd: int, parts: Sequence[bytes], offset: int) -> int:
        volumes.sync()
        return write(fd, parts, offset)

    def note(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        sync(fd)

    with monkeypatch.context() as overtaken:
        overtaken.setattr(os, "pwritev", write_behind_a_sync)
        volumes.append([b"abc"])
    monkeypatch.setattr(os, "fdatasync", note)
    volumes.sync()
    assert synced == [str(volumes.path(1))]


def test_a_volume_that_is_abandoned_after_a_sync_is_not_kept_open(volumes: Volumes) -> None:
    before = len(os.listdir("/proc/self/fd"))
    os.close(volumes.begin(7))
    volumes.mark_unsynced([7])
    volumes.sync()
    volumes.abandon(7)
    assert len(os.listdir("/proc/self/fd")) == before


def test_more_parts_than_the_system_takes_at_once_are_appended(volumes: Volumes) -> None:
    activate(volumes, 1)
    parts = [b"%05d" % number for number in range(3000)]
    number, offset = volumes.append(parts)
    assert volumes.read(number, offset, 5 * len(parts)) == b"".join(parts)
