"""Files whose objects are repacked: entries, namespaces and users are charged for what is stored now."""

from __future__ import annotations

from pathlib import Path

from kcachefs.core.administration import Administration
from kcachefs.core.limits import Limits
from tests.core.trees import ROOT, find, opened, user, write
from tests.store.test_repacking import text

ALICE, BOB = 1000, 1001


def test_entries_and_users_are_charged_for_what_is_stored_after_repacking(tmp_path: Path) -> None:
    limits = Limits(max_size_per_uid=1 << 30, grace=0.0, min_free=0)
    with opened(tmp_path / "store", limits) as fs:
        for uid in (ALICE, BOB):
            for key in range(6):
                write(fs, f"triton/{uid}-{key}/kernel.ptx", text(key, 30_000), user(uid))
        write(fs, "triton/own/kernel.ptx", text(77, 30_000), user(ALICE))
        fs.settle()
        before = {info.path: info.stored_bytes for info in Administration(fs).ls(names=False)}
        assert fs.quotas is not None
        accounts = fs.quotas.accounts
        accounts.count(60)
        held = accounts.totals()

        for _ in fs.store.repack(0):
            pass

        after = {info.path: info.stored_bytes for info in Administration(fs).ls(names=False)}
        assert after.keys() == before.keys()
        assert all(after[path] < before[path] for path in before)
        assert sum(after.values()) == fs.table.counts(find(fs, "triton")).stored
        assert accounts.totals() == accounts.recounted()
        assert all(accounts.total(uid) < held[uid] for uid in (ALICE, BOB))
        fs.unlink(ROOT, find(fs, f"triton/{BOB}-0"), b"kernel.ptx")
        for key in range(6):
            assert fs.files.read(find(fs, f"triton/{ALICE}-{key}/kernel.ptx"), 0, 1 << 20) == text(key, 30_000)
        assert accounts.totals() == accounts.recounted()


def test_a_file_that_is_evicted_or_written_meanwhile_is_left_as_it_is_then(tmp_path: Path) -> None:
    with opened(tmp_path / "store", Limits(grace=0.0, min_free=0)) as fs:
        for key in range(12):
            write(fs, f"triton/{key}/kernel.ptx", text(key, 8000))
        fs.settle()
        for number, _ in enumerate(fs.store.repack(0)):
            if number % 3 == 0 and number < 18:
                Administration(fs).evict([f"triton/{number // 3}"])
            elif number % 3 == 1 and number < 18:
                fs.write(find(fs, f"triton/{6 + number // 3}/kernel.ptx"), 0, b"changed")
        fs.settle()
        for key in range(6, 12):
            read = fs.files.read(find(fs, f"triton/{key}/kernel.ptx"), 0, 1 << 20)
            assert read == b"changed" + text(key, 8000)[7:]
