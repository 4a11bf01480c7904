"""Room that is kept for what is to come: given back while a store rests, taken again when something happens."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kcachefs.store import Options, Store
from kcachefs.store import journal as journal_module
from kcachefs.store.fsck import run
from kcachefs.store.journal import RESERVE, RESERVE_AT_REST
from kcachefs.store.lmdb_file import COMPACT_MAX
from tests import command_server
from tests.store.objects import delete, put


def allocated(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


def test_free_slots_give_their_blocks_back_and_used_ones_keep_theirs(store: Store) -> None:
    slots = [store.slots.take() for _ in range(3)]
    for slot in slots:
        store.slots.write(slot, 0, os.urandom(300_000))
    kept = store.slots.read(slots[1], 0, 300_000)
    store.slots.free(slots[0])
    store.slots.free(slots[2])
    assert store.slots.slack_bytes() >= 600_000
    store.rest()
    assert store.slots.slack_bytes() == 0
    assert store.slots.allocated_bytes() < 400_000
    assert store.slots.read(slots[1], 0, 300_000) == kept
    again = store.slots.take()
    store.slots.write(again, 0, b"written again")
    store.slots.free(again)
    assert store.slots.slack_bytes() > 0


def test_the_journal_keeps_a_small_reserve_at_rest_and_a_large_one_when_it_goes_on(store: Store) -> None:
    journal = store.path / "journal"
    put(store, b"something")
    store.fold()
    if allocated(journal) < RESERVE:
        pytest.skip("this filesystem does not reserve space")
    store.rest()
    assert RESERVE_AT_REST <= allocated(journal) < 2 * RESERVE_AT_REST
    digest = put(store, b"something else")
    store.rest()
    store.fold()
    assert allocated(journal) >= RESERVE
    assert store.objects.get(digest) == b"something else"


def test_the_whole_reserve_is_taken_again_when_the_disk_fills_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, b"something")
    store.fold()
    if allocated(store.path / "journal") < RESERVE:
        pytest.skip("this filesystem does not reserve space")
    store.rest()
    store.keep_reserve()
    assert allocated(store.path / "journal") < 2 * RESERVE_AT_REST
    monkeypatch.setattr(journal_module, "PLENTY", 1 << 62)
    store.keep_reserve()
    assert allocated(store.path / "journal") >= RESERVE
    store.rest()
    assert allocated(store.path / "journal") >= RESERVE


def test_what_rests_is_replayed_after_a_kill(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", Options(background=False))
    digest = put(store, b"acknowledged")
    store.rest()
    store.catalog.close(fold=False)  # as a kill leaves it
    store.lock.release()
    with Store(tmp_path / "store", Options(background=False)) as again:
        assert again.recovered
        assert again.objects.get(digest) == b"acknowledged"


def _with_free_pages(path: Path, ballast: int = 0) -> list[bytes]:
    """Objects that are left of many; with `ballast`, the catalog had so many more records once."""
    with Store(path, Options(background=False)) as store:
        digests = [put(store, b"%d" % number) for number in range(3000)]
        store.fold()
        for value in (bytes(1000), None):
            write_ballast(store, ballast, value)
        for digest in digests[100:]:
            delete(store, digest)
        store.fold()
        assert store.catalog.statistics()["free_bytes"] > 100_000
        return digests[:100]


def test_a_closed_catalog_has_few_free_pages(tmp_path: Path) -> None:
    path = tmp_path / "store"
    digests = _with_free_pages(path)
    assert (path / "catalog" / "data.mdb").stat().st_size < 200_000
    assert not (path / "catalog.part").exists()
    (path / "catalog.part").mkdir()  # as a kill leaves it while the copy is being made
    (path / "catalog.part" / "data.mdb").write_bytes(b"half a copy")
    with Store(path, Options(background=False)) as store:
        assert all(store.objects.get(digest) == b"%d" % number for number, digest in enumerate(digests))
        assert store.catalog.statistics()["free_bytes"] < 50_000
        put(store, b"it can be written to")
    assert run(path).exit_code == 0


def write_ballast(store: Store, records: int, value: bytes | None) -> None:
    """Put that many records into the catalog, or take them out again."""
    with store.transaction() as txn:
        for number in range(records):
            key = b"?%05d" % number
            txn.delete(key) if value is None else txn.put(key, value)
    store.fold()


def test_a_catalog_that_was_large_is_small_once_it_is_closed(tmp_path: Path) -> None:
    digests = _with_free_pages(tmp_path / "store", ballast=2 * COMPACT_MAX // 1000)
    assert (tmp_path / "store" / "catalog" / "data.mdb").stat().st_size < 200_000
    with Store(tmp_path / "store", Options(background=False)) as store:
        assert all(store.objects.get(digest) == b"%d" % number for number, digest in enumerate(digests))


@pytest.mark.parametrize("command", [("gc",), ("fsck", "--repair")], ids=lambda words: words[0])
def test_a_catalog_with_much_in_it_is_written_anew_when_somebody_asks(tmp_path: Path, command: tuple[str, ...]) -> None:
    path, records = tmp_path / "store", 2 * COMPACT_MAX // 1000
    data = path / "catalog" / "data.mdb"
    with Store(path, Options(background=False)) as store:
        write_ballast(store, 2 * records, bytes(1000))
        write_ballast(store, records, None)
    size = data.stat().st_size
    assert size > 3 * COMPACT_MAX, "an unmount does not wait for that"
    done = command_server.run(*command, "--store", path, "--json")
    assert done.returncode == 0, done
    assert data.stat().st_size < size * 2 / 3
    if command == ("gc",):
        assert json.loads(done.stdout)["freed_bytes"] >= size - data.stat().st_size > 0
    with Store(path, Options(background=False)) as store:
        assert store.catalog.statistics()["records"] >= records
    assert run(path).exit_code == 0


def test_the_parts_of_a_store_are_the_whole(store: Store) -> None:
    digests = [put(store, os.urandom(3000)) for _ in range(50)]
    for digest in digests[20:]:
        delete(store, digest)
    store.fold()
    slot = store.slots.take()
    store.slots.write(slot, 0, os.urandom(25 * 4096))
    store.slots.free(slot)
    parts = store.parts()
    assert parts.payload == store.totals().live
    assert parts.slack >= 100_000
    assert sum(parts) == store.used_bytes()


def test_what_a_kill_left_of_a_catalog_that_was_written_anew_goes(tmp_path: Path) -> None:
    Store(tmp_path / "store").close()
    part = tmp_path / "store" / "catalog.part"
    part.mkdir()
    (part / "data.mdb").write_bytes(bytes(1 << 20))
    with Store(tmp_path / "store"):
        assert not part.exists()
