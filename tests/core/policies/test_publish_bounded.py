"""Under --policy publish no request looks through a whole folder, however much is in it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcachefs.core import Filesystem, FsOptions
from kcachefs.core.caller import Caller
from kcachefs.core.policies import publish as policy
from kcachefs.core.sharing import Sharing
from kcachefs.errors import FsError
from kcachefs.store import Options, Store
from tests.core.trees import find, folder, user

ALICE, BOB = user(42042), user(42052)


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[Filesystem]:
    with Store(tmp_path / "store", Options(background=False)) as store:
        yield Filesystem(store, FsOptions(sharing=Sharing(policy="publish")))


def create(fs: Filesystem, caller: Caller, path: str, data: bytes = b"") -> int:
    above, _, name = path.rpartition("/")
    ino, _ = fs.create(caller, folder(fs, above, caller), os.fsencode(name), 0o644)
    if data:
        fs.write(ino, 0, data)
    fs.forget(ino, 1)
    return ino


def move(fs: Filesystem, caller: Caller, old: str, new: str) -> None:
    above, _, name = old.rpartition("/")
    new_above, _, new_name = new.rpartition("/")
    fs.rename(caller, find(fs, above), os.fsencode(name), find(fs, new_above), os.fsencode(new_name))


@pytest.mark.parametrize("pattern", ["triton/KEY/f{}", "cute_dsl/stem.{}"])
def test_adding_to_one_s_own_entry_looks_at_one_file_of_it(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    for number in range(5):
        create(fs, ALICE, pattern.format(number))
    with monkeypatch.context() as patch:
        patch.setattr(fs.store.catalog, "scan", lambda *_, **__: pytest.fail("it looks through the folder"))
        for number in range(5, 50):
            create(fs, ALICE, pattern.format(number))


def test_an_entry_whose_first_file_went_still_belongs_to_whose_files_are_in_it(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "OPEN_SECONDS", 0.0)
    for number in range(5):
        create(fs, ALICE, f"triton/KEY/f{number}")
    fs.unlink(ALICE, find(fs, "triton/KEY"), b"f0")
    create(fs, ALICE, "triton/KEY/more")
    with pytest.raises(FsError) as refused:
        create(fs, BOB, "triton/KEY/other")
    assert refused.value.errno == errno.EPERM


def test_a_new_folder_that_holds_much_gets_its_final_name_and_is_published(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "LOOKED_AT", 20)
    for number in range(50):
        create(fs, ALICE, f"triton/tmp.1/f{number}")
    move(fs, ALICE, "triton/tmp.1", "triton/KEY")
    create(fs, BOB, "triton/KEY/tmp.2", b"other bytes")
    with pytest.raises(FsError) as refused:
        move(fs, BOB, "triton/KEY/tmp.2", "triton/KEY/f7")
    assert refused.value.errno == errno.EPERM


def test_a_folder_in_which_others_may_have_put_something_is_not_moved_if_it_holds_much(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "LOOKED_AT", 20)
    for number in range(50):
        create(fs, ALICE, f"triton/KEY/f{number}")
    with pytest.raises(FsError) as refused:
        move(fs, ALICE, "triton/KEY", "triton/OTHER")
    assert refused.value.errno == errno.EXDEV
