"""Objects: stored once, counted right, checked always, whatever other threads do meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from kcachefs.errors import ObjectDamaged, ObjectMissing
from kcachefs.store import Options, Store
from kcachefs.store.frames import FRAME_SIZE, last_frame
from kcachefs.store.fsck import run
from kcachefs.store.ledger import Staged
from kcachefs.store.object_records import ObjectRecord
from kcachefs.store.objects import IN_MEMORY_MAX, SHARED_MAX
from tests.store import damage


def put(store: Store, data: bytes, *, held: bool = True) -> bytes:
    while True:
        staged = store.objects.stage(data)
        try:
            with store.transaction() as txn:
                store.objects.link(txn, staged, held=held)
            return staged.digest
        except ObjectMissing:
            continue
        finally:
            store.objects.settle(staged)


def delete(store: Store, digest: bytes) -> bool:
    with store.transaction() as txn:
        return store.objects.unlink(txn, digest, held=True)


def record(store: Store, digest: bytes) -> ObjectRecord:
    found = store.objects.record(digest)
    assert found is not None
    return found


def in_threads(*work: Callable[[], None]) -> None:
    """Run each in a thread of its own; the first exception is raised here."""
    errors: list[BaseException] = []

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(task,)) for task in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


SIZES = [0, 1, 16 << 10, FRAME_SIZE, FRAME_SIZE + 1, 3 * FRAME_SIZE + 5, 5 << 20]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["text", "noise"])
def test_bytes_come_back_whole_and_in_ranges(store: Store, tmp_path: Path, size: int, kind: str) -> None:
    data = (b"a line of a kernel\n" * (size // 19 + 1))[:size] if kind == "text" else os.urandom(size)
    digest = put(store, data)
    assert digest == blake3(data).digest()
    file = tmp_path / "file"
    file.write_bytes(data)
    fd = os.open(file, os.O_RDONLY)
    staged = store.objects.stage_file(fd)
    os.close(fd)
    store.objects.settle(staged)
    assert staged.digest == digest
    store.close()
    with Store(store.path, store.options) as again:
        for offset, length in [(0, 10), (size // 2, 300_000), (size, 5), (max(0, size - 3), 100), (0, size)]:
            assert again.objects.read(digest, offset, length) == data[offset : offset + length]
        assert again.objects.get(digest) == data
        assert again.objects.verify(digest)
    assert run(store.path).exit_code == 0


def test_the_same_bytes_are_stored_once(store: Store) -> None:
    data = os.urandom(20_000)
    digest = put(store, data, held=False)
    before = store.totals().volumes
    put(store, data, held=False)
    put(store, data)
    put(store, data)
    assert store.totals().volumes == before
    assert record(store, digest).refs == 3
    assert store.totals().referenced == 3 * len(data)


def test_the_last_reference_takes_the_object(store: Store) -> None:
    digest = put(store, b"x" * 1000)
    put(store, b"x" * 1000, held=False)
    assert delete(store, digest)
    assert not delete(store, digest)
    assert store.objects.get(digest) == b"x" * 1000
    with store.transaction() as txn:
        assert store.objects.unlink(txn, digest)
    with pytest.raises(ObjectMissing):
        store.objects.get(digest)
    assert (store.totals().objects, store.totals().live) == (0, 0)


def test_a_large_object_has_a_volume_that_goes_with_it(store: Store) -> None:
    digest = put(store, os.urandom(2 << 20))
    number = record(store, digest).volume
    assert store.volumes.path(number).exists()
    delete(store, digest)
    assert store.volumes.path(number).exists()
    store.fold()
    assert not store.volumes.path(number).exists()


def test_two_threads_store_the_same_large_bytes(store: Store) -> None:
    data = os.urandom(2 << 20)
    in_threads(*[lambda: (put(store, data), None)[1]] * 4)
    assert store.objects.get(blake3(data).digest()) == data
    assert store.volumes.incoming() == []
    assert len(store.volumes.numbers()) <= 1


def test_staged_and_never_linked_is_dead_space_and_no_more(store: Store) -> None:
    small = store.objects.stage(os.urandom(1000))
    large = store.objects.stage(os.urandom(1 << 20))
    store.objects.settle(small)
    store.objects.settle(large)
    assert not store.objects.exists(small.digest)
    assert store.volumes.incoming() == []
    put(store, b"and life goes on" * 100)
    store.close()
    assert run(store.path).exit_code == 0


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5000, 3 * FRAME_SIZE, 2 << 20])
@pytest.mark.parametrize("part", ["start", "middle", "end"])
@pytest.mark.parametrize("way", damage.WAYS)
def test_a_damaged_object_is_never_served(
    tmp_path: Path, size: int, part: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = os.urandom(size)
    with Store(tmp_path / "store", Options(background=False)) as store:
        digest = put(store, data)
        other = put(store, b"a neighbour" * 50)
        place = record(store, digest)
    stretch = place.length // 3
    offset = place.offset + {"start": 0, "middle": stretch, "end": place.length - stretch}[part]
    damage.WAYS[way](store.volumes.path(place.volume), offset, stretch)
    with Store(tmp_path / "store", Options(background=False)) as store:
        with pytest.raises(ObjectDamaged):
            store.objects.get(digest)
        assert not store.objects.exists(digest)
        assert not store.objects.verify(digest)
        assert store.objects.damaged == 1
        assert "is damaged" in caplog.text
        if way != "truncated":
            assert (tmp_path / "store" / "quarantine" / digest.hex()).exists()
            assert store.objects.get(other) == b"a neighbour" * 50
        assert put(store, data) == digest  # heals
        assert store.objects.get(digest) == data
        assert record(store, digest).refs == 1  # its holder had it before, and has it once
    with Store(tmp_path / "store", Options(background=False)) as store:
        assert store.objects.get(digest) == data
    assert run(tmp_path / "store").exit_code == (2 if way == "truncated" and size < SHARED_MAX else 0)


def test_a_range_decodes_only_its_frames(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    data = os.urandom(4 * FRAME_SIZE)
    digest = put(store, data)
    place = record(store, digest)
    damage.flip(store.volumes.path(place.volume), place.offset + 3 * FRAME_SIZE, 10)
    assert store.objects.read(digest, FRAME_SIZE - 5, 10) == data[FRAME_SIZE - 5 : FRAME_SIZE + 5]
    with pytest.raises(ObjectDamaged):
        store.objects.read(digest, 3 * FRAME_SIZE, 10)


@pytest.mark.parametrize("size", [5, FRAME_SIZE - 1, FRAME_SIZE, FRAME_SIZE + 1, 3 * FRAME_SIZE, 3 * FRAME_SIZE + 7])
def test_the_end_that_is_remembered_is_not_read_until_it_is_deleted(store: Store, size: int) -> None:
    data = os.urandom(size)
    digest = put(store, data)
    last = last_frame(size)
    store.objects.remember(Staged(digest, size, end=data[last:]))
    store.volumes.path(record(store, digest).volume).write_bytes(b"")
    assert store.objects.is_quick(digest, size - 1)
    assert store.objects.read(digest, size - 1, 100) == data[-1:]
    assert store.objects.read(digest, last, FRAME_SIZE) == data[last:]
    delete(store, digest)
    with pytest.raises(ObjectMissing):
        store.objects.read(digest, size - 1, 1)
    assert store.objects._cache.get((digest, last // FRAME_SIZE)) is None


@pytest.mark.parametrize("size", [1, FRAME_SIZE, FRAME_SIZE + 1, IN_MEMORY_MAX, IN_MEMORY_MAX + 1])
def test_staging_hands_back_the_last_frame(store: Store, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    with open(tmp_path / "file", "rb") as file:
        new = store.objects.stage_file(file.fileno())
        store.objects.settle(new)
        put(store, data)
        known = store.objects.stage_file(file.fileno())
        store.objects.settle(known)
    assert new.end == known.end == data[last_frame(size) :]


@pytest.mark.parametrize("end", [b"", b"1234", b"123456"])
def test_an_end_that_is_not_the_last_frame_is_not_remembered(store: Store, end: bytes) -> None:
    digest = put(store, b"12345")
    store.objects.remember(Staged(digest, 5, end=end))
    assert store.objects.get(digest) == b"12345"


def test_what_comes_before_the_end_is_not_remembered(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    data = os.urandom(FRAME_SIZE + 5)
    digest = put(store, data)
    store.objects.remember(Staged(digest, len(data), end=data[FRAME_SIZE:]))
    damage.flip(store.volumes.path(record(store, digest).volume), record(store, digest).offset, 10)
    with pytest.raises(ObjectDamaged):
        store.objects.get(digest)


def test_a_volume_that_is_gone_is_damage(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    digest = put(store, os.urandom(1 << 20))
    store.volumes.path(record(store, digest).volume).unlink()
    store.volumes.close()
    with pytest.raises(ObjectDamaged):
        store.objects.get(digest)


# --- compaction -------------------------------------------------------------------------------------------------------


def test_compaction_gives_the_space_back_and_loses_nothing(store: Store) -> None:
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
        contents = {put(store, data): data for data in (os.urandom(random.randrange(100, 9000)) for _ in range(150))}
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


def test_a_reader_with_an_old_place_does_not_condemn_what_was_moved(store: Store) -> None:
    digests = [put(store, os.urandom(4000)) for _ in range(40)]
    kept, old = digests[0], record(store, digests[0])
    for digest in digests[1:]:
        delete(store, digest)
    store.compact()
    assert record(store, kept).place != old.place
    assert not store.objects.set_aside(kept, old, FileNotFoundError("its volume is gone"))
    assert store.objects.verify(kept)


# --- threads ----------------------------------------------------------------------------------------------------------


def test_four_threads_put_and_delete_the_same_bytes(tmp_path: Path, hasty_threads: None) -> None:
    contents = [os.urandom(2000) for _ in range(3)] + [os.urandom(700 << 10)]
    with Store(tmp_path / "store", Options(volume_size=8 << 10)) as store:

        def work(seed: int) -> None:
            chosen = random.Random(seed)
            for _ in range(250):
                data = chosen.choice(contents)
                if chosen.random() < 0.5:
                    put(store, data)
                else:
                    delete(store, blake3(data).digest())
                if chosen.random() < 0.1:
                    store.fold()
                with contextlib.suppress(ObjectMissing):
                    assert store.objects.get(blake3(data).digest()) == data

        in_threads(*[lambda seed=seed: work(seed) for seed in range(4)])
        assert store.objects.damaged == 0
        for data in contents:
            put(store, data)
            assert store.objects.verify(blake3(data).digest())
    assert run(tmp_path / "store").exit_code == 0


def test_linking_goes_on_while_volumes_fill_up_and_empty(tmp_path: Path, hasty_threads: None) -> None:
    """A volume that is closed and emptied at once must not go with an object in it that waits for its link."""
    with Store(tmp_path / "store", Options(volume_size=1)) as store:

        def work(seed: int) -> None:
            chosen = random.Random(seed)
            for _ in range(300):
                data = chosen.randbytes(1000)
                digest = put(store, data)
                assert store.objects.verify(digest)
                assert delete(store, digest)
                if chosen.random() < 0.3:
                    store.fold()

        in_threads(*[lambda seed=seed: work(seed) for seed in range(4)])
        assert store.objects.damaged == 0
    assert run(tmp_path / "store").exit_code == 0


def test_a_large_object_can_be_read_the_moment_it_is_linked(store: Store) -> None:
    data = os.urandom(1 << 20)
    staged = store.objects.stage(data)
    with store.transaction() as txn:
        store.objects.link(txn, staged, held=True)
    assert store.objects.get(staged.digest) == data
    store.fold()
    store.sync()
    store.objects.settle(staged)
    assert store.objects.verify(staged.digest)
    assert store.volumes.incoming() == []


def test_a_large_object_that_is_deleted_before_it_is_settled(store: Store) -> None:
    staged = store.objects.stage(os.urandom(1 << 20))
    with store.transaction() as txn:
        store.objects.link(txn, staged, held=True)
    delete(store, staged.digest)
    store.fold()
    store.objects.settle(staged)
    assert (store.volumes.incoming(), store.volumes.numbers()) == ([], [])


def test_a_large_object_that_a_fold_came_into_is_synced_before_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def frames() -> Iterator[bytes]:
        yield os.urandom(FRAME_SIZE)
        store.fold()
        yield os.urandom(100)

    staged = store.objects.stage_frames(frames())
    with store.transaction() as txn:
        store.objects.link(txn, staged)
    sync = os.fdatasync

    def note(fd: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", note)
    store.fold()
    assert f"{staged.volume:08x}.vol" in synced
    store.objects.settle(staged)
