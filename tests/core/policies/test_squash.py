"""Whom files appear to belong to: squashed to one owner or mask, for users without their own uid, or idmapped."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.core.policies.idmaps import idmapped
from tests.core.policies.mounts import ALICE, BOB, as_user, each_engine, mounted, needs_root, publish
from tests.engines.callers import Identity
from tests.engines.refusals import refused

pytestmark = needs_root

ARBITRARY, NEXT = Identity(uid=1_000_730_000, gid=0), Identity(uid=1_000_840_000, gid=0)


@each_engine
def test_any_user_in_group_zero_works_where_another_has(engine: str) -> None:
    with mounted(engine, "--gid", "0", "--umask", "002") as mount:
        module = mount.mountpoint / "inductor" / "ab" / "cabc.py"
        as_user(ARBITRARY, lambda: publish(module, b"one"), umask=0o077)
        seen = module.stat()
        assert (seen.st_uid, seen.st_gid, seen.st_mode & 0o7777) == (ARBITRARY.uid, 0, 0o664)
        assert module.parent.stat().st_mode & 0o7777 == 0o775

        def go_on() -> None:
            publish(module, b"two")
            with open(module, "ab") as file:
                file.write(b" three")
            publish(module.parent / "cnew.py", b"new")

        as_user(NEXT, go_on, umask=0o077)
        assert as_user(ARBITRARY, module.read_bytes) == b"two three"

        def meddle() -> None:
            with refused(errno.EACCES):
                publish(module, b"evil")

        as_user(BOB, meddle)


@each_engine
def test_everything_appears_as_one_users(engine: str) -> None:
    with mounted(engine, "--uid", str(ALICE.uid), "--gid", str(ALICE.gid), "--umask", "077") as mount:
        script = mount.mountpoint / "triton" / "KEY" / "run.sh"
        publish(script, b"#!/bin/sh\n")
        script.chmod(0o755)
        seen = script.stat()
        assert (seen.st_uid, seen.st_gid, seen.st_mode & 0o7777) == (ALICE.uid, ALICE.gid, 0o700)
        as_user(ALICE, lambda: publish(script, b"hers"))
        os.symlink("KEY", mount.mountpoint / "triton" / "link")
        assert (mount.mountpoint / "triton" / "link").lstat().st_mode & 0o777 == 0o777

        def look() -> None:
            with refused(errno.EACCES):
                os.listdir(mount.mountpoint / "triton")

        as_user(BOB, look)


@pytest.mark.mount
def test_an_idmapped_mount_gives_files_to_the_users_of_a_container(tmp_path: Path) -> None:
    with mounted("direct", "--idmap") as mount:
        publish(mount.mountpoint / "triton" / "KEY" / "kernel.cubin", b"root's")
        inside = mount.mountpoint.parent / "inside"
        try:
            with idmapped(mount.mountpoint, inside, 0, ALICE.uid):
                seen = (inside / "triton" / "KEY" / "kernel.cubin").stat()
                assert (seen.st_uid, seen.st_gid) == (ALICE.uid, ALICE.gid)
                as_user(ALICE, lambda: publish(inside / "triton" / "HERS" / "kernel.cubin", b"hers"))
        except OSError as error:
            if error.errno != errno.EINVAL or _kernel() >= (6, 12):
                raise
            pytest.skip("this kernel does not map FUSE mounts; it takes Linux 6.12")
        made = (mount.mountpoint / "triton" / "HERS" / "kernel.cubin").stat()
        assert (made.st_uid, made.st_gid) == (0, 0)


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor)


@pytest.mark.mount
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--policy", "open"), "is not known"),
        (("--umask", "9"), "not an octal mask"),
        (("--writers", "everybody"), "is not a user or a group"),
        (("--writers", "uid:5"), "works only with"),
        (("--base", "--writers", "uid:0"), "works only with --policy private; add it"),
        (("--policy", "private", "--base"), "when root mounts, name who writes"),
        (("--policy", "private", "--uid", "5"), "hide who owns a file"),
        (("--policy", "publish", "--idmap"), "works only with --policy shared"),
        (("--max-size-per-uid", "much"), "is not a size"),
        (("--tenant-range", "100000"), "is not a range of users"),
        (("--tenant-range", "5:0"), "is not a range of users"),
        (("--tenant-range", "4294967295:1"), "is not a range of users"),
        (("--tenant-range", "5:10", "--tenant-range", "14:1"), "overlaps another one"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(RuntimeError, match=complaint), mounted("direct", *options):
        pass
