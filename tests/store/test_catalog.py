"""The catalog: acknowledged changes are seen at once, survive, and are never served damaged."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcachefs.errors import NoSpace, RecordDamaged, StoreClosed, StoreError
from kcachefs.store.catalog import Catalog
from kcachefs.store.journal import Changes, Mark, segment_numbers, segment_path
from kcachefs.store.lmdb_file import make_lmdb, structure_problems
from kcachefs.store.records import names_prefix
from tests.store import damage


def folders(path: Path) -> Path:
    for name in ("journal", "quarantine"):
        (path / name).mkdir(parents=True)
    make_lmdb(path / "catalog")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folders(tmp_path / "store")


@pytest.fixture
def catalog(folder: Path) -> Iterator[Catalog]:
    opened = Catalog(folder)
    yield opened
    opened.close()


def put(catalog: Catalog, key: bytes, value: bytes | None) -> None:
    with catalog.transaction() as txn:
        if value is None:
            txn.delete(key)
        else:
            txn.put(key, value)


def test_get_all_finds_records_folded_or_not(catalog: Catalog) -> None:
    put(catalog, b"ifolded", b"1")
    put(catalog, b"ichanged", b"2")
    put(catalog, b"ideleted", b"3")
    catalog.fold()
    put(catalog, b"ichanged", b"4")
    put(catalog, b"ideleted", None)
    put(catalog, b"inew", b"5")
    asked = [b"ifolded", b"ichanged", b"ideleted", b"inew", b"iabsent"]
    assert catalog.get_all(asked) == {b"ifolded": b"1", b"ichanged": b"4", b"inew": b"5"}
    assert catalog.get_all([]) == {}
    catalog._folding, catalog._pending = catalog._pending, catalog._folding  # as in the middle of a fold
    assert catalog.get_all(asked) == {b"ifolded": b"1", b"ichanged": b"4", b"inew": b"5"}
    catalog._folding, catalog._pending = catalog._pending, catalog._folding


def test_a_change_is_seen_before_and_after_the_fold(catalog: Catalog) -> None:
    put(catalog, b"ia", b"1")
    assert catalog.get(b"ia") == b"1"
    catalog.fold()
    assert catalog.get(b"ia") == b"1"
    put(catalog, b"ia", None)
    assert catalog.get(b"ia") is None
    catalog.fold()
    assert catalog.get(b"ia") is None


def test_a_transaction_sees_its_own_changes_and_an_exception_undoes_them(catalog: Catalog) -> None:
    def change() -> None:
        with catalog.transaction() as txn:
            txn.put(b"ia", b"1")
            assert txn.get(b"ia") == b"1"
            txn.delete(b"ib")
            assert txn.get(b"ib") is None
            raise KeyError

    put(catalog, b"ib", b"2")
    with pytest.raises(KeyError):
        change()
    assert (catalog.get(b"ia"), catalog.get(b"ib")) == (None, b"2")


def test_what_was_not_folded_is_there_at_the_next_open(folder: Path) -> None:
    catalog = Catalog(folder)
    put(catalog, b"ia", b"1")
    catalog.fold()
    put(catalog, b"ia", b"2")
    put(catalog, b"ib", b"3")
    catalog.close(fold=False)
    again = Catalog(folder)
    assert (again.recovered, again.get(b"ia"), again.get(b"ib")) == (2, b"2", b"3")
    again.close()
    assert segment_numbers(folder / "journal") == []


def test_a_segment_that_comes_back_after_its_fold_changes_nothing(folder: Path) -> None:
    catalog = Catalog(folder)
    put(catalog, b"ia", b"old")
    number = segment_numbers(folder / "journal")[-1]
    segment = segment_path(folder / "journal", number)
    kept = segment.read_bytes()
    catalog.fold()
    put(catalog, b"ia", b"new")
    catalog.close()
    segment.write_bytes(kept)  # a power cut undid the unlink, not the commits
    again = Catalog(folder)
    assert again.get(b"ia") == b"new"
    again.close()


def test_a_full_map_loses_nothing(folder: Path) -> None:
    catalog = Catalog(folder, map_size=64 << 10)
    for number in range(2000):
        put(catalog, b"i%d" % number, bytes(60))
    with pytest.raises(NoSpace, match="map is full"):
        catalog.fold()
    assert catalog.get(b"i1999") == bytes(60)
    catalog.close(fold=False)
    again = Catalog(folder)
    again.fold()
    assert all(again.get(b"i%d" % number) == bytes(60) for number in range(2000))
    again.close()


def test_a_fold_that_fails_again_and_again_does_not_pile_up_segments(folder: Path) -> None:
    catalog = Catalog(folder, map_size=64 << 10)
    for number in range(2000):
        put(catalog, b"i%d" % number, bytes(60))
    for _ in range(20):
        with pytest.raises(NoSpace):
            catalog.fold()
    assert len(segment_numbers(folder / "journal")) <= 3
    catalog.close(fold=False)


def test_a_reader_misses_nothing_while_a_fold_fails(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    put(catalog, b"ia", b"old")
    catalog.fold()
    put(catalog, b"ia", b"new")

    def refuse(changes: Changes, mark: Mark) -> None:
        raise NoSpace("the disk is full")

    class Overtaken(dict[bytes, bytes | None]):
        def get(self, key: bytes, default: Any = None) -> Any:
            found = super().get(key, default)
            with pytest.raises(NoSpace):
                catalog._finish_folding(catalog._journal.end)
            return found

    catalog._start_folding()
    catalog._pending.values = Overtaken()
    with monkeypatch.context() as full:
        full.setattr(catalog._folded, "write", refuse)
        assert catalog.get(b"ia") == b"new"
    put(catalog, b"ib", b"later")
    catalog.fold()
    assert (catalog.get(b"ia"), catalog.get(b"ib"), catalog.unfolded_keys()) == (b"new", b"later", [])


def test_a_fold_of_all_tables_at_once_writes_and_deletes_what_it_should(folder: Path, seed: int) -> None:
    chance = random.Random(f"{seed} fold")
    keys = [bytes([chance.choice(b"acdeiovxz")]) + chance.randbytes(chance.randrange(1, 12)) for _ in range(3000)]
    expected: dict[bytes, bytes] = {}
    catalog = Catalog(folder)
    for number in range(4):
        for key in chance.sample(keys, 1500):
            value = chance.choice([None, b"", b"%d" % number])
            put(catalog, key, value)
            expected.pop(key, None)
            if value is not None:
                expected[key] = value
        catalog.fold()
        assert {key: value for key, value in catalog.walk(b"") if key[:1] != b"m"} == expected
    catalog.close()
    assert structure_problems(folder / "catalog") == []


def test_freed_is_called_only_after_deletions_are_on_disk(folder: Path) -> None:
    heard: list[bytes] = []
    catalog = Catalog(folder, freed=heard.extend)
    put(catalog, b"v1", b"x")
    put(catalog, b"v2", b"x")
    put(catalog, b"v1", None)
    assert heard == []
    catalog.fold()
    assert heard == [b"v1"]
    catalog.close()


def test_readers_never_miss_a_key_while_folds_go_on(catalog: Catalog) -> None:
    keys = [b"i%d" % number for number in range(50)]
    for key in keys:
        put(catalog, key, bytes(8))
    stop = threading.Event()
    wrong: list[bytes] = []

    def read() -> None:
        seen = dict.fromkeys(keys, 0)
        while not stop.is_set():
            for key in keys:
                value = catalog.get(key)
                if value is None or int.from_bytes(value) < seen[key]:
                    wrong.append(key)
                else:
                    seen[key] = int.from_bytes(value)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1, 150):
        for key in keys[number % 7 :: 7]:
            put(catalog, key, number.to_bytes(8))
        catalog.fold()
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong


def test_a_closed_catalog_says_so(catalog: Catalog) -> None:
    put(catalog, b"ia", b"1")
    catalog.close()
    with pytest.raises(StoreClosed):
        catalog.get(b"ia")
    with pytest.raises(StoreClosed):
        put(catalog, b"ia", b"2")


Step = tuple[str, int]
steps = st.lists(st.tuples(st.sampled_from(["put", "delete", "fold"]), st.integers(0, 30)), max_size=60)


@settings(max_examples=60, deadline=None)
@given(steps=steps, limit=st.integers(1, 12), start=st.integers(0, 30))
def test_a_scan_merges_what_is_not_folded(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], limit: int, start: int
) -> None:
    catalog = Catalog(folders(tmp_path_factory.mktemp("scan") / "store"))
    model: dict[bytes, bytes] = {}
    prefix = names_prefix(7)
    put(catalog, names_prefix(6) + b"z", b"other")
    put(catalog, names_prefix(8) + b"a", b"other")
    for position, (act, number) in enumerate(steps):
        key = prefix + b"%04d" % number
        if act == "fold":
            catalog.fold()
        elif act == "put":
            model[key] = b"%d" % position
            put(catalog, key, model[key])
        else:
            model.pop(key, None)
            put(catalog, key, None)
    first = prefix + b"%04d" % start
    assert catalog.scan(prefix) == sorted(model.items())
    assert catalog.scan(prefix, first, limit) == [row for row in sorted(model.items()) if row[0] >= first][:limit]
    catalog.close()


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["flipped", "zeroed"])
def test_a_damaged_value_is_absent_set_aside_and_reported(
    folder: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = Catalog(folder)
    value = b"an inode's record, long enough to be found"
    put(catalog, b"i" + bytes(8), value)
    put(catalog, b"i" + bytes(7) + b"\1", b"its neighbour")
    catalog.close()
    for place in damage.find_value(folder / "catalog", value):
        damage.WAYS[way](folder / "catalog" / "data.mdb", place, len(value))
    catalog = Catalog(folder)
    assert catalog.get(b"i" + bytes(8)) is None
    assert catalog.scan(b"i" + bytes(8)) == []
    assert catalog.get(b"i" + bytes(7) + b"\1") == b"its neighbour"
    assert catalog.damaged == 1
    assert "fails its checksum" in caplog.text
    assert list((folder / "quarantine").iterdir())
    put(catalog, b"i" + bytes(8), b"made again")
    catalog.close()
    again = Catalog(folder)
    assert again.get(b"i" + bytes(8)) == b"made again"
    again.close()


def test_a_damaged_record_that_cannot_count_as_absent_raises(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalog = Catalog(folder)
    value = b"a volume's record, long enough to be found"
    put(catalog, b"v" + bytes(4), value)
    catalog.close()
    for place in damage.find_value(folder / "catalog", value):
        damage.flip(folder / "catalog" / "data.mdb", place, len(value))
    catalog = Catalog(folder)
    with pytest.raises(RecordDamaged, match="fsck --repair"):
        catalog.get(b"v" + bytes(4))
    catalog.close()


def test_a_truncated_catalog_is_refused_and_not_read(folder: Path) -> None:
    catalog = Catalog(folder)
    for number in range(3000):
        put(catalog, b"i%d" % number, bytes(100))
    catalog.close()
    data = folder / "catalog" / "data.mdb"
    whole = data.read_bytes()
    for part in (0, 100, 4096, 9000, len(whole) // 2, len(whole) - 4096):
        data.write_bytes(whole[:part])
        with pytest.raises(StoreError, match="fsck --repair"):
            Catalog(folder).close()
    data.write_bytes(whole)
    Catalog(folder).close()


def test_a_missing_catalog_is_not_taken_for_an_empty_one(folder: Path) -> None:
    (folder / "catalog" / "data.mdb").unlink()
    with pytest.raises(StoreError, match="missing"):
        Catalog(folder)
    assert structure_problems(folder / "catalog")
