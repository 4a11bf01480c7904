"""fsck: finds every inconsistency, repairs it, and loses nothing that is intact."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest

from kcachefs.errors import NotAStore
from kcachefs.store import ContentStore, Options, Store
from kcachefs.store.checks import CHECKS
from kcachefs.store.fsck import run
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.listings import Listing
from kcachefs.store.object_records import (
    META_VOLUME,
    TOTALS_KEY,
    Totals,
    VolumeRecord,
    object_key,
    volume_key,
)
from kcachefs.store.places import HEADER
from kcachefs.store.records import (
    META_INO,
    META_SPOOL,
    Content,
    inode_key,
    name_key,
    orphan_key,
    pack_name,
    pack_number,
    slot_key,
    spool_key,
    unpack_name,
)
from tests.store import damage, tree
from tests.store.objects import put, record
from tests.store.repairs import OPTIONS, VICTIM, edit, look, make_store, place, repaired, victim


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


def test_an_intact_store_is_clean(path: Path) -> None:
    report = run(path)
    assert (report.exit_code, report.findings, report.objects, report.inodes) == (0, [], 23, 24)
    assert run(path, repair=True).exit_code == 0


def test_a_store_that_was_never_used_is_clean(tmp_path: Path) -> None:
    Store(tmp_path / "store").close()
    assert run(tmp_path / "store").exit_code == 0


def test_checking_changes_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, digest = victim(path)
    there = place(path, digest)
    damage.flip(path / "volumes" / f"{there.volume:08x}.vol", there.offset, there.length)
    first, second = run(path), run(path)
    assert first.findings == second.findings
    assert os.listdir(path / "quarantine") == []


# --- content ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["flipped", "zeroed"])
def test_wrong_digest(path: Path, way: str, caplog: pytest.LogCaptureFixture) -> None:
    _, digest = victim(path)
    there = place(path, digest)
    damage.WAYS[way](path / "volumes" / f"{there.volume:08x}.vol", there.offset, there.length - 64)
    report = repaired(path, "digest")
    assert [finding.thing for finding in report.findings if finding.check == "digest"] == [digest.hex()]
    assert (path / "quarantine" / digest.hex()).exists()


def test_a_damaged_trailer_is_found_before_it_is_needed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, digest = victim(path)
    there = place(path, digest)
    damage.flip(path / "volumes" / f"{there.volume:08x}.vol", there.offset + there.length - 20, 1)
    repaired(path, "digest")


def test_a_volume_that_is_gone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Store(path, OPTIONS) as store:
        digest = put(store, os.urandom(2 << 20))
        number = record(store, digest).volume
    (path / "volumes" / f"{number:08x}.vol").unlink()
    repaired(path, "digest", "volume", victim_survives=True)


def test_a_damaged_object_that_is_still_held(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = os.urandom(3000)
    with ContentStore(path) as store:
        digest = store.put(data)
    there = place(path, digest)
    damage.flip(path / "volumes" / f"{there.volume:08x}.vol", there.offset, there.length)
    with ContentStore(path) as store:
        assert not store.verify(digest)
    repaired(path, "damaged object", victim_survives=True)
    with ContentStore(path) as store:
        assert not store.exists(digest)
        assert store.put(data) == digest
        assert store.get(digest) == data


# --- records ----------------------------------------------------------------------------------------------------------


def flip_record(path: Path, key: bytes) -> None:
    raw = look(path, key)
    for offset in damage.find_value(path / "catalog", key + raw):
        damage.flip(path / "catalog" / "data.mdb", offset + len(key), len(raw))


def test_a_damaged_object_record_is_found_again_in_the_volume(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, digest = victim(path)
    with ContentStore(path) as store:
        held = store.put(b"held and its record damaged" * 100)
    flip_record(path, object_key(digest))
    flip_record(path, object_key(held))
    repaired(path, "record", victim_survives=True)
    with ContentStore(path) as store:
        assert store.get(held) == b"held and its record damaged" * 100
        assert store.delete(held)


@pytest.mark.parametrize("table", ["inode", "name"])
def test_a_damaged_inode_or_name_costs_that_file_alone(
    path: Path, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    ino, _ = victim(path)
    flip_record(path, inode_key(ino) if table == "inode" else name_key(ROOT_INO, VICTIM))
    repaired(path, "record", {"inode": "dangling name", "name": "orphan inode"}[table])


@pytest.mark.parametrize("key", [TOTALS_KEY, META_VOLUME, META_INO])
def test_a_damaged_total_or_counter(path: Path, key: bytes, caplog: pytest.LogCaptureFixture) -> None:
    flip_record(path, key)
    run(path)  # opening the store counts again by itself
    assert "counting everything again" in caplog.text
    assert run(path).exit_code == 0


def test_a_damaged_volume_record(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Store(path, OPTIONS) as store:
        number = record(store, put(store, os.urandom(1 << 20))).volume
    flip_record(path, volume_key(number))
    repaired(path, "record", victim_survives=True)


def test_a_damaged_spool_record(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    flip_record(path, spool_key(1))
    repaired(path, "record", victim_survives=True)
    with Store(path, OPTIONS) as store:
        assert tree.read(store, b"spooled") == b"not sealed"


# --- objects and their counts -----------------------------------------------------------------------------------------


def test_missing_object(path: Path) -> None:
    ino, _ = victim(path)
    inode = tree.new_inode(stat.S_IFREG, Content.OBJECT, size=5, digest=b"?" * 32)
    edit(path, (inode_key(ino), inode.pack()))
    repaired(path, "missing object", "orphan object")


def test_an_object_whose_record_was_lost_is_found_again(path: Path) -> None:
    _, digest = victim(path)
    edit(path, (object_key(digest), None))
    repaired(path, "missing object", victim_survives=True)


@pytest.mark.parametrize("refs", [0, 1, 7])
def test_wrong_reference_count(path: Path, refs: int) -> None:
    with Store(path, OPTIONS) as store:
        raw = store.catalog.get(name_key(ROOT_INO, b"twin"))
        assert raw is not None
        digest = tree.read_inode(store, unpack_name(raw)[0]).digest
    there = place(path, digest)
    there.refs = refs
    edit(path, (object_key(digest), there.pack()))
    repaired(path, "reference count", "accounting", victim_survives=True)


def test_orphan_object(path: Path) -> None:
    with Store(path, OPTIONS) as store:
        digest = put(store, b"nobody's" * 100, held=False)
    repaired(path, "orphan object", victim_survives=True)
    with Store(path, OPTIONS) as store:
        assert store.objects.record(digest) is None


def test_broken_accounting(path: Path) -> None:
    edit(path, (TOTALS_KEY, Totals(1, 2, 3, 4, 5).pack()))
    repaired(path, "accounting", victim_survives=True)


@pytest.mark.parametrize("live", [0, 1, 1 << 30])
def test_a_volume_record_with_wrong_numbers(path: Path, live: int) -> None:
    _, digest = victim(path)
    number = place(path, digest).volume
    volume = VolumeRecord.unpack(look(path, volume_key(number)))
    edit(path, (volume_key(number), VolumeRecord(volume.size, live, volume.flags).pack()))
    repaired(path, "accounting", victim_survives=True)


@pytest.mark.parametrize("key", [META_INO, META_SPOOL, META_VOLUME])
def test_a_counter_that_would_hand_out_a_used_number(path: Path, key: bytes) -> None:
    edit(path, (key, pack_number(1)))
    repaired(path, "accounting", victim_survives=True)


# --- names and inodes -------------------------------------------------------------------------------------------------


def test_dangling_name(path: Path) -> None:
    edit(path, (name_key(ROOT_INO, b"ghost"), pack_name(999, stat.S_IFREG)))
    repaired(path, "dangling name", victim_survives=True)


def test_orphan_inode(path: Path) -> None:
    edit(path, (name_key(ROOT_INO, VICTIM), None))
    repaired(path, "orphan inode")


def test_a_directory_that_cannot_be_reached_goes_with_what_is_in_it(path: Path) -> None:
    folder = tree.new_inode(stat.S_IFDIR | 0o755, Content.NONE, size=2)
    child = tree.new_inode(stat.S_IFREG, Content.NONE)
    edit(
        path,
        (inode_key(500), folder.pack()),
        (inode_key(501), child.pack()),
        (name_key(500, b"child"), pack_name(501, stat.S_IFREG)),
        (name_key(500, b"itself"), pack_name(500, stat.S_IFDIR)),
    )
    repaired(path, "dangling name", "orphan inode", victim_survives=True)


def test_an_inode_that_waits_for_its_last_user_is_not_an_orphan(path: Path) -> None:
    waiting = tree.new_inode(stat.S_IFREG, Content.NONE)
    waiting.nlink = 0
    edit(path, (inode_key(500), waiting.pack()), (orphan_key(500), b""), (META_INO, pack_number(501)))
    assert run(path).exit_code == 0
    edit(path, (inode_key(500), None))
    repaired(path, "orphan inode", victim_survives=True)


def test_a_name_of_the_wrong_type(path: Path) -> None:
    ino, _ = victim(path)
    edit(path, (name_key(ROOT_INO, VICTIM), pack_name(ino, stat.S_IFDIR)))
    repaired(path, "name", victim_survives=True)


def test_wrong_link_counts(path: Path) -> None:
    ino, _ = victim(path)
    with Store(path, OPTIONS) as store:
        tree.make_directory(store, b"folder")
        root, file = tree.read_inode(store, ROOT_INO), tree.read_inode(store, ino)
    root.size, root.nlink, file.nlink = 3, 9, 5
    edit(path, (inode_key(ROOT_INO), root.pack()), (inode_key(ino), file.pack()))
    repaired(path, "link count", victim_survives=True)


def test_no_root(path: Path) -> None:
    edit(path, (inode_key(ROOT_INO), None))
    assert run(path).exit_code == 2
    assert run(path, repair=True).exit_code == 1
    assert run(path).exit_code == 0


# --- spool and files --------------------------------------------------------------------------------------------------


def test_a_spool_file_that_is_gone(path: Path) -> None:
    (path / "spool" / f"{1:016x}").unlink()
    repaired(path, "spool", victim_survives=True)


def test_spool_left_behind(path: Path) -> None:
    (path / "spool" / f"{77:016x}").write_bytes(b"whose?")
    ino, _ = victim(path)
    edit(path, (spool_key(77), pack_number(ino)), (slot_key(3), pack_number(ino)), (META_SPOOL, pack_number(78)))
    repaired(path, "spool", victim_survives=True)


def test_a_file_whose_slot_has_no_record(path: Path) -> None:
    ino, _ = victim(path)
    inode = tree.new_inode(stat.S_IFREG, Content.SLOT, size=4, spool=2)
    edit(path, (inode_key(ino), inode.pack()))
    assert run(path, repair=True).exit_code == 1
    assert look(path, slot_key(2)) == pack_number(ino)
    assert run(path).exit_code == 0


def test_a_stray_file(path: Path) -> None:
    (path / "volumes" / "README").write_text("hello")
    (path / "spool" / "core.123").write_text("hello")
    repaired(path, "stray file", victim_survives=True)
    assert (path / "quarantine" / "stray-README").read_text() == "hello"


def test_a_damaged_record_of_the_past(path: Path) -> None:
    (path / "history" / "events").write_bytes(b"no record" * 100)
    repaired(path, "history", victim_survives=True)


def test_a_damaged_dictionary(path: Path) -> None:
    with Store(path, Options(background=False)) as store:
        samples = [random.Random(number % 40).randbytes(2000) for number in range(1000)]
        number = store.dictionaries.learn(samples, 1)
        damage.flip(store.dictionaries.path(number), 0, 2000)
    repaired(path, "dictionary", victim_survives=True)
    assert (path / "quarantine" / f"stray-{number:08x}.dict").exists()


def test_a_damaged_listing(path: Path) -> None:
    with Store(path, Options(background=False)) as store:
        store.listings.put(Listing.of(ROOT_INO, ROOT_INO, 1, []))
        damage.flip(store.listings.path(ROOT_INO), 0, 10)
    repaired(path, "listing", victim_survives=True)


def test_every_check_has_been_seen_to_fail() -> None:
    """Each check has a test above with at least one inconsistency. Add a check, and you add its test to this list."""
    assert [check.__name__ for check in CHECKS] == [
        "check_records",
        "check_accounting",
        "check_references",
        "check_dictionaries",
        "check_content",
        "check_damaged_objects",
        "check_missing_objects",
        "check_names",
        "check_inodes",
        "check_spool",
        "check_links",
        "check_files",
        "check_history",
        "check_listings",
    ]


# --- what cannot be opened --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"", b"{}", b'{"kcachefs": "store", "form', b"\0" * 80])
def test_a_damaged_header(path: Path, text: bytes) -> None:
    (path / HEADER).write_bytes(text)
    repaired(path, "header", victim_survives=True)
    with Store(path) as store:
        assert store.lost_power  # nobody knows, so it assumes the worst


def test_a_header_in_a_directory_that_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / HEADER).write_text("nonsense")
    with pytest.raises(NotAStore):
        run(tmp_path, repair=True)
    with pytest.raises(NotAStore):
        run(tmp_path / "absent")
    assert os.listdir(tmp_path) == [HEADER]
