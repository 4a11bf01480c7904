"""Mounting as an ordinary user, through fusermount3.

Each test runs in its own mount namespace, in which /dev/fuse is open to everyone. The commands run as that user, from
a place in it where the user can read the package: a developer's checkout and Python are often in a home that is closed
to others.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcachefs.engines import mounting
from tests.cli.scene import PACKAGE, Outcome, Scene, holding, kill_and_wait
from tests.cli.visiting import Visits
from tests.engines.callers import Identity, in_child

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]

NOBODY = Identity(65534, 65534)
CLONE_NEWNS = 0x20000


class Visitor:
    """Runs the commands as NOBODY, with an almost empty environment."""

    def __init__(self, scene: Scene, visits: Visits, python: str, readable: Path) -> None:
        self._visits = visits
        self.scene = scene
        self.home = scene.folder / "home"
        self.home.mkdir()
        os.chown(self.home, NOBODY.uid, NOBODY.gid)
        self.packages, self.code = readable / "packages", readable / "code" / "kcachefs"
        self.packages.mkdir()
        self.code.mkdir(parents=True)
        self.python = python
        self.mountpoint = self.home / "mount"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "PYTHONPATH": f"{self.code.parent}:{self.packages}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "KCACHEFS_RUNTIME_DIR": str(scene.runtime),
        }
        scene.runtime.mkdir(mode=0o700)
        os.chown(scene.runtime, NOBODY.uid, NOBODY.gid)

    def run(self, *arguments: str | Path, who: Identity = NOBODY, folder: Path | None = None) -> Outcome:
        return self._visits.run(who, self.python, arguments, folder or self.home, self.environment)

    def run_afresh(self, *arguments: str | Path) -> Outcome:
        """The same in a new Python."""
        return self.scene.run(
            *arguments,
            command=(self.python, "-m", "kcachefs"),
            cwd=self.home,
            env=self.environment,
            user=NOBODY.uid,
            group=NOBODY.gid,
            extra_groups=[],
        )

    def must(self, *arguments: str | Path) -> str:
        return self._must(self.run(*arguments))

    def must_afresh(self, *arguments: str | Path) -> str:
        return self._must(self.run_afresh(*arguments))

    def _must(self, outcome: Outcome) -> str:
        assert (outcome.code, outcome.err) == (0, ""), outcome
        return outcome.out


def in_own_namespace(test: Callable[[Visitor], None]) -> Callable[[Visitor], None]:
    """Run the test in its own process and mount namespace, in which /dev/fuse is open to everyone."""

    @among_own_mounts
    def run(visitor: Visitor) -> None:
        device = visitor.scene.folder / "fuse"
        os.mknod(device, stat.S_IFCHR, os.stat("/dev/fuse").st_rdev)
        device.chmod(0o666)
        subprocess.run(["mount", "--bind", device, "/dev/fuse"], check=True)
        test(visitor)

    return functools.wraps(test)(run)


def among_own_mounts(test: Callable[[Visitor], None]) -> Callable[[Visitor], None]:
    """The same with /dev/fuse unchanged. Everyone can read kcachefs and the packages of this Python."""

    @functools.wraps(test)
    def run(visitor: Visitor) -> None:
        def inside() -> None:
            assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            subprocess.run(["mount", "--bind", sysconfig.get_path("purelib"), visitor.packages], check=True)
            subprocess.run(["mount", "--bind", PACKAGE, visitor.code], check=True)
            test(visitor)

        in_child(inside)

    return run


@pytest.fixture
def visitor(scene: Scene, visits: Visits) -> Iterator[Visitor]:
    with tempfile.TemporaryDirectory(prefix="kcachefs-test-") as readable:
        os.chmod(readable, 0o755)
        yield Visitor(scene, visits, _python_for_all(), Path(readable))


def _python_for_all() -> str:
    """This Python, or one of the same version that NOBODY may run."""

    def find() -> str | None:
        names = (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
        return next((name for name in names if os.access(os.path.realpath(name), os.X_OK)), None)

    found = in_child(find, NOBODY)
    if found is None:
        pytest.skip("no other user can run this Python")
    return found


@in_own_namespace
def test_a_user_mounts_writes_and_unmounts(visitor: Visitor) -> None:
    visitor.must("mount", visitor.mountpoint, "--no-allow-other")

    def work() -> None:
        file = visitor.mountpoint / "triton" / "file"
        file.write_text("text")
        assert file.stat().st_uid == NOBODY.uid

    in_child(work, NOBODY)
    assert str(visitor.mountpoint) in visitor.must("status")
    assert visitor.home / ".cache" / "kcachefs" in list((visitor.home / ".cache").iterdir())
    again = visitor.run("mount", visitor.mountpoint, "--no-allow-other")
    again.refused_with(4, str(visitor.mountpoint), "mounted already")

    with holding("sh", "-c", f"cd {visitor.mountpoint} && echo holding && read -r _", user=NOBODY.uid) as process:
        busy = visitor.run("umount", visitor.mountpoint)
        busy.refused_with(4, f"({process.pid}): {visitor.mountpoint};", "--lazy")
    visitor.must("umount", visitor.mountpoint)
    assert visitor.scene.is_over()


@in_own_namespace
def test_a_user_who_shares_a_mount_without_permission_is_told_what_to_do(visitor: Visitor) -> None:
    if any(line.strip() == "user_allow_other" for line in Path("/etc/fuse.conf").read_text().splitlines()):
        pytest.skip("/etc/fuse.conf allows it here")
    outcome = visitor.run("mount", visitor.mountpoint, "--allow-other")
    outcome.refused_with(4, str(visitor.mountpoint), "user_allow_other", "/etc/fuse.conf", "--no-allow-other")
    assert not visitor.mountpoint.exists()
    assert visitor.scene.is_over()


@in_own_namespace
def test_the_first_command_of_the_readme_works_for_any_user(visitor: Visitor) -> None:
    place = visitor.home / ".cache" / "kcache"
    first, second = visitor.must_afresh("mount").splitlines()
    assert first == f"mounted at {place}; it may grow to 20.0 GiB in {visitor.home}/.cache/kcachefs"
    assert "kcachefs env" in second
    assert "kcachefs run" in second
    assert f"KCACHEFS_MOUNT={place}" in visitor.must_afresh("env")
    visitor.must_afresh("umount")
    outcome = visitor.run_afresh("run", "-q", "--", "sh", "-c", "echo $KCACHEFS_MOUNT")
    assert (outcome.out, outcome.err) == (f"{place}\n", "")
    assert visitor.scene.is_over()


@pytest.fixture
def fallback() -> Iterator[Path]:
    """That user's folder in /tmp: for one test at a time, however many processes run tests, and gone afterwards."""
    with open(__file__, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        folder = Path(f"/tmp/kcachefs-{NOBODY.uid}")
        if folder.exists():
            pytest.skip(f"{folder} is in use")
        yield folder
        for left in folder.parent.glob(f"{folder.name}*"):
            shutil.rmtree(left)


@pytest.mark.usefixtures("fallback")
@in_own_namespace
def test_a_user_without_a_runtime_directory_has_one_in_tmp_for_himself_alone(visitor: Visitor) -> None:
    fallback = Path(f"/tmp/kcachefs-{NOBODY.uid}")
    del visitor.environment["KCACHEFS_RUNTIME_DIR"]
    visitor.environment["XDG_RUNTIME_DIR"] = "/run"  # another user's, as after `su`
    visitor.must("mount", visitor.mountpoint, "--no-allow-other")
    try:
        found = fallback.lstat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (NOBODY.uid, 0o700)
        assert str(visitor.mountpoint) in visitor.must("status")
    finally:
        visitor.must("umount", visitor.mountpoint)
    shutil.rmtree(fallback)
    fallback.mkdir(mode=0o755)  # root's, as if somebody else had created it first
    assert "no mounts" in visitor.must("status")
    visitor.must("mount", visitor.mountpoint, "--no-allow-other")
    visitor.must("umount", visitor.mountpoint)
    [beside] = fallback.parent.glob(f"{fallback.name}-*")
    assert (beside.lstat().st_uid, stat.S_IMODE(beside.lstat().st_mode)) == (NOBODY.uid, 0o700)
    visitor.environment["KCACHEFS_RUNTIME_DIR"] = str(squat := visitor.scene.folder / "squat")
    squat.mkdir()
    visitor.run("status").refused_with(6, str(squat), "yours alone", "KCACHEFS_RUNTIME_DIR")


@in_own_namespace
def test_a_user_may_not_take_away_the_mount_of_another(visitor: Visitor) -> None:
    visitor.scene.environment["KCACHEFS_RUNTIME_DIR"] = str(visitor.scene.folder / "runtime-of-root")
    visitor.scene.mount()
    outcome = visitor.run("umount", visitor.scene.mountpoint)
    outcome.refused_with(6, str(visitor.scene.mountpoint), "cannot be unmounted", "somebody else's")
    visitor.run("mount", visitor.scene.mountpoint, "--no-allow-other").refused_with(4, "mounted already")
    visitor.scene.umount()


@in_own_namespace
def test_a_dead_mount_of_a_user_is_taken_away_by_his_next(visitor: Visitor) -> None:
    visitor.must("mount", visitor.mountpoint, "--no-allow-other")
    for pid in visitor.scene.daemons():
        kill_and_wait(pid)
    visitor.must("mount", visitor.mountpoint, "--no-allow-other")
    visitor.must("umount", visitor.mountpoint)
    assert visitor.scene.is_over()


@in_own_namespace
def test_a_dead_mount_of_another_user_is_a_note_that_names_who_can_end_it(visitor: Visitor) -> None:
    visitor.scene.environment["KCACHEFS_RUNTIME_DIR"] = str(visitor.scene.folder / "runtime-of-root")
    visitor.scene.runtime = visitor.scene.folder / "runtime-of-root"
    visitor.scene.mount()
    for pid in visitor.scene.daemons():
        kill_and_wait(pid)
    place = str(visitor.scene.mountpoint)
    [found] = [one for one in findings(visitor.run("doctor", "--json")) if place in one["message"]]
    assert (found["level"], found["message"]) == ("note", f"{place} does not answer, and is another user's")
    assert found["remedy"] == f"ask its owner, or root, to run: kcachefs umount --lazy {place}"
    visitor.scene.must("umount", "--lazy", place)


@in_own_namespace
def test_a_user_whose_home_cannot_be_made_is_told_to_choose_a_store(visitor: Visitor) -> None:
    visitor.environment["HOME"] = "/nonexistent"
    [found] = [one for one in findings(visitor.run("doctor", "--json")) if one["subject"] == "store"]
    assert found["level"] == "problem"
    assert found["message"] == "/nonexistent/.cache/kcachefs cannot be made: no permission to write to /"
    assert "--store" in found["remedy"]
    for command in (["mount"], ["run", "--", "true"]):
        visitor.run(*command).refused_with(6, "/nonexistent/.cache/kcachefs: cannot be made", "--store DIR")
    visitor.must("run", "-q", "--store", visitor.home / "store", "--", "true")
    assert visitor.scene.is_over()


def findings(outcome: Outcome) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(outcome.out)["findings"]
    return found


@among_own_mounts
def test_a_user_to_whom_fuse_is_closed_is_told_so(visitor: Visitor) -> None:
    if os.stat("/dev/fuse").st_mode & 0o006 == 0o006:
        pytest.skip("/dev/fuse is open to all here")
    outcome = visitor.run("mount", visitor.mountpoint, "--no-allow-other")
    outcome.refused_with(6, str(visitor.mountpoint), "/dev/fuse", "chmod")
    assert visitor.scene.is_over()


@in_own_namespace
def test_a_user_without_a_home_and_a_name_is_told_what_to_do(visitor: Visitor) -> None:
    for other in mounting.mounts():  # of tests beside this one, which a user without a store would be shown
        if other.fstype == mounting.FSTYPE:
            subprocess.run(["umount", "-l", other.mountpoint], check=False, stderr=subprocess.DEVNULL)
    del visitor.environment["HOME"]
    nameless = Identity(65533, 65533)
    os.chown(visitor.scene.runtime, nameless.uid, nameless.gid)

    def run(*arguments: str | Path) -> Outcome:
        return visitor.run(*arguments, who=nameless, folder=Path("/"))

    for command in ("mount", "run -- true", "config", "fsck", "ls", "prune --unused", "pack /tmp/x.kcp"):
        run(*command.split()).refused_with(2, "you have no home directory", "set HOME")
    for home in ("", "relative"):
        visitor.environment["HOME"] = home
        run("config").refused_with(2, "you have no home directory")
    del visitor.environment["HOME"]
    folder = visitor.scene.folder / "theirs"
    folder.mkdir()
    os.chown(folder, nameless.uid, nameless.gid)
    outcome = run("mount", folder / "mount", "--store", folder / "store", "--no-allow-other")
    outcome.refused_with(6, "user 65533 is not in the list of users", "/etc/passwd")
    assert "refuses user 65533" in run("doctor", "--store", folder / "store").out
