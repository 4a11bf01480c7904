"""Listings of large folders are kept for the next start, and never shown when they are no longer true."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kcachefs.core import Filesystem, kept_listings
from kcachefs.core.kept_listings import NAMES_MIN
from kcachefs.core.limits import Limits
from kcachefs.core.tree import DOTDOT
from kcachefs.engines.replies import pack_names
from kcachefs.store import Options, Store, fsck
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.listings import Listing
from kcachefs.store.records import Inode, inode_key, names_of, names_prefix
from tests.core.policies.mounts import mounted, replace_worker
from tests.core.trees import ROOT, find, folder, opened
from tests.engines.mounting import Mount
from tests.waiting import until

ALL = 1 << 20


@pytest.fixture(autouse=True)
def _resting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_listings, "REST_NS", 0)


def filled(fs: Filesystem, count: int = 100, path: str = "triton/many") -> int:
    parent = folder(fs, path)
    for number in range(count):
        fs.forget(fs.create(ROOT, parent, b"name %d" % number, 0o644)[0], 1)
    return parent


def kept(fs: Filesystem, parent: int) -> bytes:
    """The whole listing as it was kept, once somebody has asked for it."""
    fs.kept_listing(parent, 0, ALL)
    fs.write_down()
    found = fs.kept_listing(parent, 0, ALL)
    assert found is not None
    return found


def test_what_is_kept_is_what_the_catalog_says(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        parent = filled(fs)
        fs.make(ROOT, parent, b"folder", stat.S_IFDIR | 0o755)
        assert fs.kept_listing(parent, 0, ALL) is None
        assert kept(fs, parent) == pack_names(fs.listing(parent, 0, 1000), ALL)
        fs.forget(fs.tree.find(parent, b"folder") or 0, 1)
    with opened(tmp_path / "store") as fs:
        assert fs.kept_listing(find(fs, "triton/many"), 0, ALL) == pack_names(fs.listing(parent, 0, 1000), ALL)


CHANGES: dict[str, Callable[[Filesystem, int], object]] = {
    "a name more": lambda fs, parent: fs.forget(fs.create(ROOT, parent, b"new", 0o644)[0], 1),
    "a name less": lambda fs, parent: fs.unlink(ROOT, parent, b"name 1"),
    "another name": lambda fs, parent: fs.rename(ROOT, parent, b"name 1", parent, b"moved"),
    "one in the place of another": lambda fs, parent: fs.rename(ROOT, parent, b"name 1", parent, b"name 2"),
    "a name that goes elsewhere": lambda fs, parent: fs.rename(
        ROOT, parent, b"name 1", find(fs, "triton"), b"elsewhere"
    ),
    "two that change places": lambda fs, parent: fs.rename(ROOT, parent, b"name 1", parent, b"name 2", 2),
    "the folder itself goes elsewhere": lambda fs, parent: fs.rename(
        ROOT, find(fs, "triton"), b"many", find(fs, "inductor"), b"many"
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_after_a_change_it_is_no_longer_good(tmp_path: Path, change: Callable[[Filesystem, int], object]) -> None:
    with opened(tmp_path / "store") as fs:
        parent = filled(fs)
        before = kept(fs, parent)
        change(fs, parent)
        assert fs.kept_listing(parent, 0, ALL) is None
        after = kept(fs, parent)
        assert after == pack_names(fs.listing(parent, 0, 1000), ALL)
        assert after != before


def test_a_change_while_it_is_being_made_is_in_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store") as fs:
        parent = filled(fs)
        listing = fs.tree.listing

        def list_and_change(ino: int, cookie: int, limit: int) -> list[tuple[int, bytes, int, int]]:
            found = listing(ino, cookie, limit)
            if cookie == DOTDOT:
                monkeypatch.setattr(fs.tree, "listing", listing)
                fs.unlink(ROOT, parent, b"name 7")
            return found

        assert fs.kept_listing(parent, 0, ALL) is None
        monkeypatch.setattr(fs.tree, "listing", list_and_change)
        fs.write_down()
        assert fs.kept_listing(parent, 0, ALL) is None
        fs.write_down()
        assert fs.kept_listing(parent, 0, ALL) == pack_names(fs.listing(parent, 0, 1000), ALL)


def test_small_folders_and_the_root_are_not_kept(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        small, large = filled(fs, NAMES_MIN - 1, "triton/small"), filled(fs, NAMES_MIN, "triton/large")
        for number in range(NAMES_MIN):
            fs.make(ROOT, ROOT_INO, b"namespace %d" % number, stat.S_IFDIR | 0o755)
        for ino in (small, large, ROOT_INO):
            assert fs.kept_listing(ino, 0, ALL) is None
        fs.write_down()
        assert fs.store.listings.folders() == [large]


def test_a_folder_that_changes_is_not_kept_before_it_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store") as fs:
        parent = filled(fs)
        assert fs.kept_listing(parent, 0, ALL) is None
        monkeypatch.setattr(kept_listings, "REST_NS", 3600 * 10**9)
        fs.write_down()
        assert fs.store.listings.folders() == []
        monkeypatch.setattr(kept_listings, "REST_NS", 0)
        fs.write_down()
        assert fs.store.listings.folders() == [parent]


def test_a_folder_with_a_damaged_name_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as fs:
        parent = filled(fs)
    with Store(path, Options(background=False)) as store:
        _damage_a_name(store, parent)
        fs = Filesystem(store)
        assert fs.kept_listing(parent, 0, ALL) is None
        fs.write_down()
        assert store.listings.folders() == []
        assert len(fs.listing(parent, DOTDOT, 1000)) == 99


def test_where_nothing_can_be_written_nothing_is_kept_and_nobody_harmed(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        parent = filled(fs)
        (tmp_path / "store" / "listings").rmdir()
        (tmp_path / "store" / "listings").write_bytes(b"not a folder")
        assert fs.kept_listing(parent, 0, ALL) is None
        fs.write_down()
        assert fs.kept_listing(parent, 0, ALL) is None
        assert len(fs.listing(parent, DOTDOT, 1000)) == 100
        (tmp_path / "store" / "listings").unlink()
        fs.write_down()
        assert fs.kept_listing(parent, 0, ALL) is not None


def test_a_name_whose_record_is_damaged_later_is_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as fs:
        parent = filled(fs)
        kept(fs, parent)
    with Store(path, Options(background=False)) as store:
        fs = Filesystem(store)
        assert fs.kept_listing(parent, 0, ALL) is not None
        name = _damage_a_name(store, parent)
        assert fs.lookup(ROOT, parent, name) is None
        assert fs.kept_listing(parent, 0, ALL) is None
        assert name not in [row[1] for row in fs.listing(parent, 0, 1000)]
    assert "listing" not in [finding.check for finding in fsck.run(path).findings]
    assert fsck.run(path, repair=True).exit_code == 1
    assert fsck.run(path).findings == []


def test_what_cannot_be_kept_is_not_tried_again_before_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as fs:
        parent = filled(fs)
        listing = fs.tree.listing
        asked: list[int] = []

        def note_and_list(ino: int, cookie: int, limit: int) -> list[tuple[int, bytes, int, int]]:
            asked.append(ino)
            return listing(ino, cookie, limit)

        monkeypatch.setattr(fs.tree, "listing", note_and_list)
        fits = len(Listing.of(parent, 1, 0, listing(parent, DOTDOT, 1000)).raw)
        for most, is_kept in ((fits + 300, True), (fits - 1, False)):
            monkeypatch.setattr(kept_listings, "LISTING_MAX", most)
            fs.unlink(ROOT, parent, b"name 5")
            fs.forget(fs.create(ROOT, parent, b"name 5", 0o644)[0], 1)
            assert fs.kept_listing(parent, 0, ALL) is None
            fs.write_down()
            assert (fs.kept_listing(parent, 0, ALL) is not None) == is_kept
            asked.clear()
            fs.write_down()
            assert asked == []


def test_those_of_folders_that_are_gone_go(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        gone, stays = filled(fs, path="triton/gone"), filled(fs, path="triton/stays")
        kept(fs, gone)
        for number in range(100):
            fs.unlink(ROOT, gone, b"name %d" % number)
        fs.rmdir(ROOT, find(fs, "triton"), b"gone")
        fs.forget(gone, 1)
        kept(fs, stays)
        assert fs.store.listings.folders() == [stays]
        fs.store.listings.put(Listing.of(gone, 1, 0, []))
    with opened(tmp_path / "store") as fs:
        assert fs.store.listings.folders() == [stays]


def test_while_room_is_short_none_are_kept(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        one, other = filled(fs, path="triton/one"), filled(fs, path="triton/other")
        kept(fs, one)
        fs.kept_listing(other, 0, ALL)
        fs.room.has_room.clear()
        fs.write_down()
        assert fs.store.listings.folders() == []
        fs.room.has_room.set()
        fs.write_down()
        assert fs.store.listings.folders() == [other]


def test_they_take_a_small_part_of_the_quota(tmp_path: Path) -> None:
    with opened(tmp_path / "store", Limits(max_size=4 << 20)) as fs:
        for number in range(4):
            parent = filled(fs, path=f"triton/folder {number}")
            fs.kept_listing(parent, 0, ALL)
            fs.write_down()
            assert fs.store.listings.allocated_bytes() <= 16 << 10
        newest = find(fs, "triton/folder 3")
        assert fs.store.listings.folders() == [find(fs, "triton/folder 2"), newest]
    with opened(tmp_path / "store", Limits(max_size=2 << 20)) as fs:
        assert fs.store.listings.folders() == [newest]


def _damage_a_name(store: Store, folder: int) -> bytes:
    key = store.catalog.keys(names_prefix(folder))[50]
    with store.catalog._folded.env.begin(write=True) as txn:
        raw = bytearray(txn.get(key) or b"")
        raw[0] ^= 1
        txn.put(key, bytes(raw))
    return key[17:]


# --- through a mount --------------------------------------------------------------------------------------------------


def fill(mount: Mount) -> Path:
    many = mount.mountpoint / "triton" / "many"
    many.mkdir()
    for number in range(300):
        (many / f"name {number}").touch()
    return many


def listing_file(mount: Mount, many: Path) -> Path:
    return mount.store / "listings" / f"{many.stat().st_ino:016x}"


@pytest.mark.mount
def test_a_new_worker_sends_what_was_kept(tmp_path: Path) -> None:
    with mounted("direct") as mount:
        many = fill(mount)
        names = set(os.listdir(many))
        place = listing_file(mount, many)
        until(place.exists, "the listing is kept")
        mount.umount()
        _rename_in_listing(place, b"name 7", b"Name 7")
        mount.start()
        assert set(os.listdir(many)) == names - {"name 7"} | {"Name 7"}, "it was not read from the catalog"
        (many / "name 7").unlink()
        assert set(os.listdir(many)) == names - {"name 7"}, "after a change it was"
        replace_worker(mount)
        assert set(os.listdir(many)) == names - {"name 7"}


@pytest.mark.mount
def test_listings_stay_right_while_the_folder_changes_and_workers_are_killed() -> None:
    with mounted("direct") as mount:
        many = fill(mount)
        place = listing_file(mount, many)
        names = set(os.listdir(many))
        for turn in range(2):
            until(place.exists, "the listing is kept")
            replace_worker(mount)
            with os.scandir(many) as children:
                assert {child.name for child in children if child.is_file(follow_symlinks=False)} == names
            (many / f"name {turn}").rename(many / f"renamed {turn}")
            names = names - {f"name {turn}"} | {f"renamed {turn}"}
            assert set(os.listdir(many)) == names
            mount.umount()
            place.unlink(missing_ok=True)
            mount.start()
            assert set(os.listdir(many)) == names


@pytest.mark.mount
def test_users_of_a_private_mount_see_their_own_numbers() -> None:
    with mounted("direct", "--policy", "private") as mount:
        many = fill(mount)
        for _ in range(2):
            with os.scandir(many) as children:
                shown = {child.name: child.inode() for child in children}
            assert shown == {name: os.stat(many / name).st_ino for name in os.listdir(many)}
            mount.remount()
        assert os.listdir(mount.store / "listings") == []


def test_fsck_finds_one_that_tells_of_other_names(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as fs:
        parent = filled(fs)
        kept(fs, parent)
        place = fs.store.listings.path(parent)
    _rename_in_listing(place, b"name 7", b"Name 7")
    (finding,) = fsck.run(path).findings
    assert (finding.check, finding.problem) == ("listing", "has other names than its folder")
    assert place.exists()
    assert [one.repaired for one in fsck.run(path, repair=True).findings] == [True]
    assert not place.exists()
    assert fsck.run(path).findings == []


def test_fsck_leaves_one_alone_that_is_out_of_date(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        parent = filled(fs)
        kept(fs, parent)
        fs.unlink(ROOT, parent, b"name 3")
        for number in (*range(3), *range(4, 100)):
            fs.unlink(ROOT, parent, b"name %d" % number)
        fs.rmdir(ROOT, find(fs, "triton"), b"many")
        place = fs.store.listings.path(parent)
    assert place.exists()


def _rename_in_listing(place: Path, old: bytes, new: bytes) -> None:
    """Change a name to one of the same length, in a listing that passes its check all the same."""
    with Store(place.parent.parent, Options(background=False)) as store:
        folder = int(place.name, 16)
        raw = store.catalog.get(inode_key(folder))
        assert raw is not None
        rows = names_of(store.catalog.scan(names_prefix(folder)))
        node = Inode.unpack(raw)
        changed = [(cookie, new if name == old else name, ino, kind) for cookie, name, ino, kind in rows]
        assert changed != rows
        store.listings.put(Listing.of(folder, node.parent, node.ctime, changed))
