"""A really full disk, at every kind of write: a clear ENOSPC, nothing acknowledged is lost, and freeing space helps."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kcachefs.errors import NoSpace, errno_of, exit_code_of, or_no_space
from kcachefs.store import ContentStore, Options, Store, objects
from kcachefs.store.fsck import run
from kcachefs.store.journal import RESERVE
from kcachefs.store.slots import SLOT_SIZE
from tests.disks import Disk, ext4, need_root, tmpfs
from tests.store import tree
from tests.store.objects import delete, put

pytestmark = need_root

ROOT = Path(__file__).parents[2]
OPTIONS = Options(background=False, volume_size=256 << 10)
_CHANCE = random.Random(os.environ["KCACHEFS_SEED"])


@pytest.fixture(autouse=True)
def chance_of_its_own(request: pytest.FixtureRequest, seed: int) -> None:
    """Whichever tests came before. A process that a test starts begins with the seed alone: with other noise."""
    _CHANCE.seed(f"{seed} {request.node.name}")


def noise(number: int, size: int = 3000) -> bytes:
    """Bytes that do not shrink, others at each call."""
    return number.to_bytes(8, "big") * 4 + _CHANCE.randbytes(size)


def until_full(act: Callable[[int], object]) -> NoSpace:
    """Do something again and again until the disk is full; returns the error, which must be NoSpace."""

    def act_on() -> None:
        for number in range(100_000):
            act(number)

    with pytest.raises(NoSpace) as caught:
        act_on()
    assert errno_of(caught.value) == errno.ENOSPC
    assert exit_code_of(caught.value) == 5
    assert "full" in str(caught.value)
    return caught.value


class Kept:
    """What was acknowledged, to compare with what is there."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.objects: dict[bytes, bytes] = {}
        self.records: list[bytes] = []

    def put(self, data: bytes) -> None:
        self.objects[put(self.store, data)] = data

    def put_record(self, number: int) -> None:
        """A record of 2,000 bytes: it is in the journal and the catalog alone."""
        key = b"y%d" % number
        with self.store.transaction() as txn:
            txn.put(key, bytes(2000))
        self.records.append(key)

    def has_records(self) -> bool:
        return all(self.store.catalog.get(key) == bytes(2000) for key in self.records)

    def check(self, path: Path) -> None:
        """All of it is there, in the open store, in a reopened one, and fsck finds nothing."""
        self.compare(self.store)
        self.store.close()
        with Store(path, OPTIONS) as again:
            self.compare(again)
            again.objects.get(put(again, b"works again" * 1000))
            tree.make_root(again)
            tree.create(again, b"file", b"works again" * 100)
        report = run(path)
        assert report.exit_code == 0, report.findings

    def compare(self, store: Store) -> None:
        """All of it is there and verifies."""
        for digest, data in self.objects.items():
            assert store.objects.verify(digest)
            assert store.objects.get(digest) == data


def test_appending_to_a_volume(small_disk: Disk) -> None:
    path = small_disk.path / "store"
    kept = Kept(Store(path, OPTIONS))
    kept.put(noise(0))
    small_disk.fill(leave=1 << 20)
    until_full(lambda number: kept.put(noise(number)))
    assert len(kept.objects) > 100
    small_disk.make_room()
    kept.put(noise(1))
    kept.check(path)


def test_tries_in_vain_take_neither_volumes_nor_room(small_disk: Disk) -> None:
    with Store(small_disk.path / "store", OPTIONS) as store:
        digest = put(store, noise(0, 60_000))
        store.fold()
        small_disk.fill()
        before = store.volumes.numbers(), store.volumes.size(store.volumes.active), store.catalog.unfolded
        for number in range(20):
            with pytest.raises(NoSpace):
                store.objects.stage(noise(number, 60_000))
        assert (store.volumes.numbers(), store.volumes.size(store.volumes.active), store.catalog.unfolded) == before
        delete(store, digest)
        small_disk.make_room()
        assert store.objects.get(put(store, b"works again")) == b"works again"


@pytest.mark.parametrize("how", ["collected", "opened again"])
def test_volumes_in_which_nothing_is_alive_go(small_disk: Disk, how: str) -> None:
    path = small_disk.path / "store"
    with Store(path, OPTIONS) as store:
        digest = put(store, noise(0))
        for _ in range(3):
            store.objects.ledger.retire()
        if how == "collected":
            store.compact()
        assert len(store.volumes.numbers()) == (2 if how == "collected" else 4)
    with Store(path, OPTIONS) as store:
        store.fold()
        assert len(store.volumes.numbers()) == 2  # the one with the object, and the active one
        assert store.objects.verify(digest)
    assert run(path).exit_code == 0


def test_a_disk_without_inodes_is_not_called_full(tmp_path: Path) -> None:
    with tmpfs(tmp_path, inodes=40) as disk, Store(disk.path / "store", OPTIONS) as store:
        for number in range(os.statvfs(disk.path).f_favail):
            (disk.path / f"{number}").touch()
        with pytest.raises(NoSpace, match="has no inodes left"):
            store.objects.stage(noise(0))


def test_a_volume_for_a_large_object(small_disk: Disk) -> None:
    path = small_disk.path / "store"
    kept = Kept(Store(path, OPTIONS))
    kept.put(noise(0))
    small_disk.fill(leave=3 << 20)
    error = until_full(lambda number: kept.put(noise(number, 1 << 20)))
    assert ".vol" in str(error)
    assert kept.store.volumes.incoming() == []
    small_disk.make_room()
    kept.put(noise(1, 1 << 20))
    kept.check(path)


def test_a_stream_into_a_volume_of_its_own(small_disk: Disk) -> None:
    path = small_disk.path / "store"
    with ContentStore(path) as store:
        digest = store.put(noise(0))
        with pytest.raises(NoSpace), open("/dev/urandom", "rb") as endless:
            store.put(endless)
        assert store.get(digest)
        assert store.statistics().objects == 1
        with open("/dev/urandom", "rb") as endless:
            assert store.put(endless.read(9 << 20))
    assert run(path).exit_code == 0


def test_appending_to_the_journal(small_disk: Disk) -> None:
    path = small_disk.path / "store"
    kept = Kept(Store(path, OPTIONS))
    kept.put(noise(0))
    small_disk.fill()
    error = until_full(kept.put_record)
    assert ".log" in str(error)
    assert kept.records, "the space reserved for the journal was not there"
    small_disk.make_room()
    kept.put_record(999_999)
    assert kept.has_records()
    kept.store.fold()
    assert kept.has_records()
    kept.check(path)


def test_what_free_slots_keep_is_the_journals_when_the_disk_is_full(small_disk: Disk) -> None:
    path = small_disk.path / "store"
    kept = Kept(Store(path, OPTIONS))
    slots = [kept.store.slots.take() for _ in range(4)]
    for slot in slots:
        kept.store.slots.write(slot, 0, os.urandom(SLOT_SIZE))
    for slot in slots:
        kept.store.slots.free(slot)
    small_disk.fill()
    until_full(kept.put_record)
    assert len(kept.records) * 2000 > RESERVE + 2 * SLOT_SIZE
    small_disk.make_room()
    assert kept.has_records()
    kept.check(path)


def test_folding_into_lmdb(small_disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    path = small_disk.path / "store"
    kept = Kept(Store(path, OPTIONS))
    with kept.store.transaction() as txn:
        for number in range(10_000):
            txn.put(b"y%06d" % number, bytes(200))
    small_disk.fill()
    with pytest.raises(NoSpace, match="full"):
        kept.store.fold()
    assert kept.store.catalog.get(b"y009999") == bytes(200)
    kept.store.close()  # does not raise: what cannot be folded stays in the journal
    assert "left in the journal" in caplog.text
    small_disk.make_room()
    kept.store = Store(path, OPTIONS)
    assert all(kept.store.catalog.get(b"y%06d" % number) == bytes(200) for number in range(10_000))
    kept.check(path)


def test_the_spool(small_disk: Disk) -> None:
    path = small_disk.path / "store"
    kept = Kept(Store(path, OPTIONS))
    tree.make_root(kept.store)
    small_disk.fill(leave=200 << 10)
    written: list[bytes] = []

    def spool(number: int) -> None:
        try:
            tree.create_spooled(kept.store, b"%d" % number, b"%d" % number * 5000)
        except OSError as error:
            raise or_no_space(error, "the spool") from error
        written.append(b"%d" % number)

    until_full(spool)
    assert written
    small_disk.make_room()
    spool(999_999)
    assert all(tree.read(kept.store, name) == name * 5000 for name in written)
    kept.check(path)


def test_making_a_store(small_disk: Disk) -> None:
    small_disk.fill()
    with pytest.raises(NoSpace, match="full"):
        Store(small_disk.path / "store", OPTIONS)
    small_disk.make_room()
    Kept(Store(small_disk.path / "store", OPTIONS)).check(small_disk.path / "store")


def test_opening_a_store_that_was_closed(small_disk: Disk) -> None:
    """Its header has to be written, to notice a power cut later. That needs space, and the error says so."""
    path = small_disk.path / "store"
    kept = Kept(Store(path, OPTIONS))
    kept.put(noise(0))
    kept.store.close()
    small_disk.fill()
    with pytest.raises(NoSpace, match=str(path)):
        Store(path, OPTIONS)
    small_disk.make_room()
    kept.store = Store(path, OPTIONS)
    kept.check(path)


WRITE_AND_WAIT = """
import sys
from pathlib import Path
from kcachefs.store import Store
from tests.store.test_faults_full_disk import OPTIONS, noise
from tests.store.objects import put

store = Store(Path(sys.argv[1]), OPTIONS)
for number in range(400):
    data = noise(number)
    print(put(store, data).hex(), data.hex(), flush=True)
print("done", flush=True)
sys.stdin.read()
"""


def test_opening_a_store_whose_owner_was_killed_and_making_room_by_deleting(small_disk: Disk) -> None:
    """A daemon that dies on a full disk must come up again, and must be able to evict."""
    path = small_disk.path / "store"
    command = [sys.executable, "-c", WRITE_AND_WAIT, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        said = dict(line.split() for line in iter(owner.stdout.readline, "done\n"))
        small_disk.fill()
        owner.kill()
    kept = Kept(Store(path, OPTIONS))
    assert kept.store.recovered
    kept.objects = {bytes.fromhex(digest): bytes.fromhex(data) for digest, data in said.items()}
    kept.compare(kept.store)
    for digest in list(kept.objects)[:350]:
        assert delete(kept.store, digest)
        del kept.objects[digest]
    kept.store.fold()
    kept.store.compact()
    for number in range(100):
        kept.put(noise(number))  # in the space that the store freed
    small_disk.make_room()
    kept.check(path)


@pytest.mark.parametrize("make", [ext4, tmpfs])
@pytest.mark.slow
def test_every_size_of_what_is_left(
    tmp_path: Path, make: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever write fills the disk, what was acknowledged before it is there afterwards."""
    monkeypatch.setattr(objects, "SHARED_MAX", 270 << 10)  # smaller ones have two frames and volumes of their own too
    for step in range(24):
        with make(tmp_path, f"disk{step}", 16) as disk:  # type: ignore[attr-defined]
            path = disk.path / "store"
            kept = Kept(Store(path, OPTIONS))
            tree.make_root(kept.store)
            kept.put(noise(0))
            kept.store.fold()
            disk.fill(leave=step * 12_000)
            names = {}
            failed = in_a_row = 0
            for number in range(120):
                try:
                    kept.put(noise(number, 500 if number % 7 else 290 << 10))
                    names[b"f%d" % number] = noise(number)
                    tree.create(kept.store, b"f%d" % number, names[b"f%d" % number])
                    if number % 5 == 0:
                        kept.store.fold()
                    in_a_row = 0
                except NoSpace:
                    failed += 1
                    in_a_row += 1
                    if b"f%d" % number in names and tree.read(kept.store, b"f%d" % number) is None:
                        del names[b"f%d" % number]
                    if in_a_row == 20:
                        break
            assert failed
            disk.make_room()
            for name, data in names.items():
                assert tree.read(kept.store, name) == data
            kept.check(path)


def test_a_store_that_rested_deletes_on_a_full_disk(small_disk: Disk) -> None:
    path = small_disk.path / "store"
    with Store(path, OPTIONS) as store:
        digests = [put(store, noise(number)) for number in range(3000)]
    with Store(path, OPTIONS) as store:  # its catalog was written anew: no page of it is free
        put(store, b"something")
        store.fold()
        store.rest()
        small_disk.fill()
        store.keep_reserve()
        for number, digest in enumerate(sorted(digests)[::60]):
            assert delete(store, digest)
            if number == 49:
                store.fold()
        store.fold()
        assert not store.catalog.statistics()["pending"]


def close_on_a_full_disk(path: Path) -> None:
    """For a child process: the last thing before the close is that the disk is full to its last block."""
    store = Store(path / "store", OPTIONS)
    digests = [put(store, b"%d" % number) for number in range(3000)]
    store.fold()
    for digest in digests[100:]:
        delete(store, digest)
    store.fold()
    assert store.catalog.statistics()["free_bytes"] > 100_000
    store.catalog._journal.give_reserve_back()
    Disk(path).fill()
    store.close()


@pytest.mark.parametrize("make", [ext4, tmpfs])
def test_a_catalog_is_not_written_anew_on_a_full_disk(
    make: Callable[..., AbstractContextManager[Disk]], tmp_path: Path
) -> None:
    with make(tmp_path) as disk:
        program = f"from tests.store.test_faults_full_disk import *; close_on_a_full_disk(Path({str(disk.path)!r}))"
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done
        disk.make_room()
        report = run(disk.path / "store")
        assert report.exit_code == 0, report.findings
        assert report.objects == 100
