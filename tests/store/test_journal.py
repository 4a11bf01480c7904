"""The journal: what was appended is replayed, up to the first record that is incomplete or damaged."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kcachefs.errors import NoSpace
from kcachefs.store import Options, Store
from kcachefs.store import journal as journal_module
from kcachefs.store.journal import Changes, Journal, Mark, replay, segment_numbers, segment_path
from kcachefs.store.lmdb_file import make_lmdb
from kcachefs.store.places import FOLDERS
from tests.disks import ext4, need_root, tmpfs

RECORDS: list[Changes] = [
    {b"nfirst": b"one"},
    {b"nsecond": b"two", b"nfirst": None},
    {b"nthird": bytes(90)},
    {b"nfourth": b"", b"nfifth": b"five"},
    {b"nthird": None},
]

HEADER = 24
"""Bytes before a segment's first record."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("journal", "quarantine"):
        (tmp_path / name).mkdir()
    return tmp_path


def write(folder: Path, records: list[Changes]) -> Path:
    """A journal of one segment with these records."""
    journal = Journal(folder / "journal")
    for record in records:
        journal.append(record)
    journal.close()
    return segment_path(folder / "journal", 1)


def read(folder: Path, mark: Mark = Mark(0, 0)) -> list[Changes]:  # noqa: B008
    return list(replay(folder / "journal", folder / "quarantine", mark))


def ends(folder: Path) -> list[int]:
    """Where each record of RECORDS ends in its segment."""
    journal = Journal(folder / "journal")
    places = []
    for record in RECORDS:
        journal.append(record)
        places.append(journal.length)
    journal.close()
    return places


def test_what_was_appended_is_replayed_in_order(folder: Path) -> None:
    write(folder, RECORDS)
    assert read(folder) == RECORDS
    assert read(folder) == RECORDS


def test_a_later_process_goes_on_where_the_dead_one_stopped(folder: Path) -> None:
    write(folder, RECORDS[:2])
    journal = Journal(folder / "journal")
    journal.append(RECORDS[2])
    journal.rotate()
    journal.append(RECORDS[3])
    journal.close()
    assert read(folder) == RECORDS[:4]


def test_cut_at_every_byte(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    places = ends(folder)
    path = segment_path(folder / "journal", 1)
    raw = path.read_bytes()
    for cut in range(len(raw) + 1):
        path.write_bytes(raw[:cut])
        whole = sum(end <= cut for end in places)
        assert read(folder) == RECORDS[:whole], f"cut at {cut}"
        # The journal can be continued, and the damage does not come back.
        journal = Journal(folder / "journal")
        journal.append({b"nlater": b"on"})
        journal.close()
        assert read(folder) == [*RECORDS[:whole], {b"nlater": b"on"}], f"cut at {cut}"
        for number in segment_numbers(folder / "journal"):
            segment_path(folder / "journal", number).unlink()


def test_every_single_bit_flipped(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    places = ends(folder)
    path = segment_path(folder / "journal", 1)
    raw = path.read_bytes()
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        whole = 0 if bit // 8 < HEADER else sum(end <= bit // 8 for end in places)
        assert read(folder) == RECORDS[:whole], f"bit {bit} flipped"


def test_segments_after_a_damaged_one_do_not_count(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = write(folder, RECORDS[:2])
    journal = Journal(folder / "journal")
    journal.rotate()
    journal.append(RECORDS[2])
    journal.close()
    raw = first.read_bytes()
    first.write_bytes(raw[:-1])
    assert read(folder) == RECORDS[:1]
    assert (folder / "quarantine" / "journal-0000000002.log").exists()
    assert read(folder) == RECORDS[:1]
    assert "set aside" in caplog.text


@pytest.mark.parametrize("lost", [1, 2, len(RECORDS)])
def test_segments_after_one_that_lost_whole_records_do_not_count(
    folder: Path, lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A power cut may take what the disk had not written yet, and leave the next segment, which it had."""
    journal = Journal(folder / "journal")
    places = [journal.length]
    for record in RECORDS:
        journal.append(record)
        places.append(journal.length)
    journal.rotate()
    journal.append({b"nafter": b"the gap"})
    journal.close()
    assert read(folder) == [*RECORDS, {b"nafter": b"the gap"}]
    os.truncate(segment_path(folder / "journal", 1), places[-1 - lost])
    assert read(folder) == RECORDS[:-lost]
    assert "where a record is incomplete or damaged" in caplog.text
    assert read(folder) == RECORDS[:-lost], "the rest was set aside"


def test_segments_after_a_missing_one_do_not_count(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(folder / "journal")
    marks = []
    for record in RECORDS:
        journal.append(record)
        marks.append(journal.rotate())
    journal.close()
    assert read(folder, marks[0]) == RECORDS[1:]
    segment_path(folder / "journal", 3).unlink()
    assert read(folder, marks[0]) == RECORDS[1:2]
    assert "journal segment 5 was set aside" in caplog.text


def test_segments_of_an_older_version_count(folder: Path) -> None:
    """They do not say how long the one before them was."""
    for number, record in enumerate(RECORDS[:2], 1):
        raw = journal_module._encode_header(number) + journal_module.encode_record(number, record)
        segment_path(folder / "journal", number).write_bytes(raw)
    assert read(folder) == RECORDS[:2]


def test_what_was_folded_is_not_applied_again(folder: Path) -> None:
    journal = Journal(folder / "journal")
    journal.append(RECORDS[0])
    old = segment_path(folder / "journal", 1).read_bytes()
    mark = journal.rotate()
    journal.append(RECORDS[1])
    journal.remove_before(mark)
    journal.close()
    segment_path(folder / "journal", 1).write_bytes(old)  # a power cut can bring an unlinked file back
    assert read(folder, mark) == RECORDS[1:2]
    assert segment_numbers(folder / "journal") == [2]


def test_a_mark_in_the_middle_of_a_segment(folder: Path) -> None:
    journal = Journal(folder / "journal")
    journal.append(RECORDS[0])
    mark = journal.end
    journal.append(RECORDS[1])
    journal.close()
    assert read(folder, mark) == RECORDS[1:2]


def test_a_segment_that_lost_what_was_folded_is_not_continued(folder: Path) -> None:
    journal = Journal(folder / "journal")
    journal.append(RECORDS[0])
    journal.append(RECORDS[1])
    mark = journal.end
    journal.close()
    os.truncate(segment_path(folder / "journal", 1), mark.offset - 20)
    assert read(folder, mark) == []
    journal = Journal(folder / "journal", mark)
    journal.append(RECORDS[2])
    journal.close()
    assert read(folder, mark) == RECORDS[2:3]


@need_root
def test_a_failed_append_leaves_nothing(tmp_path: Path) -> None:
    with tmpfs(tmp_path, megabytes=2) as disk:
        for name in ("journal", "quarantine"):
            (disk.path / name).mkdir()
        journal = Journal(disk.path / "journal")
        journal.append(RECORDS[0])
        disk.fill()
        with pytest.raises(NoSpace, match="disk is full"):
            journal.append({b"nlarge": bytes(3 << 20)})
        journal.append(RECORDS[1])  # the reserved space is still there
        with pytest.raises(NoSpace):
            journal.append({b"nlarge": bytes(3 << 20)})
        journal.close()
        assert read(disk.path) == RECORDS[:2]


@pytest.mark.slow
def test_a_store_opens_with_its_journal_cut_at_every_byte_of_its_last_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    make_lmdb(tmp_path / "catalog")
    Store(tmp_path).close()
    places = ends(tmp_path)
    raw = segment_path(tmp_path / "journal", 1).read_bytes()
    data = (tmp_path / "catalog" / "data.mdb").read_bytes()
    states: list[dict[bytes, bytes]] = [{}]
    for record in RECORDS:
        after = {**states[-1], **record}
        states.append({key: value for key, value in after.items() if value is not None})
    for cut in range(places[1], len(raw) + 1):
        (tmp_path / "catalog" / "data.mdb").write_bytes(data)
        segment_path(tmp_path / "journal", 1).write_bytes(raw[:cut])
        with Store(tmp_path, Options(background=False)) as store:
            expected = states[sum(end <= cut for end in places)]
            for key in (b"nfirst", b"nsecond", b"nthird", b"nfourth", b"nfifth"):
                assert store.catalog.get(key) == expected.get(key), f"cut at {cut}"


@need_root
def test_trouble_lasts_until_the_disk_can_be_written_again(tmp_path: Path) -> None:
    with ext4(tmp_path) as disk:
        for name in ("journal", "quarantine"):
            (disk.path / name).mkdir()
        journal = Journal(disk.path / "journal")
        journal.append(RECORDS[0])
        assert journal.trouble == ""
        subprocess.run(["chattr", "+i", segment_path(disk.path / "journal", 1)], check=True)
        with pytest.raises(OSError, match="not permitted"):
            journal.append(RECORDS[1])
        journal.keep_reserve()
        assert journal.trouble == "Operation not permitted"
        subprocess.run(["chattr", "-i", segment_path(disk.path / "journal", 1)], check=True)
        journal.keep_reserve()
        assert journal.trouble == ""
        journal.append(RECORDS[1])
        journal.close()
        assert read(disk.path) == RECORDS[:2]
