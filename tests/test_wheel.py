"""The wheel holds all that an installation needs: commands, the helper of mount(8), completions, manual pages."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cli.scene import Scene, scene

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_what_the_wheel_adds_beside_the_package_is_there() -> None:
    shared = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert {target.partition("/")[0] for target in shared.values()} == {"share"}
    assert [source for source in shared if not (ROOT / source).exists()] == []
    assert set(PROJECT["project"]["scripts"]) == {"kcachefs", "mount.kcachefs"}


def test_every_command_of_the_wheel_can_be_imported() -> None:
    for place in PROJECT["project"]["scripts"].values():
        module, _, name = place.partition(":")
        script = f"import {module} as module; assert callable(module.{name})"
        subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.mark.mount
def test_the_helper_is_linked_to_where_mount_looks_for_it_and_taken_away() -> None:
    with scene() as place:
        helper = installed(place)
        sbin = place.folder / "sbin"
        sbin.mkdir()
        command = (str(helper.parent / "kcachefs"),)
        said = place.run("install-helper", "--folder", sbin, command=command)
        assert (said.code, said.out) == (0, f"{sbin}/mount.kcachefs leads to {helper}\n"), said
        assert (sbin / "mount.kcachefs").resolve() == helper
        place.run("install-helper", "--folder", sbin, command=command)  # again, after an upgrade
        done = place.run("-f", place.store, place.mountpoint, command=(str(sbin / "mount.kcachefs"),))
        assert (done.code, done.err) == (0, "")
        assert place.run("install-helper", "--folder", sbin, "--remove", command=command).code == 0
        assert list(sbin.iterdir()) == []
        (sbin / "mount.kcachefs").write_text("another's")
        place.run("install-helper", "--folder", sbin, command=command).refused_with(4, "is there already")
        place.run("install-helper", "--folder", sbin / "none", command=command).refused_with(4, "is not a directory")
        (sbin / "mount.kcachefs").unlink()
        (sbin / "mount.kcachefs").symlink_to("/bin/true")
        for options in ((), ("--remove",)):
            outcome = place.run("install-helper", "--folder", sbin, *options, command=command)
            outcome.refused_with(4, "leads to /bin/true", "not ours")


def installed(place: Scene) -> Path:
    """Both commands in a folder, as pip installs them; the helper."""
    binaries = place.folder / "bin"
    binaries.mkdir()
    for name, target in PROJECT["project"]["scripts"].items():
        module, _, function = target.partition(":")
        script = binaries / name
        script.write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n")
        script.chmod(0o755)
    return binaries / "mount.kcachefs"
