"""Start profiles: what a start used is kept under its name, within bounds, and read ahead in the next one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcachefs.core import Filesystem, read_ahead
from kcachefs.core.processes import Process, Story
from kcachefs.core.start_profiles import StartProfiles, hash_of
from kcachefs.store import fsck
from kcachefs.store.history_records import PROFILE_ENTRIES
from tests.core.test_history import processes
from tests.core.trees import READER, WRITER, find, folder, look_up, opened, user, write

NOW = 10**18 * 9
"""A beginning that is never more than two minutes ago."""


def story(argv: str, pid: int = READER, *above: int) -> Story:
    return Story(Process(pid, 1), 0, NOW, argv.encode(), [Process(one, 1) for one in above])


def made(fs: Filesystem, count: int, size: int = 20_000) -> list[int]:
    """Entries of Triton, sealed."""
    numbers = []
    for number in range(count):
        folder(fs, f"triton/K{number}", user(0, WRITER))
        write(fs, f"triton/K{number}/k.cubin", os.urandom(size), user(0, WRITER))
        numbers.append(find(fs, f"triton/K{number}"))
    fs.settle()
    return numbers


def test_what_a_run_uses_is_kept_in_order_under_its_name(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        entries = made(fs, 4)
        fs.profiles.run_began(7, story("python -u train.py --lr 1"))
        for entry in (entries[2], entries[0], entries[2]):
            fs.profiles.note(7, entry)
        fs.profiles.note(8, entries[1])
        fs.profiles.flush()
        assert fs.profiles.entries_of("train.py") == [entries[2], entries[0]]
    with opened(tmp_path / "store") as fs:
        assert fs.profiles.entries_of("train.py") == [entries[2], entries[0]], "a new worker knows it, too"
        fs.profiles.run_began(9, story("python train.py"))
        fs.profiles.note(9, entries[3])
        fs.profiles.flush()
        assert fs.profiles.entries_of("train.py") == [entries[3], entries[2], entries[0]]


def test_a_real_process_that_hits_entries_has_a_profile(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs, processes("one") as [process]:
        entries = made(fs, 3)
        fs.profiles.expect("the name", process)
        for number in (1, 0):
            look_up(fs, f"triton/K{number}/k.cubin", process)
        fs.settle()
        assert fs.profiles.entries_of("the name") == [entries[1], entries[0]]


def test_a_name_that_was_announced_goes_before_the_script(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        [entry] = made(fs, 1)
        fs.profiles.expect("nightly", 50)
        fs.profiles.run_began(3, story("python train.py", 60, 55, 50))
        fs.profiles.note(3, entry)
        fs.profiles.flush()
        assert fs.profiles.entries_of("nightly") == [entry]
        assert fs.profiles.entries_of("train.py") == []
        assert fs.profiles.expect("nightly", 51) == 1


def test_the_end_of_a_start_is_the_end_of_its_profile(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        [entry] = made(fs, 1)
        fs.profiles.run_began(3, story("python train.py")._replace(started=0))
        fs.profiles.note(3, entry)
        fs.profiles.flush()
        assert fs.profiles.entries_of("train.py") == []


def test_a_sweep_reads_every_stored_byte_of_a_profile_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store") as fs:
        entries = made(fs, 5, 3 << 20)
        fs.profiles.run_began(3, story("python train.py"))
        for entry in (*entries[:3], 999_999):
            fs.profiles.note(3, entry)
        fs.profiles.flush()
        read: list[tuple[int, int, int]] = []
        actual = fs.store.objects.volumes.will_need

        def noted(volume: int, offset: int, length: int) -> None:
            read.append((volume, offset, length))
            actual(volume, offset, length)

        monkeypatch.setattr(fs.store.objects.volumes, "will_need", noted)
        done = fs.read_ahead.sweep(hash_of("train.py"))
        records = [fs.store.objects.record(fs.nodes.get(find(fs, f"triton/K{n}/k.cubin")).digest) for n in range(3)]
        assert 9 << 20 <= done == sum(length for _, _, length in read)
        assert all(length <= 1 << 20 for _, _, length in read)
        for record in records:
            assert record is not None
            covered = sum(
                max(0, min(at + length, record.offset + record.length) - max(at, record.offset))
                for volume, at, length in read
                if volume == record.volume
            )
            assert covered == record.length
        monkeypatch.setattr(read_ahead, "SWEEP_MAX", 2 << 20)
        assert fs.read_ahead.sweep(hash_of("train.py")) == 2 << 20
        assert fs.read_ahead.sweep(hash_of("nobody")) == 0


def test_names_and_entries_are_bounded_and_the_oldest_goes(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        slots = fs.store.history.profiles.slots
        for number in range(slots + 20):
            fs.profiles.run_began(number + 1, story(f"python script{number}.py"))
            fs.profiles.note(number + 1, number + 1)
            fs.profiles.flush()
        assert fs.profiles.entries_of("script0.py") == []
        assert fs.profiles.entries_of(f"script{slots + 19}.py") == [slots + 20]
        fs.profiles.run_began(5000, story("python many.py"))
        for number in range(3 * PROFILE_ENTRIES):
            fs.profiles.note(5000, number)
        fs.profiles.flush()
        assert fs.profiles.entries_of("many.py") == list(range(PROFILE_ENTRIES))
        assert fs.store.history.profiles.path.stat().st_size <= slots * fs.store.history.profiles.size


def test_names_that_are_gone_are_forgotten_in_memory_too(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        slots = fs.store.history.profiles.slots
        for number in range(1, 3 * slots):
            fs.profiles.run_began(number, story(f"python script{number}.py"))
            fs.profiles.note(number, number)
            fs.profiles.flush()
        assert len(fs.profiles._known()) <= 2 * slots
        last = 3 * slots - 1
        assert [fs.profiles.entries_of(f"script{one}.py") for one in (last, last - slots + 1)] == [
            [last],
            [last - slots + 1],
        ]
        assert fs.profiles.entries_of(f"script{last - slots}.py") == []


def test_a_user_does_not_spoil_the_profile_of_another(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        for run, uid in ((3, 0), (4, 1234)):
            fs.profiles.run_began(run, story("python train.py")._replace(uid=uid))
            fs.profiles.note(run, 10 + run)
        fs.profiles.flush()
        assert (fs.profiles.entries_of("train.py"), fs.profiles.entries_of("train.py", 1234)) == ([13], [14])


@pytest.mark.parametrize("name", ["\udcff", "a\0b", "x" * 100_000, "</script>"])
def test_any_name_will_do(tmp_path: Path, name: str) -> None:
    with opened(tmp_path / "store") as fs:
        assert fs.profiles.expect(name, os.getpid()) == 0


def test_what_the_first_process_of_a_container_announces_is_no_name_for_everybody(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        fs.profiles.expect("inside", 1)
        fs.profiles.run_began(3, story("python train.py", READER, 50, 1))
        fs.profiles.note(3, 5)
        fs.profiles.flush()
        assert (fs.profiles.entries_of("inside"), fs.profiles.entries_of("train.py")) == ([], [5])


def test_a_damaged_profile_is_repaired_by_emptying_it(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        fs.profiles.run_began(3, story("python train.py"))
        fs.profiles.note(3, 5)
        fs.profiles.flush()
        path = fs.store.history.profiles.path
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 1
    path.write_bytes(raw)
    assert [one.check for one in fsck.run(tmp_path / "store", repair=True).findings] == ["history"]
    with opened(tmp_path / "store") as fs:
        assert fs.profiles.entries_of("train.py") == []


def test_ranks_that_start_together_are_swept_for_once(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        profiles: StartProfiles = fs.profiles
        for run in range(1, 9):
            profiles.run_began(run, story("python train.py", run))
        assert profiles.starting.qsize() == 1
