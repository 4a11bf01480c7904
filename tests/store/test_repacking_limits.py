"""What repacking must not do: begin the same again and again, take more room than there is, or leave files behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcachefs.store import Options, Store
from kcachefs.store.fsck import run
from kcachefs.store.repacking import ATTEMPTS_MAX, unpacked_bytes
from tests.store import damage
from tests.store.objects import delete, put, record
from tests.store.test_repacking import fill, repack_all, text


def test_what_cannot_be_repacked_is_let_be_after_a_few_attempts(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    damaged, intact = put(store, text(1, 30_000)), put(store, text(2, 3000))
    place = record(store, damaged)
    damage.flip(store.volumes.path(place.volume), place.offset, 50)
    for _ in range(ATTEMPTS_MAX):
        repack_all(store)
    assert unpacked_bytes(store.objects) == place.length
    before = record(store, intact).place
    assert repack_all(store) == 0
    assert record(store, intact).place == before, "copied together with nothing"
    delete(store, damaged)
    put(store, text(7, 9000))
    repack_all(store)
    assert unpacked_bytes(store.objects) == 0


def test_nothing_is_copied_that_there_is_no_room_for(store: Store) -> None:
    large = put(store, b"".join(text(n, 9000) + os.urandom(4000) for n in range(100)))
    small = put(store, text(1, 9000))
    before = record(store, large)
    for _ in store.repack(0, room=lambda: before.length - 1):
        assert not any(size >= before.length for size in _incoming_sizes(store))
    assert record(store, large).place == before.place
    assert record(store, small).flags & record(store, small).PACKED
    repack_all(store)
    assert record(store, large).length < before.length


def _incoming_sizes(store: Store) -> list[int]:
    return [path.stat().st_size for path in (store.path / "incoming").iterdir()]


def test_bytes_that_were_deleted_and_stored_again_are_copied_once(store: Store) -> None:
    data = text(1, 4000)
    put(store, text(2, 4000))
    for _ in range(3):
        delete(store, put(store, data))
    put(store, data)
    repack_all(store)
    assert store.totals().volumes == store.totals().live


def test_a_dictionary_that_was_half_written_at_a_kill_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Store(path, Options(background=False)).close()
    left = path / "dictionaries" / "00008000.dict.new"
    left.write_bytes(b"half a dictionary")
    report = run(path)
    assert report.exit_code == 0, report.findings
    assert not left.exists()


def test_a_number_that_stands_for_a_dictionary_in_memory_is_not_given_to_another(
    tmp_path: Path, quick_to_learn: None
) -> None:
    path = tmp_path / "store"
    with Store(path, Options(background=False)) as store:
        fill(store)
        repack_all(store)
        (lost,) = store.dictionaries.numbers()
        store.dictionaries.path(lost).unlink()
        later = {put(store, data): data for data in (text(n, 9000) for n in range(500, 550))}
        repack_all(store)
        (learned,) = store.dictionaries.numbers()
        assert learned != lost
    with Store(path, Options(background=False)) as store:
        assert all(store.objects.get(digest) == data for digest, data in later.items())
