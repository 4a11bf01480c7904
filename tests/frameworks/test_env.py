"""`kcachefs env`: which mount it uses, and torch's header, which no variable can move.

test_inductor.py sees that torch keeps it there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from kcachefs.frameworks import headers
from tests.engines.mounting import Mount
from tests.frameworks.commands import kcachefs
from tests.waiting import until

pytestmark = pytest.mark.mount


def test_only_some_frameworks(mount: Mount) -> None:
    told = json.loads(kcachefs("env", "--mount", mount.mountpoint, "--only", "triton,jax", "--format", "json").stdout)
    assert set(told) == {"KCACHEFS_MOUNT", "TRITON_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR"}


def test_the_only_mount_is_found_by_itself(mount: Mount) -> None:
    told = json.loads(kcachefs("env", "--format", "json").stdout)
    assert told["KCACHEFS_MOUNT"] == str(mount.mountpoint)


def test_no_mount_is_an_error_that_says_what_to_do(base: Path) -> None:
    done = kcachefs("env", check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert "kcachefs mount" in done.stderr
    done = kcachefs("env", "--mount", base, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert str(base) in done.stderr
    assert not list(base.iterdir())


def test_two_mounts_must_be_chosen_from(mount: Mount, base: Path) -> None:
    with Mount(base / "other", base / "other store", "direct"):
        done = kcachefs("env", check=False)
        assert done.returncode == 4
        assert "--mount" in done.stderr
        told = json.loads(kcachefs("env", "--format", "json", env={"KCACHEFS_MOUNT": str(base / "other")}).stdout)
        assert told["KCACHEFS_MOUNT"] == str(base / "other")


def test_torchs_header_is_led_into_the_mount_and_back(mount: Mount) -> None:
    place = headers.header_folder()
    kcachefs("env", "--mount", mount.mountpoint)
    assert place.resolve() == mount.mountpoint / "precompiled_headers"
    mount.umount()
    assert not place.is_symlink(), "a link that leads nowhere makes torch fail"
    mount.start()


def test_torch_finds_no_link_into_a_mount_whose_daemon_was_killed(mount: Mount) -> None:
    place = headers.header_folder()
    kcachefs("env", "--mount", mount.mountpoint)
    assert place.is_symlink()
    mount.sigkill()
    until(lambda: not place.is_symlink(), "the link is removed")
    (place / "locks").mkdir(parents=True)  # what torch does, and what fails on a link into a dead mount
    shutil.rmtree(place.parent)
    mount.start()


@pytest.mark.parametrize("shell", ["sh", "bash", "fish"])
def test_a_file_made_by_env_sets_nothing_while_the_daemon_is_dead(mount: Mount, base: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    text = kcachefs("env", "--mount", mount.mountpoint, "--format", "fish" if shell == "fish" else "sh").stdout
    (base / "kcachefs.sh").write_text(text)
    command = [shell, "-c", f". '{base}/kcachefs.sh'; printenv TRITON_CACHE_DIR"]
    alive = subprocess.run(command, capture_output=True, text=True, check=True)
    assert alive.stdout == f"{mount.mountpoint}/triton\n"
    mount.sigkill()
    dead = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (dead.stdout, dead.stderr) == ("", "")
    mount.start()


def test_a_folder_with_headers_in_it_is_left_alone(mount: Mount) -> None:
    place = headers.header_folder()
    place.mkdir(parents=True)
    (place / "c1.h.gch").write_bytes(b"header")
    try:
        assert not headers.link(mount.mountpoint)
        kcachefs("env", "--mount", mount.mountpoint)
        assert (place / "c1.h.gch").read_bytes() == b"header"
        (place / "c1.h.gch").unlink()
        (place / "locks").mkdir()
        assert headers.link(mount.mountpoint)
        assert place.is_symlink()
    finally:
        headers.unlink(mount.mountpoint)
        shutil.rmtree(place.parent)
