"""`kcachefs fsck`: what it prints, as text and as JSON, and its exit code."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kcachefs.cli import make_app
from kcachefs.store.fsck import run
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.records import (
    name_key,
    pack_name,
)
from tests.store.repairs import edit, make_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


def test_it_says_what_is_wrong_and_what_to_do(path: Path) -> None:
    runner = CliRunner()
    clean = runner.invoke(make_app(), ["fsck", "--store", str(path)])
    assert (clean.exit_code, clean.stdout) == (0, f"{path}: clean (23 objects, 24 inodes)\n")
    edit(path, (name_key(ROOT_INO, b"ghost"), pack_name(999, stat.S_IFREG)))
    damaged = runner.invoke(make_app(), ["fsck", "--store", str(path)])
    assert damaged.exit_code == 2
    assert "dangling name: b'ghost' in directory 1: inode 999 does not exist (repair: dropped)" in damaged.stdout
    assert damaged.stdout.endswith("run: kcachefs fsck --repair\n")
    mended = runner.invoke(make_app(), ["fsck", "--repair", "--store", str(path)])
    assert mended.exit_code == 1
    assert "(dropped)" in mended.stdout
    assert runner.invoke(make_app(), ["fsck", "--store", str(path)]).exit_code == 0


def test_it_prints_json_and_finds_the_store_by_itself(path: Path) -> None:
    edit(path, (name_key(ROOT_INO, b"ghost"), pack_name(999, stat.S_IFREG)))
    result = CliRunner().invoke(make_app(), ["fsck", "--json"], env={"KCACHEFS_STORE": str(path)})
    report = json.loads(result.stdout)
    assert (result.exit_code, report["exit_code"]) == (2, 2)
    assert report["store"] == str(path)
    finding = report["findings"][0]
    assert (finding["check"], finding["repaired"]) == ("dangling name", False)


def test_progress_is_reported(path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    run(path, progress=lambda *step: told.append(step))
    assert told[-1] == ("objects", 23, 23)
