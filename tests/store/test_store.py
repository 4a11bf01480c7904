"""The store as a directory: who may open it, what opening changes, what closing leaves behind."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcachefs.errors import (
    KcachefsError,
    NoSpace,
    NotAStore,
    StoreAccessError,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreReadOnly,
    StoreVersionError,
    exit_code_of,
)
from kcachefs.store import Options, Store
from kcachefs.store import store as store_module
from kcachefs.store.catalog import Catalog
from kcachefs.store.fsck import run
from kcachefs.store.header import boot_id
from kcachefs.store.object_records import META_ACTIVE, META_VOLUME, TOTALS_KEY, volume_key
from kcachefs.store.places import HEADER
from kcachefs.store.records import pack_number, slot_key, spool_key
from tests.disks import ext4, need_root
from tests.store import damage
from tests.store.objects import delete, put, record
from tests.waiting import until

SMALL = Options(background=False, volume_size=64 << 10)


def snapshot(path: Path) -> dict[str, tuple[object, ...]]:
    """Everything about every file: two of these differ if anything was touched."""
    seen: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(path):
        for name in [".", *folders, *files]:
            file = Path(folder) / name
            status = file.lstat()
            body = hashlib.sha256(file.read_bytes()).hexdigest() if name in files else ""
            seen[str(file)] = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino, status.st_uid, body)
    return seen


def filled(path: Path) -> bytes:
    """A closed store with an object in it."""
    with Store(path, SMALL) as store:
        return put(store, b"a kernel" * 100)


# --- who may open it --------------------------------------------------------------------------------------------------


def test_a_second_opener_is_told_who_the_first_is(store: Store) -> None:
    with pytest.raises(StoreBusy, match=rf"process {os.getpid()} \("):
        Store(store.path)
    with pytest.raises(StoreBusy, match="unmount it, or wait"):
        run(store.path)


def test_the_lock_goes_with_its_holder(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    with Store(tmp_path / "store"):
        pass
    with Store(tmp_path / "store"):
        pass


def test_of_many_processes_that_make_a_store_at_once_one_gets_it(tmp_path: Path) -> None:
    opened: list[Store] = []
    refused: list[StoreBusy] = []
    barrier = threading.Barrier(6)

    def attempt() -> None:
        barrier.wait()
        try:
            opened.append(Store(tmp_path / "store", SMALL))
        except StoreBusy as error:
            refused.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(opened), len(refused)) == (1, 5)
    put(opened[0], b"x")
    opened[0].close()
    assert run(tmp_path / "store").exit_code == 0


def refusal(path: Path, kind: type[KcachefsError], *, create: bool = True) -> str:
    """The line with which opening is refused; nothing in the directory is touched."""
    before = snapshot(path) if path.is_dir() else None
    with pytest.raises(kind) as caught:
        Store(path, Options(create=create))
    assert (snapshot(path) if path.is_dir() else None) == before
    line = str(caught.value)
    assert "\n" not in line
    assert str(path) in line
    return line


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    header = json.loads((tmp_path / HEADER).read_bytes())
    (tmp_path / HEADER).write_text(json.dumps({**header, "format": 99}))
    assert "upgrade kcachefs" in refusal(tmp_path, StoreVersionError)
    (tmp_path / HEADER).write_text(json.dumps({**header, "lmdb": "7.0.0"}))
    assert "7.0.0" in refusal(tmp_path, StoreVersionError)


def test_a_directory_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    assert "not a kcachefs store" in refusal(tmp_path, NotAStore)
    assert "is a file" in refusal(tmp_path / "thesis.tex", NotAStore)
    assert "no store here" in refusal(tmp_path / "absent", NotAStore, create=False)
    (tmp_path / "empty").mkdir()
    assert "no store here" in refusal(tmp_path / "empty", NotAStore, create=False)
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"kcachefs": "store"', '{"format": 1}', "\xff\xfe", "0"])
def test_a_damaged_header_is_refused_and_points_to_fsck(tmp_path: Path, text: str) -> None:
    filled(tmp_path)
    (tmp_path / HEADER).write_bytes(text.encode("latin-1"))
    assert "fsck --repair" in refusal(tmp_path, NotAStore)


def test_a_header_of_something_else_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / HEADER).write_text('{"kcachefs": "shop", "format": 1}')
    refusal(tmp_path, NotAStore)


def _as_nobody(path: str, results: multiprocessing.SimpleQueue[tuple[str, str, int]]) -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    try:
        Store(path).close()
        results.put(("opened", "", 0))
    except Exception as error:
        results.put((type(error).__name__, str(error), exit_code_of(error)))


def open_as_nobody(path: Path) -> tuple[str, str, int]:
    """What another user gets who opens the store: the error's name, its message, its exit code."""
    context = multiprocessing.get_context("forkserver")
    results: multiprocessing.SimpleQueue[tuple[str, str, int]] = context.SimpleQueue()
    process = context.Process(target=_as_nobody, args=(str(path), results))
    process.start()
    answer = results.get()
    process.join()
    return answer


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that every user can reach, unlike pytest's own."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@need_root
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_another_user_is_refused(open_folder: Path, mode: int) -> None:
    path = open_folder / "store"
    filled(path)
    path.chmod(mode)
    if mode == 0o755:
        for folder, folders, files in os.walk(path):
            for name in folders:
                os.chmod(os.path.join(folder, name), 0o755)
            for name in files:
                os.chmod(os.path.join(folder, name), 0o644)
    before = snapshot(path)
    name, line, code = open_as_nobody(path)
    assert (name, code) == (StoreAccessError.__name__, 6)
    assert str(path) in line
    assert "use another --store" in line
    assert snapshot(path) == before
    assert open_as_nobody(open_folder / "another")[0] == StoreAccessError.__name__
    assert os.listdir(open_folder) == ["store"]


@need_root
def test_a_read_only_disk_is_refused(tmp_path: Path) -> None:
    with ext4(tmp_path) as disk:
        filled(disk.path / "store")
        disk.remount_read_only()
        assert "read-only" in refusal(disk.path / "store", StoreReadOnly)
        with pytest.raises(StoreReadOnly, match="read-only"):
            Store(disk.path / "another")


# --- opening and closing ----------------------------------------------------------------------------------------------


def test_a_kill_while_a_store_is_made_leaves_a_directory_that_can_become_one(tmp_path: Path) -> None:
    for name in ("catalog", "journal"):
        (tmp_path / name).mkdir()
    (tmp_path / (HEADER + ".new")).write_text("{")
    filled(tmp_path)
    assert run(tmp_path).exit_code == 0


def test_the_boot_is_recorded_while_the_store_is_open(tmp_path: Path) -> None:
    def boot() -> str:
        return str(json.loads((tmp_path / HEADER).read_bytes())["boot"])

    with Store(tmp_path) as store:
        assert boot() == boot_id()
        assert not store.lost_power
    assert boot() == ""
    header = json.loads((tmp_path / HEADER).read_bytes())
    (tmp_path / HEADER).write_text(json.dumps({**header, "boot": "another"}))
    with Store(tmp_path) as store:
        assert store.lost_power
    assert run(tmp_path).exit_code == 0
    with Store(tmp_path) as store:
        assert store.lost_power  # until somebody has dealt with it
        store.power_loss_settled()
    with Store(tmp_path) as store:
        assert not store.lost_power


def test_a_closed_store_says_so_and_leaves_nothing_unfolded(tmp_path: Path) -> None:
    store = Store(tmp_path, SMALL)
    digest = put(store, b"a kernel" * 100)
    store.close()
    store.close()
    assert os.listdir(tmp_path / "journal") == []
    uses: list[Callable[[], object]] = [
        lambda: put(store, b"x"),
        lambda: delete(store, digest),
        lambda: store.objects.get(digest),
        lambda: store.transaction(),
    ]
    for use in uses:
        with pytest.raises(StoreClosed):
            use()


def test_a_store_at_rest_keeps_no_space_for_future_files(tmp_path: Path) -> None:
    with Store(tmp_path / "store", SMALL) as store:
        slots = [store.slots.take() for _ in range(5)]
        for slot in slots:
            store.slots.write(slot, 0, b"x" * 100_000)
        for slot in slots:
            store.slots.free(slot)
        assert store.slots.allocated_bytes() >= 500_000
    assert (tmp_path / "store" / "spool.arena").stat().st_blocks == 0


def test_a_writer_that_close_interrupts_was_acknowledged_or_is_told(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []

    def write(store: Store, started: threading.Event) -> None:
        try:
            while True:
                acknowledged.append(put(store, os.urandom(500)))
                started.set()
        except (StoreError, OSError):
            return

    for _ in range(10):
        store = Store(tmp_path, SMALL)
        started = threading.Event()
        threads = [threading.Thread(target=write, args=(store, started)) for _ in range(3)]
        for thread in threads:
            thread.start()
        started.wait()
        store.close()
        for thread in threads:
            thread.join()
    with Store(tmp_path, SMALL) as store:
        assert all(store.objects.verify(digest) for digest in acknowledged)
    assert run(tmp_path).exit_code == 0


def test_many_changes_are_folded_early_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "FOLD_SECONDS", 3600.0)
    fold, folds = Catalog.fold, []

    def fold_asked_for_once_more(catalog: Catalog) -> None:
        folds.append(catalog.unfolded)
        store._wake.set()  # by a change that came just before the fold took them all
        fold(catalog)

    store = Store(tmp_path / "store")
    monkeypatch.setattr(Catalog, "fold", fold_asked_for_once_more)
    for number in range(12):
        with store.transaction() as txn:
            txn.put(b"z%d" % number, bytes(100 << 10))
    until(lambda: folds and not store._wake.is_set(), "a fold came")
    assert len(folds) == 1
    assert folds[0] > store_module.FOLD_BYTES
    store.close()


def test_the_background_thread_folds(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        digest = put(store, b"a kernel" * 100)
        until(lambda: not store.catalog.unfolded_keys(), "everything is folded")
        assert store.objects.exists(digest)


@pytest.mark.parametrize("what", ["totals", "next volume", "active", "active volume"])
def test_a_damaged_record_that_everything_needs_is_made_again_at_open(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(tmp_path, SMALL) as store:
        contents = {put(store, data): data for data in (os.urandom(3000) for _ in range(50))}
        key = {
            "totals": TOTALS_KEY,
            "next volume": META_VOLUME,
            "active": META_ACTIVE,
            "active volume": volume_key(store.volumes.active),
        }[what]
        raw = store.catalog.get(key)
        totals = store.totals()
        assert raw is not None
    for place in damage.find_value(tmp_path / "catalog", key + raw):
        damage.flip(tmp_path / "catalog" / "data.mdb", place + len(key), len(raw))
    with Store(tmp_path, SMALL) as store:
        assert "counting everything again" in caplog.text
        assert store.totals() == totals
        more = put(store, b"life goes on" * 100)
        assert all(store.objects.get(digest) == data for digest, data in contents.items())
        for digest in [more, *contents]:
            delete(store, digest)
        assert store.totals().live == 0
    assert run(tmp_path).exit_code == 0


def test_files_that_a_kill_left_are_removed(tmp_path: Path) -> None:
    digest = filled(tmp_path)
    (tmp_path / "volumes" / "000000aa.vol").write_bytes(b"orphan")
    (tmp_path / "incoming" / "000000bb.vol").write_bytes(b"half")
    (tmp_path / "spool" / f"{9:016x}").write_bytes(b"never acknowledged")
    with Store(tmp_path, SMALL) as store:
        assert record(store, digest).volume in store.volumes.numbers()
        assert 0xAA not in store.volumes.numbers()
        assert store.volumes.incoming() == []
        assert store.spool.path(9).stat().st_size == 0
        assert store.spool.take() == 9


def test_used_bytes_are_counted_while_spool_files_go(tmp_path: Path) -> None:
    with Store(tmp_path / "store", Options(background=False)) as store:
        for number in (1, 2):
            fd = store.spool.open(number, create=True)
            os.write(fd, bytes(64 << 10))
            os.close(fd)
        before = store.used_bytes()
        store.spool.path(2).unlink()
        assert store.used_bytes() == before - (64 << 10)


def test_slots_and_spool_files_that_a_full_disk_kept_from_being_freed_are_freed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    with Store(path, Options(background=False)) as store:
        for number in range(4):
            with store.transaction() as txn:
                txn.put(slot_key(store.slots.take()), pack_number(1))
                txn.put(spool_key(number), pack_number(1))
            os.close(store.spool.open(number, create=True))
        store.fold()
        with store.transaction() as txn:
            for number in (1, 3):
                txn.delete(slot_key(number))
                txn.delete(spool_key(number))
        shutil.copytree(path, tmp_path / "killed")

    def refuse(catalog: Catalog) -> None:
        raise NoSpace("the disk is full")

    with monkeypatch.context() as full:
        full.setattr(Catalog, "fold", refuse)
        store = Store(tmp_path / "killed", Options(background=False))
    with store:
        taken = {store.slots.take(), store.slots.take()}
        assert store.spool.take() is None
        store.fold()
        assert sorted([*taken, store.slots.take(), store.slots.take(), 0, 2]) == list(range(6))
        assert {store.spool.take(), store.spool.take(), store.spool.take()} == {1, 3, None}
