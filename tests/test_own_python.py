"""A process that kcachefs starts never imports what lies in the current directory."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.scene import PACKAGE, Scene, scene
from tests.store.test_salvage import with_a_damaged_tree, zero_a_leaf
from tests.waiting import PATIENCE, until

IMPORTED = ("lmdb", "msgspec", "kcachefs", "trio", "zstandard", "blake3", "random", "pip", "venv", "ensurepip")
"""Modules that somebody may leave in a folder in which an administrator calls kcachefs."""


def trap(folder: Path) -> Path:
    """A folder whose modules leave a mark when they are imported; returns where."""
    folder.mkdir()
    mark = folder.parent / "trapped"
    for name in IMPORTED:
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r})\nraise SystemExit(9)\n")
    return mark


@pytest.fixture(name="scene")
def a_scene() -> Iterator[Scene]:
    with scene() as place:
        place.environment["PYTHONPATH"] = str(PACKAGE.parent)  # no empty part, which means the current directory
        yield place


def test_a_repair_runs_nothing_from_the_current_directory(scene: Scene) -> None:
    mark = trap(scene.folder / "here")
    contents = with_a_damaged_tree(scene.store, zero_a_leaf)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kcachefs", "fsck", "--repair", "--store", "../store"],
        cwd=scene.folder / "here",
        env=scene.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 1, done
    records = re.search(r"(\d+) records could be read", done.stdout)
    assert records is not None, done
    assert int(records[1]) > len(contents)


@pytest.mark.mount
def test_a_worker_runs_nothing_from_the_current_directory(scene: Scene) -> None:
    mark = trap(scene.folder / "here")
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "kcachefs", "mount", "-f", "../mount", "--store", "../store"],
        cwd=scene.folder / "here",
        env=scene.environment,
    ) as process:
        try:
            until(lambda: process.poll() is not None or (scene.mountpoint / ".kcachefs" / "stats.json").exists())
            assert not mark.exists(), mark.read_text()
            assert process.poll() is None
            [state] = scene.status()
            assert os.readlink(f"/proc/{state['worker_pid']}/cwd") == "/"
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0


def test_only_one_place_knows_how_to_start_a_python() -> None:
    assert [path.name for path in PACKAGE.rglob("*.py") if _names_executable(path.read_text())] == ["own_python.py"]


def _names_executable(code: str) -> bool:
    """Whether it names sys.executable, other than in a text that another Python is given to run."""
    nodes = ast.walk(ast.parse(code)) if "sys.executable" in code else ()
    return any(isinstance(one, ast.Attribute) and ast.unparse(one) == "sys.executable" for one in nodes)


def test_the_set_up_runs_nothing_from_the_current_directory(tmp_path: Path) -> None:
    mark = trap(tmp_path / "here")
    done = subprocess.run(
        ["bash", "-c", f'source "{PACKAGE.parent}/scripts/setup.sh"; find_python'],
        cwd=tmp_path / "here",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 0, done
    for name in ("setup.sh", "pythons.sh"):
        for line in (PACKAGE.parent / "scripts" / name).read_text().splitlines():
            if re.search(r'(python|candidate)" +-', line):
                assert re.search(r'(python|candidate)" +-I', line), line
