"""What a lookup lets the engine fetch is what the read would have found, and nothing is fetched in vain for long."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
import zstandard

from kcachefs.errors import ObjectDamaged
from kcachefs.store import Options, Store
from kcachefs.store.frames import FRAME_SIZE
from kcachefs.store.next_read import STORED_MAX, TRIED, VAIN_MAX, NextRead
from kcachefs.store.object_records import object_key
from tests.disks import ext4, need_root
from tests.store.objects import delete, put, record


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """On a disk, here and for the `store`: of files in memory the kernel does not say whether they are."""
    return disk_path


def stored(store: Store, *contents: bytes) -> list[bytes]:
    """The digests of contents that are on the disk and not in memory; their volume is open."""
    digests = [put(store, content) for content in (b"the first of the volume", *contents)]
    store.objects.cache.clear()
    assert store.objects.get(digests[0]) == b"the first of the volume"
    return digests[1:]


def fetch(store: Store, digest: bytes) -> bool:
    """As the engine does after a lookup; returns whether it was fetched."""
    following = store.objects.next_read
    following.expect(digest)
    following.prepare()
    return following._ready is not None


def overwrite(store: Store, digest: bytes) -> None:
    """Damage an object where it lies."""
    found = record(store, digest)
    with open(store.objects.volumes.path(found.volume), "r+b") as volume:
        volume.seek(found.offset)
        volume.write(bytes(found.length))


def test_what_was_fetched_is_read_from_memory(store: Store) -> None:
    content = b"a kernel " * 1000
    [digest] = stored(store, content)
    assert fetch(store, digest)
    overwrite(store, digest)  # nothing below reads the disk
    assert store.objects.read(digest, 0, len(content) + 4096) == content
    assert store.objects.read(digest, 0, len(content)) == content
    assert store.objects.read(digest, 9, 9) == b"a kernel "


@pytest.mark.parametrize(("offset", "size"), [(0, 10), (10, 10), (10, 100_000)])
def test_a_read_of_a_part_makes_use_of_it_too(store: Store, offset: int, size: int) -> None:
    content = os.urandom(20_000)
    [digest] = stored(store, content)
    assert fetch(store, digest)
    overwrite(store, digest)  # nothing below reads the disk
    assert store.objects.read(digest, offset, size) == content[offset : offset + size]
    assert store.objects.read(digest, 0, 1 << 20) == content


def test_a_read_of_another_object_is_not_answered_with_it(store: Store) -> None:
    one, other = stored(store, b"one" * 100, b"other" * 100)
    assert fetch(store, one)
    assert store.objects.read(other, 0, 4096) == b"other" * 100
    assert store.objects.read(one, 0, 4096) == b"one" * 100


def test_damage_is_found_and_told(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    [digest] = stored(store, b"a kernel " * 1000)
    overwrite(store, digest)
    assert fetch(store, digest)
    with pytest.raises(ObjectDamaged, match="set aside"):
        store.objects.read(digest, 0, 1 << 20)
    assert [one.getMessage().rpartition(" and ")[2] for one in caplog.records] == ["was set aside"]
    assert not fetch(store, digest)


def test_a_damaged_record_is_left_to_the_read(store: Store) -> None:
    """The engine's thread is between two requests: nothing that is raised there could be told to anybody."""
    [digest] = stored(store, b"a kernel " * 1000)
    with store.transaction() as txn:
        txn.put(object_key(digest), b"no record")
    assert not fetch(store, digest)
    with pytest.raises(struct.error):
        store.objects.read(digest, 0, 1 << 20)
    with store.transaction() as txn:
        txn.delete(object_key(digest))


def test_bytes_that_are_wrong_in_memory_only_are_read_again(store: Store) -> None:
    content = b"a kernel " * 1000
    [digest] = stored(store, content)
    assert fetch(store, digest)
    ready = store.objects.next_read._ready
    assert ready is not None
    ready[2][20] ^= 1
    assert store.objects.read(digest, 0, 1 << 20) == content


def test_only_what_is_worth_it_is_fetched(store: Store) -> None:
    noise, large = os.urandom(STORED_MAX + 1), b"x" * (FRAME_SIZE + 1)
    cached, gone, *others = stored(store, b"cached", b"gone", noise, large)
    store.objects.get(cached)
    delete(store, gone)
    for digest in (cached, gone, *others):
        assert not fetch(store, digest)
    assert store.objects.get(others[0]) == noise


def test_a_dictionary_that_is_gone_is_damage_as_ever(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is a FileNotFoundError, where a damaged frame is an ObjectDamaged."""
    contents = [b"shared words of every kernel %d " % number**5 * 200 for number in range(400)]
    with Store(tmp_path / "store", Options(background=False)) as store:
        digests = [put(store, content) for content in contents]
        for _ in store.repack(0):
            pass
    for dictionary in (tmp_path / "store").rglob("*.dict"):
        dictionary.unlink()
    with Store(tmp_path / "store", Options(background=False)) as store:
        [digest, *_] = [digest for digest in digests if needs_dictionary(store, digest)]
        assert fetch(store, digest)
        with pytest.raises(ObjectDamaged, match="set aside"):
            store.objects.read(digest, 0, 1 << 20)
    assert [one.getMessage().rpartition(" and ")[2] for one in caplog.records] == ["was set aside"]


def needs_dictionary(store: Store, digest: bytes) -> bool:
    found = record(store, digest)
    frame = store.objects.volumes.read(found.volume, found.offset, found.length)
    return zstandard.get_frame_parameters(frame).dict_id != 0


def test_a_volume_that_nobody_has_read_is_not_opened(store: Store) -> None:
    [digest] = stored(store, b"a kernel " * 1000)
    store.close()
    with Store(store.path, store.options) as again:
        assert not fetch(again, digest)
        assert again.objects.get(digest) == b"a kernel " * 1000


@need_root
def test_a_disk_is_not_waited_for(tmp_path: Path) -> None:
    contents = [os.urandom(8000) for _ in range(32)]
    with ext4(tmp_path) as disk, Store(disk.path / "store", Options(background=False)) as store:
        digests = stored(store, *contents)
        os.sync()
        volume = os.open(store.objects.volumes.path(record(store, digests[0]).volume), os.O_RDONLY)
        assert fetch(store, digests[0])
        os.posix_fadvise(volume, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(volume)
        assert not fetch(store, digests[31])
        assert store.objects.get(digests[31]) == contents[31]  # and now the page cache has it, if not what is near it
        store.objects.cache.clear()
        assert fetch(store, digests[31])


def test_programs_that_only_look_make_it_stop_and_readers_begin_it_again(store: Store) -> None:
    [digest] = stored(store, b"a kernel " * 1000)
    fetched = [fetch(store, digest) for _ in range(VAIN_MAX + 3 * TRIED)]
    # What was fetched counts as vain only when the next lookup comes.
    assert fetched[:VAIN_MAX] == [True] * VAIN_MAX
    assert fetched[VAIN_MAX:].count(True) == 3
    assert any(fetch(store, digest) for _ in range(TRIED)), "one of so many lookups is tried"
    assert store.objects.read(digest, 0, 1 << 20) == b"a kernel " * 1000
    store.objects.cache.clear()
    assert fetch(store, digest)


def test_programs_that_only_look_make_it_stop_where_nothing_can_be_fetched(store: Store) -> None:
    [digest] = stored(store, b"a kernel " * 1000)
    store.close()
    with Store(store.path, store.options) as again:  # no volume is open
        for _ in range(VAIN_MAX):
            assert not fetch(again, digest)
        again.objects.next_read.expect(digest)
        assert again.objects.next_read._expected is None


def test_what_comes_in_between_is_not_fetched(store: Store) -> None:
    """Another request was there already: nothing is fetched for a lookup that is history."""
    one, other = stored(store, b"one" * 100, b"other" * 100)
    following: NextRead = store.objects.next_read
    following.expect(one)
    following.expect(other)
    following.prepare()
    following.prepare()
    assert following.take(one) is None
    assert following.take(other) is not None
    assert following.take(other) is None
