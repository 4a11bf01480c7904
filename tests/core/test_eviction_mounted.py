"""Eviction on a real mount, with the kernel's caches on: nobody ever sees half an entry, and the quota holds."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kcachefs.core.user_eviction import HIGH_WATER
from tests import command_server, forked_daemons
from tests.core.cachers import SUFFIXES, Cacher, content
from tests.core.policies.mounts import settled
from tests.daemon.kills import kill_worker
from tests.disks import ext4, need_root
from tests.engines.callers import Child, in_child
from tests.engines.mounting import Mount, kill, temporary_folder
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.mount

STORM_EVICTIONS = int(os.environ.get("KCACHEFS_TEST_STORM_EVICTIONS", "100"))
CORPUS_NAMESPACES = ("triton", "inductor", "cuda")
CORPUS = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_caches.tar.xz"


@pytest.fixture
def base() -> Iterator[Path]:
    with temporary_folder() as folder:
        yield folder


def kcachefs(*arguments: str) -> str:
    done = command_server.run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stats(mount: Mount) -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads(kcachefs("stats", "--mount", str(mount.mountpoint), "--json"))
    return numbers


def _told(mount: Mount) -> dict[str, dict[str, int]]:
    """The numbers in the mount itself: fewer than the command prints, but much quicker to read."""
    told: dict[str, dict[str, int]] = json.loads((mount.mountpoint / ".kcachefs" / "stats.json").read_text())
    return told


def _seal(mount: Mount, files: int) -> None:
    """Return once so many files are sealed. What a process had open may be closed a moment after its end."""
    until(lambda: settled(mount).total.files == files, f"{files} files are sealed", pause=0.1)


def kernel(root: Path, key: str, size: int = 40_000) -> None:
    Cacher(root, 0, 1, size).kernel(key)


def clean(store: Path) -> None:
    """The store is not mounted, and nothing is wrong with it."""
    done = command_server.run("fsck", "--store", store, "--json")
    assert done.returncode == 0, done.stdout + done.stderr


def disk_bytes(store: Path) -> int:
    total = 0
    for folder, _, files in os.walk(store):
        for name in files:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["direct", "pyfuse3"])
def test_nobody_sees_half_an_entry_while_a_tenth_fits(base: Path, engine: str) -> None:
    """Eight processes on a working set of ten quotas. Each checks every byte it reads and keeps some files mapped,
    until enough entries were evicted under them."""
    keys, size = 500, 20_000
    working_set = keys * size * (len(SUFFIXES) + 1)
    quota = working_set // 10
    with Mount(base / "mount", base / "store", engine, "--max-size", str(quota), "--grace", "3") as mount:
        on_disk = []

        def enough_was_evicted() -> bool:
            on_disk.append(disk_bytes(mount.store))
            return _evictions(mount) >= STORM_EVICTIONS

        begun = time.monotonic()
        with ExitStack() as scope:
            users = [Cacher(mount.mountpoint, number, keys, size) for number in range(8)]
            workers = [scope.enter_context(Child(partial(user.work, base / "stop"))) for user in users]
            try:
                until(enough_was_evicted, f"{STORM_EVICTIONS} entries were evicted", pause=0.2)
            finally:
                (base / "stop").touch()
            deeds = [worker.result() for worker in workers]
        seconds = time.monotonic() - begun
    assert sum(done["made"] for done in deeds) > 100
    assert sum(done["read"] for done in deeds) > 0
    # The bound that eviction.py states: what is younger than the grace, and what is not sealed yet.
    written = sum(done["made"] for done in deeds) * size * len(SUFFIXES)
    young = written / seconds * 15
    assert max(on_disk) <= quota * 1.1 + young + (32 << 20), f"{max(on_disk)} bytes on disk for a quota of {quota}"
    clean(mount.store)


def test_reads_through_a_warm_kernel_cache_protect_an_entry(base: Path) -> None:
    places = itertools.count()
    until(lambda: kept_by_reading(base / f"{next(places)}", grace=3), "this process was not stopped for the grace")


def kept_by_reading(base: Path, grace: float) -> bool:
    """Read an entry until another is evicted: it must be there. False if it was not read for as long as the grace."""
    with Mount(base / "mount", base / "store", "direct", "--max-size", "6M", "--grace", f"{grace}") as mount:
        root = mount.mountpoint
        for key in ("old", "used"):
            kernel(root, key)
        before = requests(mount)
        number, last, longest = 0, time.monotonic(), 0.0

        def read_ten_times() -> None:
            nonlocal last, longest
            for _ in range(10):
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
                assert (root / "triton" / "used" / "kernel.ptx").read_bytes() == content("used", "ptx", 40_000)

        try:
            while listed(root, "old"):
                read_ten_times()
                kernel(root, f"new{number}")
                number += 1
                assert number < 500, "nothing was evicted"
            read_ten_times()
        except FileNotFoundError:
            if longest < grace / 2:
                raise
            return False
        # The kernel served the reads itself: there were far fewer READ requests than reads. There may be some of
        # others too: `kcachefs doctor` of another test looks into every mount.
        assert requests(mount).get("read", 0) - before.get("read", 0) < 10 * (number + 1) // 2
        return True


def listed(root: Path, key: str) -> bool:
    """Whether an entry exists, without a lookup, which would count as a use."""
    return key in os.listdir(root / "triton")


def requests(mount: Mount) -> dict[str, int]:
    counted: dict[str, int] = stats(mount)["requests"]
    return counted


def test_an_open_and_a_mapped_file_keep_their_entries(base: Path) -> None:
    with Mount(base / "mount", base / "store", "direct", "--max-size", "6M", "--grace", "0") as mount:
        root = mount.mountpoint
        for key in ("open", "mapped", "idle"):
            kernel(root, key)
        with (
            open(root / "triton/open/kernel.cubin", "rb") as file,
            open(root / "triton/mapped/kernel.ptx", "rb") as other,
        ):
            view = mmap.mmap(other.fileno(), 0, prot=mmap.PROT_READ)
            other.close()
            number = 0
            while listed(root, "idle"):
                kernel(root, f"new{number}")
                number += 1
                assert number < 500, "nothing was evicted"
            until(lambda: _told(mount)["store"]["used_bytes"] <= 6 << 20)
            assert file.read() == content("open", "cubin", 40_000)
            assert view[:] == content("mapped", "ptx", 40_000)
            for key in ("open", "mapped"):
                assert len(os.listdir(root / "triton" / key)) == len(SUFFIXES) + 1
            view.close()


@contextmanager
def opened(entry: Path) -> Iterator[None]:
    with open(entry / "kernel.cubin", "rb"):
        yield


@contextmanager
def mapped(entry: Path) -> Iterator[None]:
    with open(entry / "kernel.ptx", "rb") as file:
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    yield
    view.close()


@contextmanager
def opened_below(entry: Path) -> Iterator[None]:
    with open(entry / "folder" / "deeper" / "file", "rb"):
        yield


@contextmanager
def worked_in(entry: Path) -> Iterator[None]:
    """The kernel remembers what was not there."""
    folder = os.open(entry, os.O_RDONLY)
    yield
    with pytest.raises(FileNotFoundError):
        os.stat("missing", dir_fd=folder)
    os.close(folder)


@contextmanager
def tidied(entry: Path) -> Iterator[None]:
    """The kernel remembers what was removed."""
    folder = os.open(entry, os.O_RDONLY)
    yield
    os.unlink("kernel.cubin", dir_fd=folder)
    os.rmdir("empty", dir_fd=folder)
    os.close(folder)


@pytest.mark.parametrize("engine", ["direct", "pyfuse3"])
def test_what_was_in_use_when_it_should_have_gone_goes_once_it_is_not(base: Path, engine: str) -> None:
    """Nobody looks at it again, and the kernel has memory enough to remember all of it."""
    with Mount(base / "mount", base / "store", engine, "--grace", "0") as mount:
        for use in (opened, mapped, opened_below, worked_in, tidied):
            name = use.__name__
            entry = mount.mountpoint / "triton" / name
            kernel(mount.mountpoint, name)
            (entry / "folder" / "deeper").mkdir(parents=True)
            (entry / "empty").mkdir()
            (entry / "folder" / "deeper" / "file").write_bytes(b"content")
            evict = partial(command_server.run, "evict", "--mount", mount.mountpoint, f"triton/{name}")
            with use(entry):
                done = evict()
                assert (done.returncode, "in use" in done.stdout) == (1, True), done
            until(lambda evict=evict: evict().returncode == 0, f"what was {name} is evicted")  # type: ignore[misc]
            until(lambda: _told(mount)["store"]["nameless"] == 0, f"nothing is left of what was {name}")


@pytest.mark.parametrize("engine", ["direct", "pyfuse3"])
def test_who_works_below_an_entry_in_use_still_knows_where(base: Path, engine: str) -> None:
    with Mount(base / "mount", base / "store", engine, "--grace", "0") as mount:
        kernel(mount.mountpoint, "KEY")
        folder = mount.mountpoint / "triton" / "KEY" / "folder"
        folder.mkdir()
        (folder / "file").write_bytes(b"content")

        def work() -> str:
            os.chdir(folder)
            with open("file", "rb"):
                for _ in range(2):
                    done = command_server.run("evict", "--mount", mount.mountpoint, "triton/KEY")
                    assert "in use" in done.stdout, done
                return os.getcwd()

        assert in_child(work) == str(folder)


def test_hits_and_misses_are_those_that_were_made(base: Path) -> None:
    with Mount(base / "mount", base / "store", "direct") as mount:
        root = mount.mountpoint

        def write() -> None:
            for number in range(30):
                kernel(root, f"K{number}", 5000)

        def read() -> None:
            for number in range(30):
                for suffix in SUFFIXES:
                    (root / f"triton/K{number}/kernel.{suffix}").read_bytes()

        in_child(write)
        _seal(mount, 30 * (len(SUFFIXES) + 1))
        mount.remount()  # so that the kernel asks for each name again
        in_child(read)
        in_child(lambda: (root / "triton/absent").exists())
        total = stats(mount)["total"]
        assert (total["hits"], total["misses"], total["entries"]) == (30, 30, 30)
        mount.remount()
        in_child(read)
        assert stats(mount)["total"]["hits"] == 60


def test_the_numbers_are_in_the_mount_and_always_fresh(base: Path) -> None:
    with Mount(base / "mount", base / "store", "direct") as mount:
        report = mount.mountpoint / ".kcachefs"
        assert sorted(os.listdir(report)) == ["metrics", "stats.json"]
        assert ".kcachefs" in os.listdir(mount.mountpoint)
        assert json.loads((report / "stats.json").read_text())["total"]["entries"] == 0
        kernel(mount.mountpoint, "KEY")
        _seal(mount, len(SUFFIXES) + 1)
        fresh = 'kcachefs_entries{namespace="triton"} 1'
        until(lambda: fresh in (report / "metrics").read_text().splitlines(), "the metrics are no longer the last ones")
        with pytest.raises(PermissionError):
            (report / "new").write_text("x")


@need_root
@pytest.mark.slow
def test_a_disk_that_fills_up_is_survived_by_evicting(base: Path) -> None:
    with ext4(base, "disk", megabytes=40) as disk:
        options = ("--max-size", "10G", "--min-free", "8M", "--grace", "0")
        with Mount(base / "mount", disk.path / "store", "direct", *options) as mount:
            for number in range(100):
                kernel(mount.mountpoint, f"K{number:03d}", 60_000)
                assert disk.free > 0
                if number % 10 == 0:
                    until(lambda: disk.free > 4 << 20)
            until(lambda: settled(mount).total.misses == 100, pause=0.1)
            assert _evictions(mount) > 0
            assert (mount.mountpoint / "triton/K099/kernel.ptx").read_bytes() == content("K099", "ptx", 60_000)
        clean(mount.store)


@pytest.mark.slow
def test_a_file_that_outgrows_the_quota_fails_and_does_not_crawl(base: Path) -> None:
    """However well it compresses: while it is written it takes all of its bytes."""
    with (
        forked_daemons.constants({"kcachefs.core.eviction.CERTAIN_SECONDS": 1.0}),
        Mount(base / "mount", base / "store", "direct", "--max-size", "8MiB", "--grace", "1") as mount,
    ):

        def write_header() -> None:
            with open(mount.mountpoint / "triton" / "header.gch", "wb", buffering=0) as header:
                while header.tell() < 14 << 20:
                    header.write(b"header" * 10_000)

        with pytest.raises(OSError, match="No space left on device"):
            write_header()
        entry = mount.mountpoint / "triton" / "NEXT"

        def takes_more() -> bool:
            try:
                entry.write_bytes(b"kernel")
            except OSError:
                return False
            return True

        until(takes_more, "it rests, is sealed, and takes little room then")


def test_a_worker_that_took_over_evicts_no_more_than_it_has_to(base: Path) -> None:
    """It does not know what the kernel holds: what it evicts is gone once it has asked, not a while later."""
    keys = [f"k{number}" for number in range(60)]
    with Mount(base / "mount", base / "store", "direct", "--grace", "0") as mount:
        for key in keys:
            kernel(mount.mountpoint, key)
        settled(mount)
        kill_worker(mount)
        quota = settled(mount).store.used_bytes
        kcachefs("set", str(mount.mountpoint), "--max-size", str(quota))
        until(lambda: _evictions(mount) and _told(mount)["store"]["used_bytes"] < quota * HIGH_WATER)
        assert _evictions(mount) < len(keys) // 3


def test_a_kill_during_eviction_leaves_entries_whole_or_gone(base: Path) -> None:
    count, landed, attempt = 100, 0, 0
    with Mount(base / "mount", base / "store", "direct", "--grace", "0") as mount:
        while landed < 2:
            attempt += 1
            assert attempt < 20, "no kill landed while entries were being evicted"
            for number in range(count):
                kernel(mount.mountpoint, f"{attempt}-{number}", 4000)
            there = len(list((mount.mountpoint / "triton").iterdir()))
            _seal(mount, there * (len(SUFFIXES) + 1))
            daemon = mount.daemon()
            before = _evictions(mount)
            with Child(partial(_evict, mount, f"triton/{attempt}-*")) as evictor:
                until(lambda before=before: _evictions(mount) > before, pause=0)  # type: ignore[misc]
                kill(*daemon)
                evictor.result(PATIENCE)
            subprocess.run(["umount", "-l", str(mount.mountpoint)], check=False, capture_output=True)
            clean(mount.store)
            mount.start()
            for folder in (mount.mountpoint / "triton").iterdir():
                assert len(os.listdir(folder)) == len(SUFFIXES) + 1, f"{folder} is half an entry"
            left = len(list((mount.mountpoint / "triton").glob(f"{attempt}-*")))
            landed += 0 < left < count


def _evictions(mount: Mount) -> int:
    """Read from the mount itself: a command would be slower than the eviction."""
    return _told(mount)["total"]["evictions"]


def _evict(mount: Mount, pattern: str) -> None:
    command_server.run("evict", "--mount", mount.mountpoint, pattern)


def test_commands_on_a_mount_and_on_a_store_at_rest_agree(base: Path) -> None:
    with Mount(base / "mount", base / "store", "direct") as mount:
        for key in ("A", "B", "C"):
            kernel(mount.mountpoint, key)
        _seal(mount, 3 * (len(SUFFIXES) + 1))
        where = ("--mount", str(mount.mountpoint))
        listed = json.loads(kcachefs("ls", "triton", "--json", *where))
        assert sorted(info["path"] for info in listed) == ["triton/A", "triton/B", "triton/C"]
        assert "triton/A" in kcachefs("ls", *where)
        assert "triton" in kcachefs("stats", *where)
        kcachefs("pin", "triton/A", *where)
        assert "would evict" in kcachefs("evict", "--dry-run", "triton/B", *where)
        assert json.loads(kcachefs("evict", "triton/B", "--json", *where))["entries"] == ["triton/B"]
        assert not (mount.mountpoint / "triton/B").exists()
        kcachefs("gc", *where)
    where = ("--store", str(mount.store))
    at_rest = json.loads(kcachefs("ls", "--json", *where))
    assert {info["path"]: info["pinned"] for info in at_rest} == {"triton/A": True, "triton/C": False}
    assert json.loads(kcachefs("prune", "--unused", "--json", *where))["entries"] == ["triton/C"]
    assert json.loads(kcachefs("stats", "--json", *where))["total"]["entries"] == 1
    kcachefs("unpin", "triton/A", *where)
    clean(mount.store)


@pytest.mark.slow
def test_real_caches_shrink_as_measured_and_every_use_is_counted(base: Path) -> None:
    """The caches of three workloads on an H200, unpacked by one process and read by two others."""
    with Mount(base / "mount", base / "store", "direct") as mount:
        # The child that unpacks them counts: looking for the files here would be a use of every entry.
        files = in_child(lambda: _unpack_corpus(mount.mountpoint))
        _seal(mount, files)
        numbers = stats(mount)
        total, beneath = numbers["total"], numbers["store"]
        assert 6.0 < total["compression_ratio"] < 9.0
        assert 1.0 <= beneath["dedup_ratio"] < 1.1
        entries = total["entries"]
        assert (total["misses"], total["hits"]) == (entries, 0)
        for round_number in (1, 2):
            mount.remount()
            in_child(lambda: _read_all(mount.mountpoint))
            total = stats(mount)["total"]
            assert (total["misses"], total["hits"]) == (entries, round_number * entries)


def _unpack_corpus(root: Path) -> int:
    """The number of files that belong to entries: locks do not, nor does the index that the driver keeps open."""
    made = set()
    with tarfile.open(CORPUS) as archive:
        for member in archive:
            workload, _, path = member.name.removeprefix("./").partition("/")
            data = archive.extractfile(member) if member.isfile() else None
            if data is not None and workload:
                target = root / path
                target.parent.mkdir(parents=True, exist_ok=True)
                if target.write_bytes(data.read()) and target.name != "index":
                    made.add(target)
    return len(made)


def _read_all(root: Path) -> None:
    for namespace in CORPUS_NAMESPACES:
        for path in (root / namespace).rglob("*"):
            if path.is_file():
                path.read_bytes()
