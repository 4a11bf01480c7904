"""A store is its owner's alone, and no symbolic link leads out of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcachefs.errors import NotAStore
from kcachefs.store import Options, Store
from kcachefs.store.places import FOLDERS


def test_a_store_is_closed_to_others_whatever_mode_its_folder_had(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.mkdir(mode=0o755)
    Store(path).close()
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o777)
    Store(path).close()
    assert path.stat().st_mode & 0o777 == 0o700
    for folder, _, files in os.walk(path):
        assert os.stat(folder).st_mode & 0o077 == 0
        for name in files:
            assert os.stat(os.path.join(folder, name)).st_mode & 0o077 == 0, name


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_of_the_store_that_is_a_link_is_refused(tmp_path: Path, folder: str) -> None:
    path = tmp_path / "store"
    Store(path).close()
    (path / folder).rename(tmp_path / "elsewhere")
    (path / folder).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotAStore, match="is a link"):
        Store(path)


@pytest.mark.parametrize("name", ["spool.arena", "lock", "kcachefs.json.new"])
def test_a_file_of_the_store_that_is_a_link_is_not_followed(tmp_path: Path, name: str) -> None:
    path, victim = tmp_path / "store", tmp_path / "victim"
    Store(path).close()
    victim.write_text("precious")
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        Store(path)
    assert victim.read_text() == "precious"


def test_a_spool_file_that_became_a_link_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    with Store(tmp_path / "store", Options(background=False)) as store:
        os.close(store.spool.open(1, create=True))
        store.spool.path(1).unlink()
        store.spool.path(1).symlink_to(victim)
        with pytest.raises(OSError, match="symbolic links"):
            store.spool.open(1)
        with pytest.raises(OSError, match="symbolic links"):
            store.spool.recycle(1)
        store.spool.path(1).unlink()
    assert victim.read_text() == "precious"
