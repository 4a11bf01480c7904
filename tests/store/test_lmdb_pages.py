"""Damaged sizes of records in LMDB's pages are found before anything is deleted there."""

from __future__ import annotations

import itertools
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from kcachefs.store import Store
from kcachefs.store.lmdb_file import structure_problems
from kcachefs.store.lmdb_pages import badly_packed
from tests.store import damage, tree
from tests.store.test_faults_damage import CONTENTS, OPTIONS, elsewhere, repaired

PAGE, HEADER, LEAF = 4096, 16, 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "store"
    with Store(path, OPTIONS) as store:
        tree.make_root(store)
        for name, data in CONTENTS.items():
            tree.create(store, name, data)
    return path


def sizes_of_records(data: Path) -> Iterator[int]:
    """Where the sizes of records are stated in the leaves of a file that was just made, and so has no old pages."""
    raw = data.read_bytes()
    for start in range(2 * PAGE, len(raw), PAGE):
        flags, lower = struct.unpack_from("<HH", raw, start + 10)
        if flags & LEAF:
            count = (lower - HEADER) // 2
            yield from (start + offset for offset in struct.unpack_from(f"<{count}H", raw, start + HEADER))


def test_sound_files_are_never_reported(tmp_path: Path, seed: int) -> None:
    chosen, keys = random.Random(seed), [b"%d" % number * 3 for number in range(2000)]
    with lmdb.open(str(tmp_path), map_size=1 << 30) as env:
        for _ in range(60):
            with env.begin(write=True) as txn:
                for key in chosen.sample(keys, 200):
                    if chosen.random() < 0.4:
                        txn.delete(key)
                    else:  # some of them in pages of their own
                        txn.put(key + b"-" * chosen.choice((0, 1, 300)), bytes(chosen.choice((0, 7, 100, 1500, 9000))))
            assert badly_packed(tmp_path / "data.mdb") == []
    assert structure_problems(tmp_path) == []


def test_an_empty_file_is_sound(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 30):
        assert badly_packed(tmp_path / "data.mdb") == []


def test_every_wrong_size_is_found(whole: Path, in_memory: Path) -> None:
    directory = in_memory / "catalog"
    shutil.copytree(whole / "catalog", directory)
    data = directory / "data.mdb"
    original, places = data.read_bytes(), list(sizes_of_records(data))
    assert len(places) > 400
    assert structure_problems(directory) == []
    for place, bit in zip(places, itertools.cycle((2, 16, 64)), strict=False):
        data.write_bytes(original[:place] + bytes([original[place] ^ bit]) + original[place + 1 :])
        assert structure_problems(directory), f"bit {bit} at {place}"


def test_repair_after_a_wrong_size_costs_no_other_file(whole: Path, in_memory: Path) -> None:
    """To delete such a record would garble its neighbours."""
    places = list(sizes_of_records(whole / "catalog" / "data.mdb"))
    for place in places[7 :: len(places) // 12]:
        path = in_memory / f"store-{place}"
        shutil.copytree(whole, path)
        damage.flip(path / "catalog" / "data.mdb", place, 1)
        read = elsewhere(repaired, path)
        assert read is not None, f"fsck crashed on damage at {place}"
        assert read.items() <= CONTENTS.items()
        assert len(read) >= len(CONTENTS) - 1, f"damage at {place} cost {CONTENTS.keys() - read.keys()}"
        shutil.rmtree(path)
