"""Damage anywhere in a store's files: reads are right or refused, and fsck makes a clean store of what is left."""

from __future__ import annotations

import logging
import multiprocessing
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kcachefs.errors import KcachefsError
from kcachefs.store import Options, Store
from kcachefs.store.fsck import run
from tests.store import damage, tree
from tests.waiting import until

OPTIONS = Options(background=False, volume_size=32 << 10)
CONTENTS = {b"file-%d" % number: (b"kernel %d " % number) * (number % 40 * 30 + 1) for number in range(150)}
DAMAGES = 48


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "store"
    with Store(path, OPTIONS) as store:
        tree.make_root(store)
        for position, (name, data) in enumerate(CONTENTS.items()):
            tree.create(store, name, data)
            if position % 50 == 0:
                store.fold()
    return path


def _read_all(path: Path) -> dict[bytes, bytes]:
    """Whatever can be read of the store. What is damaged raises or is missing."""
    read: dict[bytes, bytes] = {}
    try:
        with Store(path, OPTIONS) as store:
            for name in CONTENTS:
                try:
                    if (data := tree.read(store, name)) is not None:
                        read[name] = data
                except (KcachefsError, OSError):
                    continue
    except (KcachefsError, OSError):
        pass
    return read


def repaired(path: Path) -> dict[bytes, bytes]:
    report = run(path, repair=True)
    assert report.exit_code <= 1, [finding for finding in report.findings if not finding.repaired]
    assert run(path).exit_code == 0
    return _read_all(path)


def _answer(work: Callable[[Path], object], path: Path, results: multiprocessing.SimpleQueue[object]) -> None:
    logging.disable(logging.CRITICAL)
    results.put(work(path))


def elsewhere(work: Callable[[Path], dict[bytes, bytes]], path: Path) -> dict[bytes, bytes] | None:
    """Do it in another process; None if that died, as LMDB may on garbled pages."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    results: multiprocessing.SimpleQueue[dict[bytes, bytes]] = context.SimpleQueue()
    process = context.Process(target=_answer, args=(work, path, results))
    process.start()
    try:
        until(lambda: not results.empty() or not process.is_alive(), "it has answered or ended")
        return None if results.empty() else results.get()
    finally:
        process.kill()  # what has answered has nothing left to do
        process.join()


@pytest.mark.slow
@pytest.mark.parametrize("file", ["catalog", "volume"])
@pytest.mark.parametrize("way", damage.WAYS)
def test_damage_at_a_random_place(whole: Path, in_memory: Path, file: str, way: str, seed: int) -> None:
    chosen = random.Random(f"{seed} {file} {way}")
    harmed = 0
    for number in range(5 * DAMAGES // 6):
        if harmed and number >= DAMAGES // 6:
            break  # a place in which nothing is kept may be hit a few times in a row
        path = in_memory / f"store-{number}"
        shutil.copytree(whole, path)
        target = path / "catalog" / "data.mdb" if file == "catalog" else chosen.choice(volume_files(path))
        size = target.stat().st_size
        length = min(size, chosen.choice((1, 50, 4096)))
        damage.WAYS[way](target, chosen.randrange(size - length + 1), length)
        for read in (elsewhere(_read_all, path), elsewhere(repaired, path)):
            for name, data in (read or {}).items():
                assert data == CONTENTS[name], f"{name!r} has wrong bytes"
        assert read is not None, "fsck crashed"
        harmed += len(read) < len(CONTENTS)
        shutil.rmtree(path)
    assert harmed or way == "flipped", "nothing was damaged, so this proves nothing"


def test_a_damaged_branch_key_costs_no_records(whole: Path, in_memory: Path) -> None:
    """Such a tree can be walked, but searching for the records below the key fails: it has to be made again."""
    page, is_branch = 4096, 1
    original = (whole / "catalog" / "data.mdb").read_bytes()
    branches = [start for start in range(2 * page, len(original), page) if original[start + 10] & is_branch]
    mended = 0
    for number, place in enumerate(start + page - back for start in branches for back in range(40, 1000, 160)):
        path = in_memory / f"store-{number}"
        shutil.copytree(whole, path)
        damage.flip(path / "catalog" / "data.mdb", place, 1)
        read = elsewhere(repaired, path)
        assert read is not None, f"fsck crashed on damage at {place}"
        assert read.items() <= CONTENTS.items()
        mended += read == CONTENTS
        shutil.rmtree(path)
    assert mended, "no key was hit, so this proves nothing"


def volume_files(path: Path) -> list[Path]:
    return sorted((path / "volumes").iterdir())
