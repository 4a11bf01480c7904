"""A process that kcachefs starts never imports what lies in the current directory."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import site
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.scene import PACKAGE, Scene, scene
from tests.copies import copy_package
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
            [state] = until(scene.status, "the mount answers, and is listed a moment later")
            assert os.readlink(f"/proc/{state['worker_pid']}/cwd") == "/"
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0


@pytest.mark.mount
@pytest.mark.parametrize(("path", "options"), [(None, ()), (":../other:.", ("-P",))], ids=["folder", "relative"])
def test_a_daemon_is_the_kcachefs_that_was_called_in_its_folder(
    scene: Scene, path: str | None, options: tuple[str, ...]
) -> None:
    """Also through a relative PYTHONPATH, and if another one is installed; the command itself gets nothing of that."""
    here = scene.folder / "here"
    version_of(here / "kcachefs", "7.6.5")
    scene.environment.pop("PYTHONPATH")
    if path is not None:
        scene.environment["PYTHONPATH"] = path
    there: dict[str, Any] = {
        "command": (sys.executable, *options, "-m", "kcachefs"),
        "cwd": here,
        "env": scene.environment,
    }
    script = "import os, sys; print(os.environ.get('PYTHONPATH'))"
    ran = scene.must("run", "-q", "--", sys.executable, "-c", script, **there)
    assert ran == f"{path}\n"
    scene.must("mount", scene.mountpoint, "--store", scene.folder / "another", **there)
    state = json.loads(scene.must("reload", scene.mountpoint, "--json", **there))
    assert state["version"] == "7.6.5"


def version_of(package: Path, version: str) -> None:
    """Put a copy of kcachefs there that says it is that version. Its bytecode comes along, and is good but for one."""
    copy_package(package)
    text = (package / "__init__.py").read_text()
    (package / "__init__.py").write_text(re.sub('__version__ = ".*"', f'__version__ = "{version}"', text))


@pytest.fixture(name="installed", scope="module")
def an_installation(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that finds kcachefs and what it needs by itself: through a .pth file, as in a checkout's .venv."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, symlinks=True)
    [packages] = home.glob("lib/python*/site-packages")
    (packages / "kcachefs.pth").write_text("\n".join([str(PACKAGE.parent), *site.getsitepackages()]))
    return str(home / "bin" / "python")


@pytest.mark.mount
@pytest.mark.parametrize("flags", [("-I",), ("-P", "-E")], ids=["I", "PE"])
def test_a_daemon_is_as_isolated_as_its_command(scene: Scene, installed: str, flags: tuple[str, ...]) -> None:
    mark = scene.folder / "mark"
    scene.in_every_python(f"open({str(mark)!r}, 'a').write('x')")
    scene.must("mount", scene.mountpoint, command=(installed, *flags, "-m", "kcachefs"))
    [state] = json.loads(scene.must("status", "--json", command=(installed, *flags, "-m", "kcachefs")))["mounts"]
    for pid in (state["supervisor_pid"], state["worker_pid"]):
        assert Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1 : len(flags) + 1] == [*map(os.fsencode, flags)]
    assert not mark.exists()


def test_where_packages_are_installed_does_not_come_before_python_itself(scene: Scene, installed: str) -> None:
    del scene.environment["PYTHONPATH"]
    ask = "from kcachefs import own_python as o; print(o.environment().get('PYTHONPATH')); print(o.__file__)"
    shown = scene.must("-c", ask, command=(installed, "-P"))
    assert shown == f"None\n{PACKAGE / 'own_python.py'}\n"


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
