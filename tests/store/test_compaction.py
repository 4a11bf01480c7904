"""Compaction: gives space back beside readers and writers, and loses nothing."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kcachefs.store import Options, Store
from kcachefs.store.fsck import run
from tests.store import damage
from tests.store.objects import delete, in_threads, put, record


def test_compaction_gives_space_back_and_loses_nothing(store: Store) -> None:
    contents = [os.urandom(4000) for _ in range(200)]
    digests = [put(store, data) for data in contents]
    kept = {digest: data for index, (digest, data) in enumerate(zip(digests, contents, strict=True)) if index % 5 == 0}
    for digest in digests:
        if digest not in kept:
            delete(store, digest)
    before = store.totals()
    freed = store.compact()
    after = store.totals()
    assert freed > 0
    assert before.volumes - after.volumes == freed
    assert (after.objects, after.live) == (before.objects, before.live)
    for digest, data in kept.items():
        assert store.objects.verify(digest)
        assert store.objects.get(digest) == data
    store.close()
    assert run(store.path).exit_code == 0


def test_compaction_needs_little_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was copied from goes soon, not when all is copied: on a full disk there is no room for that."""
    monkeypatch.setattr("kcachefs.store.store.COPIED_MAX", 100_000)
    digests = [put(store, os.urandom(4000)) for _ in range(300)]
    for index, digest in enumerate(digests):
        if index % 5 > 1:
            delete(store, digest)
    store.fold()
    volumes, append, taken = store.path / "volumes", store.objects.ledger.append, list[int]()

    def measure(pieces: list[bytes]) -> tuple[int, int]:
        taken.append(sum(path.stat().st_size for path in volumes.iterdir()))
        return append(pieces)

    monkeypatch.setattr(store.objects.ledger, "append", measure)
    assert store.compact() > 500_000
    assert len(taken) > 100
    assert max(taken) < taken[0] + 100_000 + 2 * (64 << 10)


def test_compaction_finds_its_way_past_a_broken_trailer(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    digests = [put(store, os.urandom(4000)) for _ in range(40)]
    doomed, number = digests[3], record(store, digests[0]).volume
    inside = [digest for digest in digests if record(store, digest).volume == number]
    place = record(store, doomed)
    damage.zero(store.volumes.path(number), place.offset, place.length)
    for digest in inside[5:]:
        delete(store, digest)
    store.compact()
    for digest in inside[:5]:
        assert store.objects.verify(digest) == (digest != doomed)
    store.compact()
    assert not store.volumes.path(number).exists()


def test_a_damaged_object_does_not_keep_a_volume_alive(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    digests = [put(store, os.urandom(4000)) for _ in range(40)]
    number = record(store, digests[0]).volume
    inside = [digest for digest in digests if record(store, digest).volume == number]
    damage.flip(store.volumes.path(number), record(store, inside[1]).offset, 100)
    assert not store.objects.verify(inside[1])
    for digest in inside[2:]:
        delete(store, digest)
    store.compact()
    assert not store.volumes.path(number).exists()
    assert store.objects.verify(inside[0])
    assert not store.objects.exists(inside[1])


def test_readers_go_on_while_volumes_are_compacted(tmp_path: Path, hasty_threads: None) -> None:
    with Store(tmp_path / "store", Options(volume_size=64 << 10, cache_bytes=0)) as store:
        contents = {put(store, data): data for data in (os.urandom(60 * size + 100) for size in range(150))}
        kept = dict(list(contents.items())[::4])
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
                for _ in range(40):
                    more = [put(store, os.urandom(6000)) for _ in range(12)]
                    for digest in more:
                        delete(store, digest)
                    store.compact()
            finally:
                stop.set()

        in_threads(read, read, churn)
        assert store.objects.damaged == 0
    assert run(tmp_path / "store").exit_code == 0


def test_a_reader_with_an_old_place_does_not_set_aside_what_was_moved(store: Store) -> None:
    digests = [put(store, os.urandom(4000)) for _ in range(40)]
    kept, old = digests[0], record(store, digests[0])
    for digest in digests[1:]:
        delete(store, digest)
    store.compact()
    assert record(store, kept).place != old.place
    assert not store.objects.set_aside(kept, old, FileNotFoundError("its volume is gone"))
    assert store.objects.verify(kept)
