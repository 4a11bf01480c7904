"""Power cuts: a copy of the disk at any instant has everything that was synced, and no wrong byte."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from blake3 import blake3

from kcachefs.store import Options, Store
from kcachefs.store.fsck import run
from kcachefs.store.places import HEADER
from tests.disks import Disk, ext4, need_root
from tests.store import tree
from tests.store.kill import OPTIONS, content, stop, writers
from tests.store.objects import delete, in_threads, put, record
from tests.store.test_faults_full_disk import ROOT, WRITE_AND_WAIT
from tests.store.test_repacking import fill

pytestmark = [need_root, pytest.mark.slow]

QUIET = Options(background=False, volume_size=64 << 10)


@contextmanager
def after_power_loss(disk: Disk, folder: Path, name: str) -> Iterator[Path]:
    """The store as this machine would find it after a reboot: on a copy of the disk."""
    assert disk.image is not None
    copy = folder / f"{name}.img"
    subprocess.run(["cp", "--sparse=always", str(disk.image), str(copy)], check=True)
    try:
        with ext4(folder, name, image=copy) as lost:
            path = lost.path / "store"
            header = json.loads((path / HEADER).read_bytes())
            assert header["boot"], "the store was open, but its header does not say so"
            (path / HEADER).write_text(json.dumps({**header, "boot": "another boot"}))
            yield path
    finally:
        copy.unlink()


# --- chosen instants --------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with ext4(tmp_path, megabytes=128) as mounted:
        yield mounted


@pytest.fixture
def store(disk: Disk) -> Iterator[Store]:
    with Store(disk.path / "store", QUIET) as opened:
        yield opened


def expect(path: Path, there: dict[bytes, bytes], *, clean: bool = True) -> None:
    report = run(path, repair=not clean)
    assert report.exit_code <= (0 if clean else 1), report.findings
    with Store(path, QUIET) as lost:
        assert lost.lost_power
        for digest, data in there.items():
            assert lost.objects.verify(digest)
            assert lost.objects.get(digest) == data
        put(lost, b"life goes on" * 1000)
    assert run(path).exit_code == 0


def test_what_was_synced_is_there_and_what_was_not_does_no_harm(
    disk: Disk, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    synced = {put(store, data): data for data in (os.urandom(3000), os.urandom(900_000))}
    store.sync()
    put(store, os.urandom(3000))
    put(store, os.urandom(900_000))
    with after_power_loss(disk, tmp_path, "lost") as path:
        expect(path, synced, clean=False)


def test_synced_while_a_fold_had_just_begun_another_segment(disk: Disk, store: Store, tmp_path: Path) -> None:
    synced = {put(store, data): data for data in (os.urandom(3000) for _ in range(50))}
    store.fold()
    for data in (os.urandom(3000) for _ in range(50)):
        synced[put(store, data)] = data
    store.sync()
    with after_power_loss(disk, tmp_path, "lost") as path:
        expect(path, synced)


def test_folded_is_as_good_as_synced(disk: Disk, store: Store, tmp_path: Path) -> None:
    folded = {put(store, data): data for data in (os.urandom(3000), os.urandom(900_000))}
    store.fold()
    with after_power_loss(disk, tmp_path, "lost") as path:
        expect(path, folded)


def test_repacking_loses_nothing_at_any_step(
    disk: Disk, tmp_path: Path, quick_to_learn: None, caplog: pytest.LogCaptureFixture
) -> None:
    """From a store without a folder for dictionaries, so that making that is among the steps."""
    with Store(disk.path / "store", QUIET) as store:
        there = fill(store)
    (disk.path / "store" / "dictionaries").rmdir()
    os.sync()
    with Store(disk.path / "store", QUIET) as store:
        for number, _ in enumerate(store.repack(0)):
            if number % 24 == 0:
                store.catalog.sync()  # what the journal says is on the disk, whatever it speaks of
                with after_power_loss(disk, tmp_path, f"lost{number}") as path:
                    expect(path, there)
        assert number > 100, "too few steps to prove anything"
        with after_power_loss(disk, tmp_path, "lost") as path:
            expect(path, there)
        assert store.dictionaries.numbers()


def test_a_journal_that_comes_back_does_not_undo_later_folds(disk: Disk, store: Store, tmp_path: Path) -> None:
    """The removal of a segment may fail to reach the disk when later commits do."""

    def put_and_fold(value: bytes) -> None:
        with store.transaction() as txn:
            txn.put(b"ythe key", value)
        store.fold()

    for number in range(20):  # from now on LMDB reuses pages, and its commits need no commit of ext4's journal
        put_and_fold(b"%d" % number)
    with store.transaction() as txn:
        txn.put(b"ythe key", b"old")
    store.sync()
    store.fold()
    for number in range(3):
        put_and_fold(b"new %d" % number)
    with after_power_loss(disk, tmp_path, "lost") as path:
        assert os.listdir(path / "journal"), "the removed segment did not come back, so this proves nothing"
        with Store(path, QUIET) as lost:
            assert lost.catalog.get(b"ythe key") == b"new 2"
        expect(path, {})


def test_what_a_killed_owner_wrote_is_synced_by_the_next(disk: Disk, tmp_path: Path) -> None:
    path = disk.path / "store"
    command = [sys.executable, "-c", WRITE_AND_WAIT, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        said = dict(line.split() for line in iter(owner.stdout.readline, "done\n"))
        owner.kill()
    there = {bytes.fromhex(digest): bytes.fromhex(data) for digest, data in said.items()}
    with Store(path, QUIET) as store:
        assert store.recovered
        store.sync()
        with after_power_loss(disk, tmp_path, "lost") as lost:
            expect(lost, there)


def test_nobody_returns_from_a_sync_before_it_is_done(disk: Disk, store: Store, tmp_path: Path) -> None:
    """Neither does a thread that finds another one syncing already."""
    contents = {put(store, data): data for data in (os.urandom(400_000) for _ in range(60))}
    barrier, first = threading.Barrier(6), threading.Lock()

    def sync() -> None:
        barrier.wait()
        store.sync()
        if first.acquire(blocking=False):
            with after_power_loss(disk, tmp_path, "lost") as path:
                expect(path, contents)

    in_threads(*[sync] * 6)


def test_compaction_leaves_every_object_somewhere(
    disk: Disk, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    contents = {put(store, data): data for data in (os.urandom(3000) for _ in range(120))}
    store.sync()
    kept = dict(list(contents.items())[::5])
    for digest in contents.keys() - kept.keys():
        delete(store, digest)
    store.sync()
    places = {digest: record(store, digest).place for digest in kept}
    store.compact()
    assert places != {digest: record(store, digest).place for digest in kept}
    with after_power_loss(disk, tmp_path, "lost") as path:
        expect(path, kept)


# --- random instants --------------------------------------------------------------------------------------------------


def _settled(lines: list[str]) -> tuple[set[str], set[str]]:
    """Tags that were made, and those whose removal was at least begun."""
    made = {line.split()[3] for line in lines if line.startswith("done make")}
    removed = {line.split()[3] for line in lines if line.startswith("begin remove")}
    return made, removed


def _synced(lines: list[str]) -> tuple[set[str], set[str]]:
    """Tags that must be there, and tags that must not: what was acknowledged before a sync that returned."""
    begun: dict[str, int] = {}
    upto = 0
    for position, line in enumerate(lines):
        stage, act, _, tag = line.split()
        if act == "sync":
            if stage == "begin":
                begun[tag] = position
            else:
                upto = max(upto, begun[tag])
    made, _ = _settled(lines[:upto])
    gone = {line.split()[3] for line in lines[:upto] if line.startswith("done remove")}
    return made - _settled(lines)[1], gone


def test_at_random_instants_of_four_writing_threads(
    disk: Disk, tmp_path: Path, chosen: random.Random, caplog: pytest.LogCaptureFixture
) -> None:
    lines: list[str] = []
    covered = 0
    with writers() as server:
        pid = server.start(disk.path / "store", 0, ("object", "file"))
        try:
            for instant in range(25):
                lines += server.lines(chosen.randrange(1, 60))
                stop(pid)
                lines += server.said()
                with after_power_loss(disk, tmp_path, f"lost{instant}") as path:
                    covered += _check(path, lines)
                os.kill(pid, signal.SIGCONT)
        finally:
            os.kill(pid, signal.SIGKILL)
            server.finish()
    assert covered > 20, "hardly anything was synced, so this proves nothing"


def _check(path: Path, lines: list[str]) -> int:
    report = run(path, repair=True)
    assert report.exit_code <= 1, [finding for finding in report.findings if not finding.repaired]
    assert run(path).exit_code == 0
    kinds = {line.split()[3]: line.split()[2] for line in lines if line.startswith("begin make")}
    there, gone = _synced(lines)
    with Store(path, OPTIONS) as store:
        for tag, kind in kinds.items():
            digest = blake3(content(tag)).digest()
            if kind == "file":
                data = tree.read(store, tag.encode())
            else:
                data = store.objects.get(digest) if store.objects.exists(digest) else None
            assert data in (None, content(tag)), f"{kind} {tag} has wrong bytes"
            assert data is not None or tag not in there, f"{kind} {tag} was synced and is lost"
            assert data is None or tag not in gone, f"{kind} {tag} was removed, that was synced, and it is back"
    return len(there)
