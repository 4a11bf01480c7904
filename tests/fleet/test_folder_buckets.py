"""Buckets that are folders: who may write there, and what is left by who was killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kcachefs.errors import FleetError, FleetMissing, FleetRefused
from kcachefs.fleet.bucket_layout import Layout
from kcachefs.fleet.object_storage import open_storage
from tests.engines.callers import Child, Identity
from tests.fleet.caches import fill, key
from tests.fleet.mounts import Fleet
from tests.fleet.nodes import SCOPE, Node, bucket_folder, secret_in
from tests.frameworks.commands import kcachefs
from tests.frameworks.tenants import open_what_is_closed
from tests.waiting import PATIENCE

LAYOUT = Layout(SCOPE)
ROOT = Path(__file__).parents[2]
GROUP = 42090
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


def in_group(uid: int, umask: int, home: Path, *arguments: str) -> str:
    """What a publisher of a group of its own, and of GROUP, complains about; empty if it has published."""

    def publish() -> str:
        open_what_is_closed(home)
        Identity(uid, uid, (GROUP,)).assume()
        os.umask(umask)
        command = [sys.executable, "-m", "tests.fleet.dying_publisher", *arguments]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={"HOME": str(home)}, check=False)
        return ran.stderr

    with Child(publish) as child:
        return child.result(PATIENCE)


@as_root
def test_every_publisher_of_the_group_gets_in_by_the_rights_that_init_prints(tmp_path: Path) -> None:
    url = bucket_folder(tmp_path)
    rules = json.loads(kcachefs("fleet", "init", url, "--json").stdout)["rules"]
    (command,) = [one["content"] for one in rules if one["title"] == "rights of publishers"]
    subprocess.run(["sh", "-c", command.replace("GROUP", str(GROUP))], check=True)
    secret, _ = key(tmp_path)
    tmp_path.chmod(0o755)
    for number, umask in ((1, 0o022), (2, 0o077), (3, 0o022)):
        uid, home = 42090 + number, tmp_path / f"home{number}"
        fill(home / "caches", kernels=number, size=100)
        shutil.copy(secret, home / "key")
        subprocess.run(["chown", "-R", f"{uid}:{uid}", home], check=True)
        places = [str(home / name) for name in ("node", "key", "caches")]
        assert in_group(uid, umask, home, url, *places, "-1") == ""
    made = [path for path in (tmp_path / "bucket").rglob("*") if path.name != "settings.json"]
    assert {path.stat().st_gid for path in made} == {GROUP}
    assert {oct(path.stat().st_mode) for path in made} == {"0o42775", "0o100644"}
    assert len(list((tmp_path / "bucket").rglob("*.kcp"))) == 3


@as_root
@pytest.mark.mount
def test_what_a_mount_of_roots_publishes_is_the_groups_too(empty_fleet: Fleet) -> None:
    """Its agent has given up the capabilities to change groups."""
    os.chown(empty_fleet.bucket, 0, GROUP)
    empty_fleet.bucket.chmod(0o2770)
    with empty_fleet.publisher("one") as one:
        fill(one.mountpoint)
    made = [path.stat() for path in empty_fleet.bucket.rglob("*")]
    assert {(oct(one.st_mode), one.st_gid) for one in made} == {("0o42770", GROUP), ("0o100640", GROUP)}


@as_root
def test_a_group_that_the_folder_is_not_shared_with_gets_no_rights(tmp_path: Path) -> None:
    """Who made the folder is not in its group, so what is made there is of another one."""
    url = bucket_folder(tmp_path)
    os.chown(tmp_path / "bucket", 42091, GROUP)
    (tmp_path / "bucket").chmod(0o770)
    tmp_path.chmod(0o755)

    def write() -> None:
        os.umask(0o027)
        open_storage(url).put("v1/tests/claims/one", b"1")

    with Child(write, Identity(42091, 42092)) as child:
        child.result(PATIENCE)
    made = [path.stat() for path in (tmp_path / "bucket").rglob("*")]
    assert {(oct(one.st_mode), one.st_gid) for one in made} == {("0o40750", 42092), ("0o100640", 42092)}


@as_root
def test_folders_of_ours_that_were_not_shared_yet_are(tmp_path: Path) -> None:
    """Whoever made them was killed before it gave them their rights, or did not know of any."""
    url, root, elsewhere = bucket_folder(tmp_path), tmp_path / "bucket", tmp_path / "elsewhere"
    os.chown(root, 0, GROUP)
    root.chmod(0o2770)
    for folder in (root / "v1", root / "v1" / "theirs", elsewhere):
        folder.mkdir()
        folder.chmod(0o700)
        os.chown(folder, 0, 0)
    os.chown(root / "v1" / "theirs", 42091, 0)
    (root / "v1" / "link").symlink_to(elsewhere)
    for name in ("theirs", "link"):
        open_storage(url).put(f"v1/{name}/one", b"1")
    found = [path.stat() for path in (root / "v1", root / "v1" / "theirs", elsewhere)]
    assert [(oct(one.st_mode), one.st_gid) for one in found] == [("0o42770", GROUP), ("0o40700", 0), ("0o40700", 0)]


def test_why_a_folder_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    for error, word in ((FleetError, "full"), (FleetRefused, "only be read")):
        folder = tmp_path / word
        folder.mkdir()
        options = "size=64k" if word == "full" else "ro"
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True)
        if mounted.returncode:
            pytest.skip("only root can mount a small disk")
        try:
            with pytest.raises(error, match=word):
                open_storage(f"file://{folder}").put("a/one", b"1" * (1 << 20))
            assert [path for path in folder.rglob("*") if path.is_file()] == [], "nothing of it is left"
        finally:
            subprocess.run(["umount", folder], check=True)


def test_a_folder_that_went_away_is_not_made_anew(tmp_path: Path) -> None:
    """It may be on a disk that is not mounted any more."""
    store = open_storage(bucket_folder(tmp_path))
    (tmp_path / "bucket").rmdir()
    with pytest.raises(FleetMissing):
        store.put("v1/one", b"1")
    assert not (tmp_path / "bucket").exists()


def test_gc_removes_after_a_day_what_a_killed_writer_left(tmp_path: Path) -> None:
    fill(tmp_path / "caches", size=100)
    node = Node(tmp_path / "node", bucket_folder(tmp_path), secret_in(tmp_path))
    node.publish(tmp_path / "caches")
    root = tmp_path / "bucket" / LAYOUT.root
    useful = [path for path in root.rglob("*") if path.is_file()]
    left = [root / "packs" / "2026-01-01" / f"{'1' * 32}.kcp#1", root / "claims" / "0123.0#123456789012"]
    young = root / "claims" / "0124.0#1"
    for path in (*left, young):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    for path in left:
        os.utime(path, (time.time() - 2 * 86400,) * 2)
    gone = json.loads(kcachefs("fleet", "gc", node.storage.url, "--json").stdout)["objects"]
    assert {(one["key"], one["why"]) for one in gone} == {
        (str(path.relative_to(tmp_path / "bucket")), "was never finished") for path in left
    }
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in (*useful, young))


def test_gc_of_a_scope_that_is_not_there_says_so_and_makes_none(tmp_path: Path) -> None:
    url = bucket_folder(tmp_path)
    open_storage(url).put(LAYOUT.claim("one"), b"1")
    done = kcachefs("fleet", "gc", url, "--scope", "typo", check=False)
    assert (done.returncode, f"no such scope; it has {SCOPE}" in done.stderr) == (2, True)
    assert os.listdir(tmp_path / "bucket" / "v1") == [SCOPE]
