"""A process that looks around (find, du, a backup, an agent) uses nothing: it keeps no entry young."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from functools import partial
from pathlib import Path

from kcachefs.store import fsck
from kcachefs.store.objects import DEFAULT_VOLUME_SIZE
from tests import command_server
from tests.core.cachers import content
from tests.core.policies.mounts import each_engine, mounted, settled
from tests.disks import need_root, tmpfs
from tests.engines.callers import Child, in_child
from tests.engines.mounting import Mount, temporary_folder
from tests.waiting import until

QUOTA = 48 << 20
PUSHED = 2
"""So many times the quota is written."""
SIZE = 128 << 10
PARTS = ("ttir", "ptx", "cubin", "json")


def look_around(root: Path, stop: Path) -> int:
    """As du does, over and over."""
    rounds = 0
    while not stop.exists():
        for folder, _, names in os.walk(root):
            for name in names:
                with contextlib.suppress(OSError):
                    os.lstat(os.path.join(folder, name))
        rounds += 1
        time.sleep(0.2)
    return rounds


def write_entries(root: Path, writer: int, count: int) -> int:
    for number in range(count):
        folder = root / "triton" / f"K{writer}x{number}"
        for part in PARTS:
            temporary = folder / f"tmp.{os.getpid()}.{part}"
            temporary.mkdir(parents=True, exist_ok=True)
            (temporary / part).write_bytes(content(folder.name, part, SIZE))
            os.replace(temporary / part, folder / part)
            with contextlib.suppress(OSError):
                temporary.rmdir()
    return count


def write_group(folder: Path) -> None:
    """What the doctor wants to read: it tells where the mount was when Triton wrote it."""
    folder.mkdir()
    (folder / "__grp__add.json").write_text(json.dumps({"child_paths": {"add.ptx": f"{folder}/add.ptx"}}))


@each_engine
@need_root
def test_four_writers_stay_within_the_quota_beside_a_scan(tmp_path: Path, engine: str) -> None:
    options = ("--max-size", str(QUOTA), "--min-free", "1MiB", "--grace", "30")
    # The store has a disk of its own, which tells what it takes: a walk would count what is sealed meanwhile twice.
    with temporary_folder() as base, tmpfs(tmp_path, megabytes=4 * QUOTA >> 20) as disk:
        room = disk.free
        with Mount(base / "mount", disk.path / "store", engine, *options) as mount:
            stop, largest, entries = base / "stop", 0, PUSHED * QUOTA // (SIZE * len(PARTS)) // 4
            with contextlib.ExitStack() as running:
                scanner = running.enter_context(Child(lambda: look_around(mount.mountpoint, stop)))
                writers = [
                    running.enter_context(Child(partial(write_entries, mount.mountpoint, number, entries)))
                    for number in range(4)
                ]
                for writer in writers:
                    while not writer.is_ready(0.05):
                        largest = max(largest, room - disk.free)
                    assert writer.result() == entries
                stop.touch()
                assert scanner.result() > 0
            assert largest <= QUOTA * 1.1 + DEFAULT_VOLUME_SIZE, "docs/usage.md says what it can be exceeded by"
            numbers = settled(mount).namespaces["triton"]
            assert numbers.evictions > 0
            assert numbers.hits == 0, "nobody used anything"
            _nothing_is_in_part(mount)
        assert fsck.run(disk.path / "store").findings == []


def is_gone(path: Path) -> bool:
    return not path.exists()


def _nothing_is_in_part(mount: Mount) -> None:
    folders = list((mount.mountpoint / "triton").iterdir())
    assert folders
    whole = 0
    for folder in folders:
        try:
            found = {part: (folder / part).read_bytes() for part in os.listdir(folder)}
        except FileNotFoundError:
            found = {}
        if not found:  # it went just now: until the kernel knows, its folder is empty
            until(partial(is_gone, folder), "nothing of it is left")
            continue
        assert found == {part: content(folder.name, part, SIZE) for part in PARTS}, folder
        whole += 1
    assert whole


@each_engine
def test_listing_and_looking_are_no_hits_and_reading_is(engine: str) -> None:
    with mounted(engine) as mount:
        in_child(lambda: write_entries(mount.mountpoint, 0, 3))
        settled(mount)
        for command in (["find", str(mount.mountpoint), "-ls"], ["du", "-s", str(mount.mountpoint)]):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        in_child(lambda: os.listdir(mount.mountpoint / "triton" / "K0x0"))
        assert settled(mount).total.hits == 0

        def read_as_inductor_does() -> int:
            folder = mount.mountpoint / "triton" / "K0x1"
            return sum(len((folder / name).read_bytes()) for name in sorted(os.listdir(folder)))

        assert in_child(read_as_inductor_does) == SIZE * len(PARTS)
        assert settled(mount).total.hits == 1
        in_child(lambda: (mount.mountpoint / "triton" / "K0x2" / "ptx").read_bytes())
        assert settled(mount).total.hits == 2


def test_a_doctor_and_a_look_at_the_numbers_leave_no_trace() -> None:
    with mounted("direct") as mount:
        in_child(lambda: write_entries(mount.mountpoint, 0, 5))
        in_child(lambda: write_group(mount.mountpoint / "triton" / "GROUP"))
        before = settled(mount).total
        for command in (
            ["doctor"],
            ["stats", "--mount", mount.mountpoint, "--json"],
            ["ls", "--mount", mount.mountpoint],
        ):
            done = command_server.run(*command)
            assert done.returncode in (0, 1), done.stderr
        json.loads((mount.mountpoint / ".kcachefs" / "stats.json").read_text())
        after = settled(mount).total
        assert (after.hits, after.misses, after.last_used) == (before.hits, before.misses, before.last_used)
