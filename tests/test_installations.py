"""A kcachefs that is removed while it is in use, and one that meets a daemon of another version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcachefs import __version__
from kcachefs.live.web import assets
from tests.cli.scene import PACKAGE, Scene, scene
from tests.copies import copy_package
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.mount

INSTALLED = (sys.executable, "-P", "-m", "kcachefs")


@pytest.fixture(name="place", scope="module")
def a_place() -> Iterator[Scene]:
    with scene() as place:
        yield place


@pytest.fixture(name="copy")
def a_copy(place: Scene) -> Iterator[Path]:
    """Where another kcachefs is installed, which a test may do anything to. Commands of the scene are that one."""
    with pytest.MonkeyPatch.context() as patch:
        copy = place.folder / "installed"
        copy_package(copy / "kcachefs")
        patch.setitem(place.environment, "PYTHONPATH", str(copy))
        yield copy
        place.take_away()

        def is_removed() -> bool:
            shutil.rmtree(copy, ignore_errors=True)
            return not copy.exists()

        # Once a daemon was killed, a Python of this copy begins, which removes torch's links; it writes bytecode.
        until(is_removed, "nobody writes to the copy any more")


@pytest.mark.parametrize(
    ("options", "ends", "code", "said"),
    [
        (["--report", "report.html", "--json"], 7, 7, ["no report was written", '"misses": 1', '"exit_code": 7']),
        (["--assert-warm"], 0, 1, ["not warm: 1 entry had to be compiled"]),
    ],
    ids=["report", "warm"],
)
def test_a_run_ends_like_its_command_though_kcachefs_was_removed_meanwhile(
    place: Scene, copy: Path, options: list[str], ends: int, code: int, said: list[str]
) -> None:
    script = f'mkdir "$TRITON_CACHE_DIR/K{code}"; echo 1 > "$TRITON_CACHE_DIR/K{code}/f"; rm -r "$0"; exit {ends}'
    done = place.run("run", *options, "--", "sh", "-c", script, copy / "kcachefs", command=INSTALLED)
    assert done.code == code, done
    for words in ("why it compiled is not known: No module named 'kcachefs.insight'", *said):
        assert words in done.err
    assert "Traceback" not in done.err
    assert place.mounted() == []


def test_a_run_whose_counters_are_gone_is_not_known_to_be_warm(place: Scene) -> None:
    place.mount("--store", place.folder / "another store")
    [state] = place.status()
    killed = f"umount -l {place.mountpoint}; kill -9 {state['supervisor_pid']} {state['worker_pid']}"
    done = place.run("run", "--assert-warm", "--", "sh", "-c", killed)
    assert done.code == 1, done
    unread, unknown = done.err.splitlines()
    assert unread.startswith("kcachefs: its hits and misses are not known: ")
    assert unknown == "kcachefs: cannot tell whether it was warm: its hits and misses could not be read"


@pytest.mark.parametrize(
    ("version", "advice"), [("0.0.9", "run: kcachefs reload {}"), ("99.0", "use the newer one")], ids=["older", "newer"]
)
def test_a_mount_of_another_version_is_named_as_the_reason(place: Scene, copy: Path, version: str, advice: str) -> None:
    """What one of the two does not know yet, a verb or an argument, is no wrong usage."""
    for file, now, then in (
        ("__init__.py", f'"{__version__}"', f'"{version}"'),
        ("daemon/control.py", '"runs", ', ""),
        ("core/administration.py", "stats(self, settle: bool", "stats(self, resettle: bool"),
    ):
        text = (copy / "kcachefs" / file).read_text()
        assert now in text
        (copy / "kcachefs" / file).write_text(text.replace(now, then))
    place.must("mount", place.mountpoint, "--store", place.folder / version, command=INSTALLED)
    place.environment["PYTHONPATH"] = str(PACKAGE.parent)
    why = f"the mount runs kcachefs {version}, this is {__version__}; {advice.format(place.mountpoint)}\n"
    place.run("runs").refused_with(4, f"kcachefs: {place.mountpoint}: {why}")
    place.run("stats").refused_with(4, why)
    if version < __version__:
        copy_package(copy / "kcachefs")  # upgraded
        place.must("reload", place.mountpoint)
        place.must("runs")
        place.must("stats")


def test_a_mount_goes_with_its_program_though_kcachefs_was_removed_and_a_child_uses_it(
    place: Scene, copy: Path
) -> None:
    program = (
        "import kcachefs, shutil, subprocess, sys\n"
        "folder = kcachefs.init(mount=True) / 'triton'\n"
        "(folder / 'f').write_text('1')\n"
        "holder = subprocess.Popen(['sh', '-c', 'exec 3< \"$1\"; echo; read -r _', 'sh', folder / 'f'], stdout=-1)\n"
        "holder.stdout.readline()\n"
        "shutil.rmtree(sys.argv[1])\n"
    )
    end, stay = os.pipe()
    with open(stay, "wb"), open(end, "rb") as until_then:
        script = [sys.executable, "-P", "-c", program, str(copy / "kcachefs")]
        done = subprocess.run(script, env=place.environment, cwd=place.folder, stdin=until_then, timeout=PATIENCE)
        assert done.returncode == 0
        assert place.mounted() == []
        assert place.daemons()
    until(place.is_over)


def test_what_is_no_module_is_found_in_a_zip_too(place: Scene, copy: Path) -> None:
    place.environment["PYTHONPATH"] = shutil.make_archive(str(place.folder / "zipped"), "zip", copy)
    ask = "from kcachefs.live.web import assets; print(assets.__file__, assets.report(b'{}', 'title').decode())"
    shown = place.must("-c", ask, command=(sys.executable, "-P"))
    assert shown.startswith(place.environment["PYTHONPATH"])
    assert assets.script() in shown
    script = place.must("completion", "bash", command=INSTALLED)
    assert script == (PACKAGE / "cli" / "completions" / "kcachefs.bash").read_text()
