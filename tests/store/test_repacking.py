"""Repacking: what rests gets smaller, at any point of it nothing is lost, and every count stays right."""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
from functools import cache
from pathlib import Path

import pytest
import zstandard

from kcachefs.store import Options, Store, ledger
from kcachefs.store.compaction import sparse_volumes
from kcachefs.store.fsck import run
from kcachefs.store.object_records import ObjectRecord, VolumeRecord
from kcachefs.store.places import HEADER
from kcachefs.store.records import FORMAT
from kcachefs.store.repacking import repack, unpacked_bytes
from tests.store import damage, tree
from tests.store.format_reader import Page, StoreReader
from tests.store.objects import delete, in_threads, put, record

PAGE = Path(__file__).parents[2] / "docs" / "format.md"
_WORDS = [b"ld.global.nc.v4.f32", b"mov.u32", b"%tid.x", b"bra.uni", b"add.s64", b"@%p1", b"{", b"}", b";\n", b"fma.rn"]


@cache
def text(seed: int, size: int) -> bytes:
    """Bytes that compress well, and better with more effort."""
    chosen = random.Random(seed)
    out = bytearray()
    while len(out) < size:
        out += chosen.choice(_WORDS) + b" %r" + str(chosen.randrange(200)).encode()
    return bytes(out[:size])


def repack_all(store: Store) -> int:
    """Repack whatever there is; returns how many steps that took."""
    steps = sum(1 for _ in store.repack(0))
    store.fold()
    return steps


def test_what_rests_gets_smaller_and_stays_the_same(store: Store) -> None:
    contents = {put(store, data): data for data in (text(n, 300 * n + 10) for n in range(60))}
    large = text(99, 900_000)
    contents[put(store, large)] = large
    before = store.totals()
    repack_all(store)
    after = store.totals()
    assert after.live < before.live * 0.95
    assert after.volumes == after.live, "nothing dead is left"
    assert (after.objects, after.plain, after.referenced) == (before.objects, before.plain, before.referenced)
    assert unpacked_bytes(store.objects) == 0
    for digest, data in contents.items():
        assert store.objects.verify(digest)
        assert store.objects.get(digest) == data
        assert record(store, digest).flags & ObjectRecord.PACKED
    store.close()
    assert run(store.path).exit_code == 0


def test_what_was_appended_to_just_now_is_left_alone(store: Store) -> None:
    digest = put(store, text(1, 5000))
    place = record(store, digest).place
    assert list(store.repack(3600)) == []
    assert record(store, digest).place == place


def test_what_was_appended_to_in_the_future_is_repacked(store: Store) -> None:
    """The clock was set back since: it may be a year until it rests by that clock."""
    digest = put(store, text(1, 5000))
    volume = store.objects.volumes.path(store.objects.volumes.active)
    os.utime(volume, (2**33, 2**33))
    assert list(store.repack(3600)) != []
    assert record(store, digest).flags & ObjectRecord.PACKED


def test_a_reader_of_a_large_object_goes_on_while_it_is_repacked(store: Store) -> None:
    data = text(7, 700_000)
    digest = put(store, data)
    assert store.objects.read(digest, 0, 10) == data[:10], "now the places of its frames are in memory"
    repack_all(store)
    store.objects.close()
    assert store.objects.read(digest, 300_000, 1000) == data[300_000:301_000]
    assert store.objects.damaged == 0


def test_readers_and_writers_go_on_while_volumes_are_repacked(tmp_path: Path, hasty_threads: None) -> None:
    with Store(tmp_path / "store", Options(volume_size=64 << 10, cache_bytes=0)) as store:
        contents = {put(store, data): data for data in (text(n, 60 * n + 100) for n in range(120))}
        kept = dict(list(contents.items())[::3])
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                for digest, data in kept.items():
                    assert store.objects.get(digest) == data
                    assert store.objects.verify(digest)

        def churn() -> None:
            try:
                for digest in contents.keys() - kept.keys():
                    delete(store, digest)
                for number in range(20):
                    more = [put(store, text(1000 + number * 12 + n, 6000)) for n in range(12)]
                    for digest in more:
                        delete(store, digest)
                    store.compact()
            finally:
                stop.set()

        def pack() -> None:
            while not stop.is_set():
                for _ in repack(store.objects, {}, 0, level=5):
                    pass

        in_threads(read, churn, pack)
        assert store.objects.damaged == 0
    assert run(tmp_path / "store").exit_code == 0


def test_it_can_be_given_up_after_any_step_and_goes_on_later(tmp_path: Path) -> None:
    options = Options(background=False, volume_size=16 << 10)
    path = tmp_path / "store"
    contents: dict[bytes, bytes] = {}
    for stop_after in itertools.count():
        with Store(path, options) as store:
            for n in range(2):
                data = text(stop_after * 10 + n, 3000)
                contents[put(store, data)] = data
            steps = store.repack(0)
            is_done = sum(1 for _ in itertools.islice(steps, stop_after)) < stop_after or stop_after == 40
            steps.close()
            for digest, data in contents.items():
                assert store.objects.verify(digest)
                assert store.objects.get(digest) == data
        report = run(path)
        assert report.exit_code == 0, report.findings
        if is_done:
            break
    assert stop_after > 8, "too few steps to prove anything"
    with Store(path, options) as store:
        repack_all(store)
        assert unpacked_bytes(store.objects) == 0
        assert not store.volumes.incoming()


def test_files_that_share_an_object_come_and_go_meanwhile(store: Store) -> None:
    tree.make_root(store)
    data = text(3, 20_000)
    tree.create(store, b"first", data)
    steps = store.repack(0)
    for number, _ in enumerate(steps):
        tree.create(store, b"twin %d" % number, data)
        if number % 2:
            tree.remove(store, b"twin %d" % (number - 1))
    assert tree.read(store, b"first") == data
    repack_all(store)
    assert unpacked_bytes(store.objects) == 0
    store.close()
    assert run(store.path).exit_code == 0


def test_small_volumes_that_were_repacked_are_merged(store: Store) -> None:
    for n in range(40):
        put(store, text(n, 4000))
        repack_all(store)
    packed = [number for number in store.volumes.numbers() if number != store.volumes.active]
    assert len(packed) < 10
    assert store.totals().volumes == store.totals().live


def test_what_does_not_shrink_is_not_copied(store: Store) -> None:
    digest = put(store, os.urandom(700_000))
    place = record(store, digest).place
    repack_all(store)
    assert record(store, digest).place == place
    assert unpacked_bytes(store.objects) == 0
    assert repack_all(store) == 0


def test_an_object_that_is_stored_again_after_damage_is_repacked_again(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    data = text(5, 9000)
    digest = put(store, data)
    repack_all(store)
    place = record(store, digest)
    damage.flip(store.volumes.path(place.volume), place.offset, 50)
    assert not store.objects.verify(digest)
    put(store, data)
    assert not record(store, digest).flags & ObjectRecord.PACKED
    repack_all(store)
    assert record(store, digest).flags & ObjectRecord.PACKED
    assert store.objects.get(digest) == data


def test_a_damaged_object_does_not_keep_repacking_busy(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    digests = [put(store, text(n, 9000)) for n in range(5)]
    place = record(store, digests[2])
    damage.flip(store.volumes.path(place.volume), place.offset, 50)
    repack_all(store)
    assert [bool(record(store, digest).flags & ObjectRecord.PACKED) for digest in digests] == [1, 1, 0, 1, 1]


def fill(store: Store) -> dict[bytes, bytes]:
    """Enough to learn from, if `quick_to_learn`."""
    return {put(store, data): data for data in (text(n, 9000) for n in range(40))}


def test_what_objects_have_in_common_is_learned_once(store: Store, quick_to_learn: None) -> None:
    contents = fill(store)
    repack_all(store)
    (number,) = store.dictionaries.numbers()
    dictionary = store.dictionaries.path(number).read_bytes()
    more = {put(store, data): data for data in (text(n, 9000) for n in range(500, 505))}
    repack_all(store)
    assert store.dictionaries.path(number).read_bytes() == dictionary
    assert store.dictionaries.numbers() == [number], "the store has hardly grown"
    place = record(store, next(iter(contents)))
    stored = store.volumes.read(place.volume, place.offset, place.length)
    assert zstandard.get_frame_parameters(stored).dict_id == number
    for digest, data in {**contents, **more}.items():
        assert store.objects.get(digest) == data
    store.close()
    reader = StoreReader(Page(PAGE.read_text()), store.path)
    for digest, data in {**contents, **more}.items():
        assert reader.read_object(digest) == data


def test_a_store_that_has_grown_learns_again_and_reads_what_is_older(store: Store, quick_to_learn: None) -> None:
    contents = fill(store)
    repack_all(store)
    contents |= {put(store, data): data for data in (os.urandom(90_000) for _ in range(15))}
    repack_all(store)
    assert len(store.dictionaries.numbers()) == 2
    for digest, data in contents.items():
        assert store.objects.verify(digest)
        assert store.objects.get(digest) == data


def test_a_lost_dictionary_takes_what_needs_it_and_nothing_else(
    store: Store, quick_to_learn: None, caplog: pytest.LogCaptureFixture
) -> None:
    contents = fill(store)
    repack_all(store)
    other = put(store, b"made later")
    (number,) = store.dictionaries.numbers()
    damage.flip(store.dictionaries.path(number), 0, 5000)
    store.close()
    found = {finding.check for finding in run(store.path).findings}
    assert {"dictionary", "digest"} <= found
    assert run(store.path, repair=True).exit_code == 1
    assert run(store.path).exit_code == 0
    with Store(store.path, Options(background=False)) as again:
        assert again.objects.get(other) == b"made later"
        assert not any(again.objects.exists(digest) for digest in contents)
        for data in contents.values():
            put(again, data)
        assert all(again.objects.get(digest) == data for digest, data in contents.items())


def test_a_store_of_the_format_before_dictionaries_is_opened_and_goes_on(tmp_path: Path, quick_to_learn: None) -> None:
    path = tmp_path / "store"
    with Store(path, Options(background=False)) as store:
        contents = fill(store)
    (path / "dictionaries").rmdir()
    header = json.loads((path / HEADER).read_bytes())
    (path / HEADER).write_text(json.dumps({**header, "format": 2}))
    with Store(path, Options(background=False)) as store:
        assert json.loads((path / HEADER).read_bytes())["format"] == FORMAT
        assert not store.lost_power
        repack_all(store)
        assert store.dictionaries.numbers()
        assert all(store.objects.get(digest) == data for digest, data in contents.items())
    assert run(path).exit_code == 0


def test_compaction_keeps_what_was_repacked_as_it_is(store: Store) -> None:
    digests = [put(store, text(n, 4000)) for n in range(30)]
    repack_all(store)
    for digest in digests[3:]:
        delete(store, digest)
    store.fold()
    assert list(sparse_volumes(store.catalog, 0.5))
    lengths = [record(store, digest).length for digest in digests[:3]]
    store.compact()
    assert [record(store, digest).length for digest in digests[:3]] == lengths
    assert all(record(store, digest).flags & ObjectRecord.PACKED for digest in digests[:3])


def test_fsck_counts_again_and_keeps_what_is_known_of_volumes(store: Store) -> None:
    put(store, text(1, 4000))
    repack_all(store)
    (number,) = [number for number in store.volumes.numbers() if number != store.volumes.active]
    ledger.rebuild(store.catalog, store.volumes, store.spool)
    raw = store.catalog.get(b"v" + number.to_bytes(4, "big"))
    assert raw is not None
    assert VolumeRecord.unpack(raw).flags == VolumeRecord.CLOSED | VolumeRecord.PACKED
