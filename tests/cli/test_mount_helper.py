"""`mount.kcachefs`: fstab lines as mount(8) passes them on."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kcachefs.cli.mount_helper import parse_options
from kcachefs.errors import UsageError
from kcachefs.filelock import open_locked
from tests.cli.scene import HELPER, Scene
from tests.engines.callers import OTHER, in_child
from tests.engines.refusals import refused
from tests.waiting import until

pytestmark = pytest.mark.mount


def test_options_of_fstab_are_taken_as_mount_gives_them() -> None:
    assert parse_options(
        "rw,nofail,noauto,_netdev,user,exec,x-systemd.automount,X-mount.mkdir,comment=hi,,noatime"
    ) == {"read_only": False}
    assert parse_options("rw,ro,allow_other,no_allow_other,engine=pyfuse3,max_size=5G") == {
        "read_only": True,
        "allow_other": False,
        "engine": "pyfuse3",
        "max_size": "5G",
    }
    assert parse_options(
        "policy=read-only,writers=uid:5,writers=gid:6,uid=7,umask=022,idmap,max_size_per_uid=1G,tenant_range=5:9"
    ) == {
        "policy": "read-only",
        "writers": ["uid:5", "gid:6"],
        "uid": "7",
        "umask": "022",
        "idmap": True,
        "max_size_per_uid": "1G",
        "tenant_range": ["5:9"],
    }
    assert parse_options("nonsense", sloppy=True) == {}


@pytest.mark.parametrize(
    "option", ["nonsense", "uid=me", "noexec", "exec,noexec", "suid", "dev", "max_size", "max-size=5G", "base=perhaps"]
)
def test_an_option_that_is_not_known_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=f"^option {option.split(',')[-1]}: "):
        parse_options(option)


def test_it_mounts_as_the_options_say(scene: Scene) -> None:
    options = "ro,max_size=1GiB,no_allow_other,nofail"
    scene.must(scene.store, scene.mountpoint, "-o", options, command=HELPER)
    state = os.statvfs(scene.mountpoint)
    assert state.f_blocks * state.f_frsize == 1 << 30
    with refused(errno.EROFS):
        (scene.mountpoint / "triton" / "file").touch()
    if os.geteuid() == 0:

        def look() -> None:
            with refused(errno.EACCES):
                os.listdir(scene.mountpoint)

        in_child(look, OTHER)
    again = scene.run(scene.store, scene.mountpoint, command=HELPER)
    again.refused_with(32, str(scene.mountpoint), "mounted already")
    scene.umount()
    assert scene.is_over()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["a store and a directory", "mount.kcachefs STORE DIR"]),
        (["store", "mount", "-o", "ro,colour=blue"], ["option colour=blue", "mount.kcachefs STORE DIR"]),
        (["store", "mount", "-o", "max_size=lots"], ["'lots'", "20GiB"]),
        (["store", "mount", "-o", "engine=steam"], ["steam", "pyfuse3"]),
        (["store", "mount", "-x"], ["-x", "mount.kcachefs STORE DIR"]),
    ],
)
def test_wrong_usage_is_one_line_and_mounts_nothing(scene: Scene, arguments: list[str], words: list[str]) -> None:
    scene.run(*arguments, command=HELPER).refused_with(1, "mount.kcachefs: ", *words)
    assert not scene.mountpoint.exists()
    assert scene.is_over()


def test_a_fake_mount_checks_and_mounts_nothing(scene: Scene) -> None:
    scene.must("none", scene.mountpoint, "-f", "-n", "-v", "-o", "rw", command=HELPER)
    assert not scene.mountpoint.exists()
    assert scene.is_over()


@contextmanager
def installed_helper() -> Iterator[None]:
    """Install the helper in /sbin, the only place where mount(8) looks: for one test of this machine at a time."""
    place, script = Path("/sbin/mount.kcachefs"), Path(sys.executable).parent / "mount.kcachefs"
    turn = open_locked(place.parent, os.O_RDONLY, fcntl.LOCK_EX)
    try:
        if place.exists():
            yield
            return
        place.unlink(missing_ok=True)  # of a run that was killed, and whose checkout is gone
        place.symlink_to(script)
        try:
            yield
        finally:
            place.unlink()
    finally:
        os.close(turn)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may put a helper where mount(8) finds it")
def test_mount_8_and_umount_8_work_as_for_any_filesystem(scene: Scene) -> None:
    scene.mountpoint.mkdir()
    table = scene.folder / "fstab"
    table.write_text(f"{scene.store} {scene.mountpoint} kcachefs noauto,nofail,user,exec,max_size=2GiB 0 0\n")
    with installed_helper():
        for arguments in (
            ["-t", "kcachefs", str(scene.store), "-o", "max_size=2GiB,x-test=1"],
            ["-T", str(table)],
        ):
            subprocess.run(["mount", *arguments, scene.mountpoint], env=scene.environment, check=True)
            (scene.mountpoint / "triton" / "file").write_text("text")
            state = os.statvfs(scene.mountpoint)
            assert state.f_blocks * state.f_frsize == 2 << 30
            subprocess.run(["umount", scene.mountpoint], check=True)
            until(scene.is_over)
            scene.open_store().close()
        wrong = subprocess.run(
            ["mount", "-t", "kcachefs", scene.store, scene.mountpoint, "-o", "colour=blue"],
            env=scene.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (wrong.returncode, "option colour=blue" in wrong.stderr) == (1, True), wrong
    assert scene.is_over()
