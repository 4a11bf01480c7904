"""fsck: every inconsistency is found, said in a line, mended by --repair, and costs nothing that is whole."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kcachefs.cli import app
from kcachefs.errors import NoSpace, NotAStore
from kcachefs.store import ContentStore, Options, Store
from kcachefs.store.checks import CHECKS
from kcachefs.store.fsck import run
from kcachefs.store.header import HEADER
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.inspection import Report
from kcachefs.store.lmdb_file import make_lmdb
from kcachefs.store.object_records import (
    META_VOLUME,
    TOTALS_KEY,
    ObjectRecord,
    Totals,
    VolumeRecord,
    object_key,
    volume_key,
)
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
from tests.store.test_objects import put, record

OPTIONS = Options(background=False, volume_size=32 << 10)
KEPT = {b"kept-%d" % number: (b"kernel %d " % number) * 300 for number in range(20)}
VICTIM = b"victim"
BYTES = b"the victim's bytes " * 500


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with files of every kind, closed. `victim` is what the tests break; the others must survive."""
    with Store(tmp_path / "store", OPTIONS) as store:
        tree.make_root(store)
        for name, data in KEPT.items():
            tree.create(store, name, data)
        tree.create(store, b"twin", KEPT[b"kept-0"])
        tree.create_spooled(store, b"spooled", b"not sealed")
        tree.create(store, VICTIM, BYTES)
        put(store, b"held by a ContentStore" * 100)
        put(store, os.urandom(1 << 20))
    return tmp_path / "store"


def edit(path: Path, *changes: tuple[bytes, bytes | None]) -> None:
    """Change records behind the store's back."""
    with Store(path, OPTIONS) as store, store.transaction() as txn:
        for key, value in changes:
            if value is None:
                txn.delete(key)
            else:
                txn.put(key, value)


def look(path: Path, key: bytes) -> bytes:
    with Store(path, OPTIONS) as store:
        raw = store.catalog.get(key)
        assert raw is not None
        return raw


def victim(path: Path) -> tuple[int, bytes]:
    """Its inode number and its object's digest."""
    ino, _ = unpack_name(look(path, name_key(ROOT_INO, VICTIM)))
    with Store(path, OPTIONS) as store:
        return ino, tree.read_inode(store, ino).digest


def place(path: Path, digest: bytes) -> ObjectRecord:
    return ObjectRecord.unpack(look(path, object_key(digest)))


def what(report: Report) -> set[str]:
    return {finding.check for finding in report.findings}


def repaired(path: Path, *expected: str, victim_survives: bool = False) -> Report:
    """Check, repair, check again: found, mended, gone; and everything whole is still there."""
    found = run(path)
    assert set(expected) <= what(found), found
    assert found.exit_code == 2
    mended = run(path, repair=True)
    assert mended.exit_code == 1, [finding for finding in mended.findings if not finding.repaired]
    assert run(path).exit_code == 0
    with Store(path, OPTIONS) as store:
        for name, data in KEPT.items():
            assert tree.read(store, name) == data
        assert tree.read(store, b"twin") == KEPT[b"kept-0"]
        assert tree.read(store, VICTIM) == (BYTES if victim_survives else None)
        tree.create(store, b"made again", BYTES)
        assert tree.read(store, b"made again") == BYTES
    assert run(path).exit_code == 0
    return found


def test_a_whole_store_is_clean(path: Path) -> None:
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
    run(path)  # opening counts afresh by itself
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
def test_a_volume_that_counts_wrong(path: Path, live: int) -> None:
    _, digest = victim(path)
    number = place(path, digest).volume
    volume = VolumeRecord.unpack(look(path, volume_key(number)))
    edit(path, (volume_key(number), VolumeRecord(volume.size, live, volume.flags).pack()))
    repaired(path, "accounting", victim_survives=True)


@pytest.mark.parametrize("key", [META_INO, META_SPOOL, META_VOLUME])
def test_a_counter_that_would_give_out_a_used_number(path: Path, key: bytes) -> None:
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


def test_an_inode_that_waits_for_its_last_user_is_no_orphan(path: Path) -> None:
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


def test_every_check_has_been_seen_to_fail() -> None:
    """One inconsistency at least for each check stands above; whoever adds a check adds its test to this list."""
    assert [check.__name__ for check in CHECKS] == [
        "check_records",
        "check_accounting",
        "check_references",
        "check_content",
        "check_damaged_objects",
        "check_missing_objects",
        "check_names",
        "check_inodes",
        "check_spool",
        "check_links",
        "check_files",
    ]


# --- what cannot be opened --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"", b"{}", b'{"kcachefs": "store", "form', b"\0" * 80])
def test_a_damaged_header(path: Path, text: bytes) -> None:
    (path / HEADER).write_bytes(text)
    repaired(path, "header", victim_survives=True)
    with Store(path) as store:
        assert store.lost_power  # nobody knows: the careful answer


def test_a_header_in_a_directory_that_is_no_store(tmp_path: Path) -> None:
    (tmp_path / HEADER).write_text("nonsense")
    with pytest.raises(NotAStore):
        run(tmp_path, repair=True)
    with pytest.raises(NotAStore):
        run(tmp_path / "absent")
    assert os.listdir(tmp_path) == [HEADER]


def leaf_pages(data: bytes) -> Iterator[int]:
    """Offsets of LMDB's leaf pages."""
    for offset in range(8192, len(data), 4096):
        if int.from_bytes(data[offset + 10 : offset + 12], "little") == 2:
            yield offset


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def zero_a_leaf(data: bytes) -> bytes:
    page = max(leaf_pages(data))
    return data[:page] + bytes(4096) + data[page + 4096 :]


def garble_a_leaf(data: bytes) -> bytes:
    page = max(leaf_pages(data))
    return data[: page + 16] + b"\xff" * 200 + data[page + 216 :]


def with_a_damaged_tree(path: Path, how: Callable[[bytes], bytes]) -> dict[bytes, bytes]:
    """A store whose catalog was damaged so; returns the contents of its files."""
    contents = {b"file-%d" % number: b"kernel %d " % number * 50 for number in range(400)}
    with Store(path, OPTIONS) as store:
        tree.make_root(store)
        for name, data in contents.items():
            tree.create(store, name, data)
    catalog = path / "catalog" / "data.mdb"
    catalog.write_bytes(how(catalog.read_bytes()))
    return contents


@pytest.mark.parametrize("how", [cut, zero_a_leaf, garble_a_leaf])
def test_a_catalog_with_a_damaged_tree_is_made_again_of_what_can_be_read(
    tmp_path: Path, how: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    contents = with_a_damaged_tree(path, how)
    found = run(path)
    assert what(found) == {"structure"}
    assert found.exit_code == 2
    assert run(path, repair=True).exit_code == 1
    assert run(path).exit_code == 0
    assert (path / "quarantine" / "catalog-1" / "data.mdb").exists()
    with Store(path, OPTIONS) as store:
        for name in tree.listing(store):
            assert tree.read(store, name) == contents[name]
        if how is not cut:
            assert len(tree.listing(store)) > 50


@pytest.mark.parametrize("ruin", [b"", b"\0" * 100_000, None], ids=["empty", "zeros", "gone"])
def test_a_catalog_that_is_wholly_lost_is_made_again_from_the_volumes(
    tmp_path: Path, ruin: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    with ContentStore(path) as store:
        contents = {store.put(data): data for data in [os.urandom(size) for size in (100, 5000, 300_000, 900_000)]}
    if ruin is None:
        (path / "catalog" / "data.mdb").unlink()
    else:
        (path / "catalog" / "data.mdb").write_bytes(ruin)
    report = run(path, repair=True)
    assert report.exit_code == 1
    assert "4 objects were found in the volumes" in report.findings[0].remedy
    assert run(path).exit_code == 0
    with ContentStore(path) as store:
        assert {digest: store.get(digest) for digest in store.digests()} == contents


@pytest.mark.parametrize("moment", ["full disk", "killed", "killed later"])
def test_a_repair_that_does_not_come_to_its_end_costs_nothing(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    contents = with_a_damaged_tree(path, garble_a_leaf)
    with monkeypatch.context() as interrupted:
        if moment == "full disk":
            interrupted.setattr("kcachefs.store.salvage.make_lmdb", _make_and_fail)
        else:
            renames = [os.rename] * (1 if moment == "killed" else 2)
            interrupted.setattr("kcachefs.store.salvage.os.rename", lambda *names: renames.pop()(*names))
        with pytest.raises((NoSpace, IndexError)):
            run(path, repair=True)
    # Whoever opens it meanwhile may crash, on a damaged tree, but must not take it for an empty one.
    open_it = "import sys; from pathlib import Path; from kcachefs.store import Store; Store(Path(sys.argv[1])).close()"
    subprocess.run([sys.executable, "-c", open_it, str(path)], capture_output=True, check=False)
    assert run(path, repair=True).exit_code == 1
    assert run(path).exit_code == 0
    with Store(path, OPTIONS) as store:
        assert len(tree.listing(store)) > 50
        assert all(tree.read(store, name) == contents[name] for name in tree.listing(store))


def _make_and_fail(directory: Path, records: object) -> None:
    make_lmdb(directory)
    raise NoSpace("the disk is full")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_says_what_a_person_can_act_on(path: Path) -> None:
    runner = CliRunner()
    clean = runner.invoke(app, ["fsck", "--store", str(path)])
    assert (clean.exit_code, clean.stdout) == (0, f"{path}: clean (23 objects, 24 inodes)\n")
    edit(path, (name_key(ROOT_INO, b"ghost"), pack_name(999, stat.S_IFREG)))
    damaged = runner.invoke(app, ["fsck", "--store", str(path)])
    assert damaged.exit_code == 2
    assert "dangling name: b'ghost' in directory 1: inode 999 does not exist (repair: dropped)" in damaged.stdout
    assert damaged.stdout.endswith("run: kcachefs fsck --repair\n")
    mended = runner.invoke(app, ["fsck", "--repair", "--store", str(path)])
    assert mended.exit_code == 1
    assert "(dropped)" in mended.stdout
    assert runner.invoke(app, ["fsck", "--store", str(path)]).exit_code == 0


def test_the_command_speaks_json_and_finds_the_store_by_itself(path: Path) -> None:
    edit(path, (name_key(ROOT_INO, b"ghost"), pack_name(999, stat.S_IFREG)))
    result = CliRunner().invoke(app, ["fsck", "--json"], env={"KCACHEFS_STORE": str(path)})
    report = json.loads(result.stdout)
    assert (result.exit_code, report["exit_code"]) == (2, 2)
    assert report["store"] == str(path)
    finding = report["findings"][0]
    assert (finding["check"], finding["repaired"]) == ("dangling name", False)


def test_progress_is_told(path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    run(path, progress=lambda *step: told.append(step))
    assert told[-1] == ("objects", 23, 23)
