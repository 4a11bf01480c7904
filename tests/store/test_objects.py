"""Objects: stored once, counted correctly and checked on every read, whatever other threads do meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3

from kcachefs.errors import ObjectDamaged, ObjectMissing
from kcachefs.store import Options, Store
from kcachefs.store.frames import FRAME_SIZE, TRAILER, Codec, last_frame
from kcachefs.store.fsck import run
from kcachefs.store.ledger import Staged
from kcachefs.store.objects import IN_MEMORY_MAX, SHARED_MAX
from tests.store import damage
from tests.store.objects import delete, in_threads, put, record

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


def test_the_object_goes_with_its_last_reference(store: Store) -> None:
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


def test_a_large_object_has_a_volume_of_its_own_that_goes_with_it(store: Store) -> None:
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


def test_bytes_that_are_staged_and_never_linked_are_dead_space(store: Store) -> None:
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
        assert record(store, digest).refs == 1  # it was held before, and is held once
    with Store(tmp_path / "store", Options(background=False)) as store:
        assert store.objects.get(digest) == data
    assert run(tmp_path / "store").exit_code == (2 if way == "truncated" and size < SHARED_MAX else 0)


def test_a_range_decodes_only_its_frames(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    data = os.urandom(4 * FRAME_SIZE)
    digest = put(store, data)
    place = record(store, digest)
    damage.flip(store.volumes.path(place.volume), place.offset + 3 * FRAME_SIZE + 1000, 10)
    assert store.objects.read(digest, FRAME_SIZE - 5, 10) == data[FRAME_SIZE - 5 : FRAME_SIZE + 5]
    with pytest.raises(ObjectDamaged):
        store.objects.read(digest, 3 * FRAME_SIZE, 10)


def test_another_object_in_its_place_is_not_taken_for_it(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    mine, other = put(store, os.urandom(5000)), put(store, os.urandom(5000))
    copy(store, other, mine, record(store, mine).length)
    with pytest.raises(ObjectDamaged, match="do not match the digest"):
        store.objects.get(mine)


def test_what_has_a_good_checksum_and_other_bytes_is_found_by_fsck_and_not_written_anew(store: Store) -> None:
    """No accident does this: a whole frame of another object before the trailer of this one."""
    mine, other = put(store, os.urandom(5000)), put(store, os.urandom(5000))
    copy(store, other, mine, record(store, mine).length - TRAILER.size)
    with pytest.raises(ObjectDamaged, match="do not match the digest"):
        store.objects.frames.read_both(mine, record(store, mine), 0)
    store.close()
    assert [finding.check for finding in run(store.path).findings] == ["digest"]


@pytest.mark.parametrize("kind", ["noise", "text"])
def test_another_frame_in_its_place_is_not_taken_for_it(
    store: Store, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Frames of noise are all of one length, so those of two objects lie at the same places."""
    data = [
        os.urandom(4 * FRAME_SIZE) if kind == "noise" else b"".join(b"%d" % n * FRAME_SIZE for n in range(x, x + 4))
        for x in (1, 5)
    ]
    mine, other = put(store, data[0]), put(store, data[1])
    place, theirs = record(store, mine), record(store, other)
    first, second = store.objects.frames.read_table(mine, place)[:2]
    assert first.stored == second.stored
    path = store.volumes.path(place.volume)
    before = path.read_bytes()
    swapped = bytearray(before)
    begin, middle, end = place.offset, place.offset + second.offset, place.offset + second.offset + second.stored
    swapped[begin:end] = before[middle:end] + before[begin:middle]
    foreign = bytearray(before)
    foreign[begin:middle] = store.volumes.read(theirs.volume, theirs.offset, first.stored)
    for damaged in (swapped, foreign):
        path.write_bytes(damaged)
        with pytest.raises(ObjectDamaged):
            store.objects.frames.read(mine, place, 0)
        assert store.objects.frames.read(mine, place, 2) == data[0][2 * FRAME_SIZE : 3 * FRAME_SIZE]
    path.write_bytes(before)
    assert store.objects.get(mine) == data[0]


def test_a_damaged_trailer_behind_intact_bytes_harms_nobody(store: Store) -> None:
    digest = put(store, data := os.urandom(5000))
    place = record(store, digest)
    damage.flip(store.volumes.path(place.volume), place.offset + place.length - TRAILER.size + 30, 1)
    assert store.objects.get(digest) == data


def copy(store: Store, source: bytes, target: bytes, length: int) -> None:
    """Write the first bytes of one stored object over those of another."""
    theirs, mine = record(store, source), record(store, target)
    with open(store.volumes.path(mine.volume), "r+b") as volume:
        volume.seek(mine.offset)
        volume.write(store.volumes.read(theirs.volume, theirs.offset, length))


@pytest.mark.parametrize("size", [300, 20_000, FRAME_SIZE, 3 * FRAME_SIZE + 7])
@pytest.mark.parametrize("kind", ["text", "noise"])
def test_objects_from_before_there_were_checksums_are_read_and_compared_with_their_digests(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, size: int, kind: str
) -> None:
    def encode(codec: Codec, plain: bytes, dictionary: int = 0) -> bytes:
        packed = zstandard.ZstdCompressor(level=3, write_checksum=False).compress(plain)
        return packed if len(packed) < len(plain) - len(plain) // 16 else plain

    with monkeypatch.context() as patch:
        patch.setattr(Codec, "encode_frame", encode)
        data = (b"a line of a kernel\n" * size)[:size] if kind == "text" else os.urandom(size)
        digest = put(store, data)
    assert store.objects.get(digest) == data
    assert store.objects.verify(digest)
    store.objects.cache.clear()
    place = record(store, digest)
    damage.flip(store.volumes.path(place.volume), place.offset + 20, 1)
    with pytest.raises(ObjectDamaged):
        store.objects.get(digest)


@pytest.mark.parametrize("size", [5, FRAME_SIZE - 1, FRAME_SIZE, FRAME_SIZE + 1, 3 * FRAME_SIZE, 3 * FRAME_SIZE + 7])
def test_a_remembered_last_frame_is_served_from_memory_until_the_object_is_deleted(store: Store, size: int) -> None:
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
    assert store.objects.cache.get((digest, last // FRAME_SIZE)) is None


@pytest.mark.parametrize("size", [1, FRAME_SIZE, FRAME_SIZE + 1, IN_MEMORY_MAX, IN_MEMORY_MAX + 1])
def test_staging_returns_the_last_frame(store: Store, tmp_path: Path, size: int) -> None:
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
def test_bytes_that_are_not_the_whole_last_frame_are_not_remembered(store: Store, end: bytes) -> None:
    digest = put(store, b"12345")
    store.objects.remember(Staged(digest, 5, end=end))
    assert store.objects.get(digest) == b"12345"


def test_only_the_last_frame_is_remembered(store: Store, caplog: pytest.LogCaptureFixture) -> None:
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
    """A volume that is closed and emptied at once must not be removed while an object in it waits for its link."""
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


def test_a_large_object_that_is_staged_across_a_fold_is_synced_by_the_next(
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
