"""The daemon's memory stays small however large the catalog is."""

from __future__ import annotations

from pathlib import Path

from kcachefs.daemon import memory
from kcachefs.store import Options, Store


def test_a_catalog_that_was_read_from_end_to_end_is_let_go_of_and_still_there(tmp_path: Path) -> None:
    with Store(tmp_path / "store", Options(background=False)) as store:
        for thousand in range(40):
            with store.transaction() as txn:
                for number in range(1000):
                    txn.put(b"m%d.%d" % (thousand, number), bytes(500))
        store.fold()
        database = tmp_path.resolve() / "store" / "catalog" / "data.mdb"
        before = memory.resident_file_bytes()
        assert sum(1 for _ in store.catalog.walk(b"m")) >= 40_000
        grown = memory.resident_file_bytes()
        assert grown - before > 10 << 20
        assert not memory.trim(database, limit=grown + (1 << 20))
        assert memory.trim(database, limit=grown - 1)
        assert memory.resident_file_bytes() < grown - (10 << 20)
        assert store.catalog.get(b"m7.7") == bytes(500)
