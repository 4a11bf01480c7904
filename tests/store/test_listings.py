"""Kept listings: what the engine would have said name by name, few enough, and gone at the first doubt."""

from __future__ import annotations

import errno
import os
import random
import struct
from pathlib import Path
from zlib import crc32

import pytest

from kcachefs.engines.replies import pack_name
from kcachefs.store import Options, Store, listings
from kcachefs.store.listings import Listing, Listings, Row

FOLDER, PARENT, CHANGED = 17, 5, 1_700_000_000_123_456_789


def some_names(count: int) -> list[Row]:
    chosen = random.Random(count)
    cookies = sorted(chosen.sample(range(16, 1 << 63), count))
    return [
        (cookie, chosen.randbytes(chosen.randint(1, 255)).replace(b"/", b"_"), chosen.randrange(1, 1 << 60), kind)
        for cookie, kind in zip(cookies, chosen.choices((4, 8, 10), k=count), strict=True)
    ]


def listing(count: int = 100, folder: int = FOLDER) -> Listing:
    return Listing.of(folder, PARENT, CHANGED, some_names(count))


@pytest.mark.parametrize("count", [0, 1, 300])
def test_every_part_is_what_the_engine_says_name_by_name(count: int) -> None:
    names = some_names(count)
    rows = [(1, b".", FOLDER, 4), (2, b"..", PARENT, 4), *names]
    kept = Listing.of(FOLDER, PARENT, CHANGED, names)
    for cookie in (0, *(row[0] for row in rows)):
        behind = [pack_name(*row) for row in rows if row[0] > cookie]
        assert kept.part(cookie, 1 << 20) == b"".join(behind)
        for size in (0, 23, 24, 300, 4096):
            fitting = 0
            while fitting < len(behind) and sum(map(len, behind[: fitting + 1])) <= size:
                fitting += 1
            assert kept.part(cookie, size) == b"".join(behind[:fitting])


def test_a_cookie_whose_name_is_gone_leads_to_the_next() -> None:
    names = some_names(50)
    kept = Listing.of(FOLDER, PARENT, CHANGED, names)
    assert kept.part(names[20][0] - 1, 1 << 20) == kept.part(names[19][0], 1 << 20)
    assert kept.part(names[20][0] + 1, 1 << 20) == kept.part(names[20][0], 1 << 20)
    assert kept.part(1 << 63, 1 << 20) == b""


def test_it_is_good_for_its_folder_as_it_was() -> None:
    kept = listing(100)
    assert kept.is_of(CHANGED, 100)
    assert not kept.is_of(CHANGED + 1, 100)
    assert not kept.is_of(CHANGED, 99)


def test_one_that_is_kept_is_there_after_the_store_was_closed(tmp_path: Path) -> None:
    kept = listing()
    Listings(tmp_path / "listings").put(kept)
    for _ in range(2):
        found = Listings(tmp_path / "listings").get(FOLDER)
        assert found is not None
        assert found.raw == kept.raw
    assert Listings(tmp_path / "listings").get(FOLDER + 1) is None


def test_one_that_changed_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    kept = Listings(tmp_path)
    for count in (100, 200):
        kept.put(listing(count))
        found = kept.get(FOLDER)
        assert found is not None
        assert found.is_of(CHANGED, count)
    assert len(os.listdir(tmp_path)) == 1


@pytest.mark.parametrize("length", [0, 10, 31, 500, -1])
def test_a_short_file_is_no_listing_and_goes(tmp_path: Path, length: int) -> None:
    kept = Listings(tmp_path)
    kept.put(listing())
    kept.path(FOLDER).write_bytes(listing().raw[:length])
    assert Listings(tmp_path).get(FOLDER) is None
    assert os.listdir(tmp_path) == []


def test_any_byte_that_changes_is_noticed() -> None:
    raw = bytearray(listing(3).raw)
    for at in range(len(raw)):
        raw[at] ^= 1 << at % 8
        with pytest.raises(ValueError, match="check"):
            Listing(bytes(raw))
        raw[at] ^= 1 << at % 8


@pytest.mark.parametrize("count", [4, 1 << 31])
def test_one_that_says_it_has_more_than_it_has_is_none(count: int) -> None:
    body = struct.pack("<8sQqI", b"kclistng", FOLDER, CHANGED, count) + bytes(32)
    with pytest.raises(ValueError, match="not a listing"):
        Listing(body + struct.pack("<I", crc32(body)))


def test_that_of_another_folder_goes(tmp_path: Path) -> None:
    kept = Listings(tmp_path)
    kept.put(listing())
    os.rename(kept.path(FOLDER), kept.path(FOLDER + 1))
    assert Listings(tmp_path).get(FOLDER + 1) is None
    assert os.listdir(tmp_path) == []


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "TOTAL_MAX", 200 << 10)
    kept = Listings(tmp_path)
    for folder in range(20):
        kept.put(listing(folder=folder))
        os.utime(kept.path(folder), ns=(folder, folder))
        assert kept.allocated_bytes() == sum(os.stat(tmp_path / name).st_blocks * 512 for name in os.listdir(tmp_path))
        assert kept.allocated_bytes() <= 200 << 10
    left = kept.folders()
    assert 4 < len(left) < 20
    assert left == list(range(20 - len(left), 20))
    again = Listings(tmp_path)
    assert again.folders() == left, "their order outlives the process"
    assert all((again.get(folder) is None) == (folder not in left) for folder in range(20))


def test_so_many_are_kept_however_small_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "FILES_MAX", 5)
    kept = Listings(tmp_path)
    for folder in range(8):
        kept.put(listing(1, folder=folder))
    assert kept.folders() == [3, 4, 5, 6, 7]
    assert len(os.listdir(tmp_path)) == 5


def test_what_is_no_file_is_no_listing_and_keeps_nothing_waiting(tmp_path: Path) -> None:
    store = tmp_path / "store"
    Store(store).close()
    folder = store / "listings"
    os.mkfifo(folder / f"{1:016x}")
    (folder / f"{2:016x}").mkdir()
    (folder / f"{3:016x}").symlink_to("/etc/passwd")
    with Store(store, Options(background=False)) as opened:
        assert opened.listings.folders() == []
        assert len(opened.strays()) == 3


def test_a_huge_file_is_no_listing_and_goes(tmp_path: Path) -> None:
    kept = Listings(tmp_path)
    kept.put(listing())
    os.truncate(kept.path(FOLDER), 1 << 40)
    assert Listings(tmp_path).get(FOLDER) is None
    assert os.listdir(tmp_path) == []


def test_what_could_not_be_written_leaves_nothing_that_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Listings(tmp_path)
    kept.put(listing(100))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", _no_space)
        with pytest.raises(OSError, match="full"):
            kept.put(listing(200))
    assert (kept.allocated_bytes(), os.listdir(tmp_path)) == (0, [])
    kept.put(listing(200))
    assert kept.get(FOLDER) is not None


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "the disk is full")


def test_a_store_opens_whatever_is_in_the_place_of_listings(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Store(path).close()
    (path / "listings" / f"{FOLDER:016x}.new").mkdir()
    Store(path).close()
    (path / "listings" / f"{FOLDER:016x}.new").rmdir()
    (path / "listings").rmdir()
    (path / "listings").write_bytes(b"")
    with Store(path, Options(background=False)) as store:
        assert store.listings.folders() == []
        with pytest.raises(OSError, match=r"listings|directory"):
            store.listings.put(listing())


def test_one_that_is_too_long_is_not_kept(tmp_path: Path) -> None:
    Listings(tmp_path).put(listing(12_000))
    assert os.listdir(tmp_path) == []


def test_what_a_kill_left_half_written_is_removed_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Store(path).close()
    (path / "listings" / f"{FOLDER:016x}.new").write_bytes(b"half a listing")
    (path / "listings" / "notes.new").write_bytes(b"somebody's")
    with Store(path, Options(background=False)) as store:
        assert os.listdir(path / "listings") == ["notes.new"]
        assert [stray.name for stray in store.strays()] == ["notes.new"]


def test_a_store_without_the_folder_gets_it_with_the_first_listing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Store(path).close()
    (path / "listings").rmdir()
    with Store(path, Options(background=False)) as store:
        before = store.used_bytes()
        store.listings.put(listing())
        assert store.used_bytes() - before == store.listings.allocated_bytes() > 0
    assert (path / "listings").stat().st_mode & 0o777 == 0o700


def test_the_order_is_kept_where_the_clock_is_coarse_or_set_back(tmp_path: Path) -> None:
    folder = tmp_path / "listings"
    kept = Listings(folder)
    kept.put(listing(folder=9))
    os.utime(kept.path(9), ns=(CHANGED, CHANGED))
    ahead = Listings(folder)
    ahead._newest = 4 * CHANGED  # as if the clock had been
    for number in (8, 7, 6):
        ahead.put(listing(folder=number))
    assert Listings(folder).folders() == [9, 8, 7, 6]
    later = Listings(folder)
    later.put(listing(folder=8))
    assert Listings(folder).folders() == [9, 7, 6, 8]
