"""Commands in a locale that is not UTF-8: names are the same as elsewhere, and a program that is run keeps its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kcachefs
from tests.cli.scene import HELPER, Scene, scene

pytestmark = pytest.mark.mount

LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
COMMAND = (sys.executable, "-P", "-m", "kcachefs")
NAME = "größe \udcff"
"""What a program may call an entry: also bytes that are no UTF-8."""


@pytest.fixture(name="place", scope="module")
def a_place() -> Iterator[Scene]:
    """With two mounts, both made in that locale; the path of one is not ASCII."""
    with scene() as place:
        place.environment |= LOCALE
        place.must("mount", place.folder / "ü", "--store", place.folder / "ö", command=COMMAND)
        place.must(place.store, place.mountpoint, command=HELPER)
        yield place


def test_both_mounts_are_the_same_in_every_locale(place: Scene) -> None:
    here = {one["mountpoint"]: one["store"] for one in place.status()}
    there = json.loads(place.must("status", "--json", command=COMMAND))["mounts"]
    assert here == {one["mountpoint"]: one["store"] for one in there}
    assert here == {str(place.folder / "ü"): str(place.folder / "ö"), str(place.mountpoint): str(place.store)}


def test_a_mount_elsewhere_is_no_reason_to_fail(place: Scene) -> None:
    assert json.loads(place.must("stats", "--json", "--mount", place.mountpoint, command=COMMAND))
    looked = place.run("doctor", command=COMMAND)
    assert f"{place.folder}/ü answers" in looked.out
    assert f"{place.folder}/ü does not answer" not in looked.out
    assert "Traceback" not in looked.err
    assert f"{place.folder}/ü" in place.must("--complete", "umount", f"{place.folder}/", command=COMMAND)


@pytest.mark.parametrize("options", [(), ("-",)])
def test_a_program_that_is_read_from_standard_input_runs(place: Scene, options: tuple[str, ...]) -> None:
    program = "import sys; sys.argv = ['kcachefs', '--version']; from kcachefs.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", *options], input=program, env=place.environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"kcachefs {kcachefs.__version__}\n", "")


def test_names_of_entries_are_told_and_understood(place: Scene) -> None:
    entry = place.folder / "ü" / "triton" / NAME
    entry.mkdir()
    (entry / "f").write_bytes(b"kernel")
    where = ("--mount", place.folder / "ü")
    assert "gr\u00f6\u00dfe" in place.must("ls", *where, command=COMMAND)
    place.must("evict", f"triton/{NAME}".replace("\udcff", "*"), *where, command=COMMAND)
    assert not entry.exists()


def test_a_program_that_is_run_has_the_locale_and_the_words_it_was_given(place: Scene) -> None:
    ask = "import os, sys; print(ascii([sys.getfilesystemencoding(), sys.argv[1:], os.environ['PYTHONUTF8']]))"
    wanted = ["ascii", [os.fsencode(NAME).decode("ascii", "surrogateescape")], "0"]
    ran = place.must("run", "-q", "--mount", place.folder / "ü", "--", sys.executable, "-c", ask, NAME, command=COMMAND)
    assert ran == f"{wanted!a}\n"


def test_the_library_lives_with_mounts_whose_names_it_cannot_read(place: Scene) -> None:
    """It cannot begin anew: it is part of somebody's program."""
    script = (
        "import os, sys, kcachefs\n"
        "from kcachefs.engines import mounting\n"
        "for one in mounting.mounts():\n"
        "    if one.mountpoint.startswith(sys.argv[1]): os.statvfs(one.mountpoint)\n"
        "print(kcachefs.init(sys.argv[2]))\n"
        "kcachefs.init(os.path.join(sys.argv[1], sys.argv[3]), mount=True)\n"
    )
    ended = place.run("-c", script, place.folder, place.mountpoint, "né", command=(sys.executable, "-P"))
    assert ended.out == f"{place.mountpoint}\n", ended
    assert ended.err.splitlines()[-1].endswith("Python's filesystem encoding is not UTF-8; set PYTHONUTF8=1")
    assert not Path(place.folder / "né").exists()
