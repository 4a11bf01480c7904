"""Parts of a store that are missing, or that something else stands in the place of: made again, or one clear line."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kcachefs.core import Filesystem
from kcachefs.errors import NotAStore, ObjectDamaged, PartMissing
from kcachefs.store import Store
from kcachefs.store.fsck import run
from kcachefs.store.places import FOLDERS
from tests.cli.scene import Scene, scene
from tests.core.trees import LARGE, exists, kernel, opened, write
from tests.store import tree
from tests.store.objects import put
from tests.store.repairs import BYTES, KEPT, OPTIONS, make_store, what

EMPTY_IN_A_CLEAN_STORE = {"journal", "incoming", "dictionaries", "listings", "quarantine", "history"}


def drop_empty_folders(path: Path) -> set[str]:
    """What a copy does that leaves them out."""
    empty = {folder for folder in FOLDERS if not os.listdir(path / folder)}
    for folder in empty:
        (path / folder).rmdir()
    return empty


def replace(part: Path) -> None:
    """Put a directory with something in it in the place of a file, and a file in the place of a folder."""
    if part.is_dir():
        shutil.rmtree(part)
        part.write_text("not a folder\n")
    else:
        part.unlink(missing_ok=True)
        part.mkdir()
        (part / "inside").write_text("not a file\n")


def leave_open(path: Path) -> None:
    """A store as a kill leaves it, with files in a slot and in the spool that were never folded or sealed."""
    with opened(path) as fs:
        kernel(fs, "SEALED", 20_000)
    with Store(path, OPTIONS) as store:
        fs = Filesystem(store)
        write(fs, "triton/SMALL/a.ptx", b"in a slot")
        write(fs, "triton/LARGE/a.ptx", LARGE)
        shutil.copytree(path, path.with_name("killed"))
    shutil.rmtree(path)
    path.with_name("killed").rename(path)


# --- missing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checks_first", [True, False])
def test_empty_folders_that_are_missing_are_made_again(tmp_path: Path, checks_first: bool) -> None:
    path = make_store(tmp_path / "store")
    assert drop_empty_folders(path) == EMPTY_IN_A_CLEAN_STORE
    if checks_first:
        assert run(path).findings == []
    with Store(path, OPTIONS) as store:
        assert tree.read(store, b"twin") == KEPT[b"kept-0"]
        assert tree.read(store, b"spooled") == b"not sealed"
        tree.create(store, b"made since", BYTES)
    assert run(path).findings == []


def test_a_store_that_holds_nothing_is_opened_without_any_of_its_empty_folders(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Store(path, OPTIONS).close()
    assert drop_empty_folders(path) == {*FOLDERS} - {"catalog"}
    with Store(path, OPTIONS) as store:
        tree.make_root(store)
        tree.create(store, b"first", BYTES)
        tree.create_spooled(store, b"spooled", b"not sealed")
    assert run(path).findings == []


@pytest.mark.mount
def test_a_mount_is_made_from_a_copy_without_empty_folders() -> None:
    with scene() as place:
        folder = place.mount()
        (folder / "KEY").mkdir()
        (folder / "KEY" / "kernel.ptx").write_bytes(BYTES)
        place.umount()
        assert "spool" in drop_empty_folders(place.store)
        assert (place.mount() / "KEY" / "kernel.ptx").read_bytes() == BYTES
        place.umount()


@pytest.mark.parametrize("folder", ["volumes", "spool"])
def test_a_folder_that_is_missing_with_what_it_held_is_no_empty_one(
    tmp_path: Path, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_store(tmp_path / "store")
    shutil.rmtree(path / folder)
    for _ in range(2):
        with pytest.raises(PartMissing, match=f"{folder}: is missing, with what it held; .* fsck --repair"):
            Store(path, OPTIONS)
        assert what(run(path)) == {"place"}
    assert not (path / folder).exists()
    assert run(path, repair=True).exit_code == 1
    assert ("is damaged" in caplog.text) == (folder == "volumes")
    assert run(path).exit_code == 0
    with Store(path, OPTIONS) as store:
        assert (tree.read(store, b"twin") is None) == (folder == "volumes")
        tree.create(store, b"made again", BYTES)
    assert run(path).exit_code == 0


@pytest.mark.parametrize("part", ["journal", "spool", "spool.arena"])
def test_what_was_not_sealed_goes_when_its_part_of_a_killed_store_is_missing(
    tmp_path: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    leave_open(path)
    shutil.rmtree(path / part) if (path / part).is_dir() else (path / part).unlink()
    with pytest.raises(PartMissing, match=f"{part}: is missing, with what it held"):
        Store(path, OPTIONS)
    assert what(run(path)) == {"place"}
    assert run(path, repair=True).exit_code == 1
    with opened(path) as fs:
        assert exists(fs, "triton/SEALED/kernel.ptx")
        assert not exists(fs, "triton/SMALL/a.ptx")
        assert not exists(fs, "triton/LARGE/a.ptx")
    assert ("2 files had not reached the disk" in caplog.text) == (part != "journal")


# --- something else in its place --------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [*FOLDERS, "kcachefs.json", "spool.arena", "volumes/00000001.vol", "catalog/lock.mdb"])
def test_what_stands_in_the_place_of_a_part_is_named_and_a_repair_moves_it_away(
    tmp_path: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_store(tmp_path / "store")
    replace(path / part)
    is_folder = part in FOLDERS
    words = "is a file and should be a directory" if is_folder else "is a directory and should be a file"
    if part != "listings":  # a store goes on without any
        with pytest.raises(NotAStore, match=f"{part}: {words}; run: kcachefs fsck --repair$"):
            Store(path, OPTIONS)
    [finding] = run(path).findings
    assert words in finding.problem
    assert part in f"{finding.thing}"
    assert run(path, repair=True).exit_code == 1
    aside = path / "quarantine" / f"stray-{Path(part).name}"
    assert (aside if is_folder else aside / "inside").read_text() == f"not a {'folder' if is_folder else 'file'}\n"
    assert ("is damaged" in caplog.text) == part.startswith("volumes")
    with Store(path, OPTIONS) as store:
        if part != "catalog" and "is damaged" not in caplog.text:
            assert tree.read(store, b"twin") == KEPT[b"kept-0"]
        tree.make_root(store)
        tree.create(store, b"made again", BYTES)
        assert tree.read(store, b"made again") == BYTES
    assert run(path).exit_code == 0


def test_a_second_stray_of_a_name_does_not_replace_the_first(tmp_path: Path) -> None:
    path = make_store(tmp_path / "store")
    for _ in range(3):
        replace(path / "incoming")
        assert run(path, repair=True).exit_code == 1
    assert sorted(os.listdir(path / "quarantine")) == ["stray-incoming", "stray-incoming-1", "stray-incoming-2"]


def test_a_lock_that_is_a_directory_has_to_be_moved_away_by_hand(tmp_path: Path) -> None:
    path = make_store(tmp_path / "store")
    replace(path / "lock")
    with pytest.raises(NotAStore, match="lock: is a directory and should be a file; move it away"):
        Store(path, OPTIONS)
    with pytest.raises(NotAStore, match="lock: is a directory and should be a file; move it away"):
        run(path, repair=True)
    (path / "lock").rename(tmp_path / "away")
    assert run(path).exit_code == 0


def test_a_volume_that_became_a_directory_is_a_missing_one_for_who_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not the one that is written to, which is opened with the store."""
    path, data = tmp_path / "store", os.urandom(1 << 20)
    with Store(path, OPTIONS) as store:
        digest = put(store, data)
        [number] = store.volumes.numbers()
    replace(path / "volumes" / f"{number:08x}.vol")
    with Store(path, OPTIONS) as store:
        assert store.volumes.numbers() == []
        with pytest.raises(ObjectDamaged):
            store.objects.read(digest, 0, len(data))
        assert "is damaged" in caplog.text
    report = run(path, repair=True)
    assert report.exit_code == 1
    assert {"place", "damaged object"} == what(report)
    assert run(path).exit_code == 0


@pytest.mark.mount
@pytest.mark.parametrize("part", ["catalog", "kcachefs.json", "lock", "spool.arena"])
def test_commands_say_in_one_line_what_is_in_the_place_of_a_part(part: str) -> None:
    with scene() as place:
        make_store(place.store)
        replace(place.store / part)
        for command in (("mount", place.mountpoint), ("ls",)):
            place.run(*command).refused_with(
                3, f"{place.store / part}: is a ", "move it away" if part == "lock" else "fsck --repair"
            )
        follow_the_advice(place, part)
        place.mount()
        place.umount()


def follow_the_advice(place: Scene, part: str) -> None:
    if part == "lock":
        (place.store / "lock").rename(place.folder / "away")
    else:
        assert place.run("fsck", "--repair").code == 1


def test_a_store_that_could_not_be_opened_was_not_in_use(tmp_path: Path) -> None:
    """Or files that are not sealed would be dropped after the next reboot, as after a power cut."""
    path = make_store(tmp_path / "store")
    (path / "volumes").rename(tmp_path / "away")
    before = (path / "kcachefs.json").read_bytes()
    with pytest.raises(PartMissing):
        Store(path, OPTIONS)
    assert (path / "kcachefs.json").read_bytes() == before
    (tmp_path / "away").rename(path / "volumes")
    with Store(path, OPTIONS) as store:
        assert tree.read(store, b"spooled") == b"not sealed"
