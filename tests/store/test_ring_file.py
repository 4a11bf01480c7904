"""Ring files: bounded, found again after a kill, and never trusted where they are damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcachefs.errors import NoSpace
from kcachefs.store import Options, Store, fsck
from kcachefs.store.history_files import LEVELS, SAMPLE_SIZE, HistoryFiles
from kcachefs.store.history_records import SampleRecord, SampleRowRecord
from kcachefs.store.ring_file import HEAD, RingFile
from tests.disks import need_root, tmpfs


def test_a_new_record_takes_the_place_of_the_oldest_and_the_file_stays_small(tmp_path: Path) -> None:
    ring = RingFile(tmp_path / "ring", slots=4, size=HEAD.size + 8)
    assert ring.records() == []
    numbers = [ring.append(b"body %d" % number) for number in range(1, 11)]
    assert numbers == list(range(1, 11))
    assert ring.records() == [(number, b"body %d" % number) for number in range(7, 11)]
    assert (ring.get(6), ring.get(7), ring.get(11)) == (None, b"body 7", None)
    assert (tmp_path / "ring").stat().st_size <= 4 * ring.size
    ring.close()
    again = RingFile(tmp_path / "ring", slots=4, size=ring.size)
    assert (again.next_number, again.get(10)) == (11, b"body 10")
    assert bytes(again.column(5, 2)) == b"8\x009\x0010" + b"7\x00"
    again.close()


def test_what_is_too_long_is_cut_off(tmp_path: Path) -> None:
    ring = RingFile(tmp_path / "ring", slots=4, size=HEAD.size + 8)
    ring.append(b"far too long")
    ring.append(b"next")
    assert ring.records() == [(1, b"far too "), (2, b"next")]
    ring.close()


@pytest.mark.parametrize("place", range(HEAD.size + 4))
def test_a_record_with_a_wrong_byte_is_absent_and_is_not_the_newest(tmp_path: Path, place: int) -> None:
    path = tmp_path / "ring"
    ring = RingFile(path, slots=4, size=32)
    for body in (b"one!", b"two!", b"six!"):
        ring.append(body)
    ring.close()
    with open(path, "r+b") as file:
        file.seek(3 * 32 + place)
        [byte] = file.read(1)
        file.seek(3 * 32 + place)
        file.write(bytes([byte ^ 0x81]))
    ring = RingFile(path, slots=4, size=32)
    assert ring.records() == [(1, b"one!"), (2, b"two!")]
    assert ring.next_number == 3
    assert ring.damaged() == [3]
    ring.close()


def test_fsck_empties_damaged_slots_and_forgets_the_making_of_what_is_gone(tmp_path: Path) -> None:
    with Store(tmp_path / "store", Options(background=False)) as store:
        store.history.events.append(bytes(30))
        store.history.runs.append(bytes(120))
        with store.transaction() as txn:
            txn.put(b"d" + (4711).to_bytes(8, "big"), bytes(50))
    with open(tmp_path / "store" / "history" / "events", "r+b") as file:
        file.seek(320 + 20)
        file.write(b"damaged")
    found = fsck.run(tmp_path / "store")
    assert [finding.check for finding in found.findings] == ["history", "making"]
    assert found.exit_code == 2
    assert fsck.run(tmp_path / "store", repair=True).exit_code == 1
    assert fsck.run(tmp_path / "store").findings == []
    with Store(tmp_path / "store", Options(background=False)) as store:
        assert store.history.events.records() == []
        assert len(store.history.runs.records()) == 1


def test_all_samples_take_less_than_ten_million_bytes_and_count_as_used(tmp_path: Path) -> None:
    assert sum(slots * SAMPLE_SIZE for _, slots in LEVELS) <= 9_800_000
    full = SampleRecord(1, 2)
    full.add([SampleRowRecord(namespace, uid, hits=uid) for namespace in range(1, 5) for uid in range(1, 5)])
    assert len(full.rows) == SampleRecord.ROWS_MAX
    assert len(full.pack()) <= SAMPLE_SIZE - HEAD.size
    assert sum(row.hits for row in full.rows) == 4 * (1 + 2 + 3 + 4), "what has no row of its own is added up"
    [others] = [row for row in full.rows if row.key == SampleRecord.OTHERS]
    full.add([SampleRowRecord(9, 9, hits=1000)])
    assert {row.key for row in full.rows} >= {(9, 9), SampleRecord.OTHERS}
    assert others.hits
    with Store(tmp_path / "store", Options(background=False)) as store:
        before = store.used_bytes()
        store.history.samples[10].put(1, full.pack())
        assert store.used_bytes() - before == store.history.allocated_bytes() > 0


@need_root
def test_a_full_disk_refuses_a_record_and_keeps_the_others(tmp_path: Path) -> None:
    with tmpfs(tmp_path, megabytes=1) as disk:
        ring = RingFile(disk.path / "ring", slots=1000, size=4096)
        ring.append(b"there was room")
        disk.fill()
        with pytest.raises(NoSpace):
            ring.put(900, b"there is none")
        assert ring.get(1) == b"there was room"
        disk.make_room()
        assert ring.get(ring.append(b"again")) == b"again"
        ring.close()


def test_an_old_store_gets_its_history_when_there_is_some(tmp_path: Path) -> None:
    Store(tmp_path / "store", Options(background=False)).close()
    os.rmdir(tmp_path / "store" / "history")
    with Store(tmp_path / "store", Options(background=False, create=False)) as store:
        assert store.history.allocated_bytes() == 0
        assert not (tmp_path / "store" / "history").exists()
        store.history.events.append(b"first")
        assert store.history.events.records() == [(1, b"first")]
    files = HistoryFiles(tmp_path / "store")
    assert files.events.next_number == 2
    files.close()
