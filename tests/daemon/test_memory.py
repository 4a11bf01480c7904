"""The daemon's memory stays small however large the catalog is, and whatever is written and evicted."""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from kcachefs.daemon import memory
from kcachefs.store import Options, Store
from tests.core.policies.mounts import each_engine, mounted
from tests.engines.callers import Child
from tests.waiting import until

QUOTA = 32 << 20
ENTRIES = 15
"""Entries that each of four writers makes: four times the quota together."""
PRIVATE_MAX = 64 << 20


def test_a_catalog_that_was_read_from_end_to_end_is_let_go_of_and_still_there(tmp_path: Path) -> None:
    with Store(tmp_path / "store", Options(background=False)) as store:
        for thousand in range(40):
            with store.transaction() as txn:
                for number in range(1000):
                    txn.put(b"m%d.%d" % (thousand, number), bytes(500))
        store.fold()
        database = tmp_path.resolve() / "store" / "catalog" / "data.mdb"
        before = memory.resident_file_bytes()
        assert sum(1 for _ in store.catalog.walk(b"m")) >= 40_000
        grown = memory.resident_file_bytes()
        assert grown - before > 10 << 20
        assert not memory.trim(database, limit=grown + (1 << 20))
        assert memory.trim(database, limit=grown - 1)
        assert memory.resident_file_bytes() < grown - (10 << 20)
        assert store.catalog.get(b"m7.7") == bytes(500)


def write_entries(root: Path, writer: int) -> int:
    """Each of six files, from a hundred bytes to four megabytes, none of which can be compressed."""
    chosen = random.Random(writer)
    for number in range(ENTRIES):
        folder = root / "triton" / f"K{writer}.{number}"
        folder.mkdir()
        for part in range(6):
            data = chosen.randbytes(int(10 ** chosen.uniform(2, 6.6)))
            (folder / f"tmp.{part}").write_bytes(data)
            (folder / f"tmp.{part}").rename(folder / f"part{part}")
            assert (folder / f"part{part}").read_bytes() == data
    return ENTRIES


def private_bytes(pid: int) -> int:
    """What of a process's resident memory is not from files."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) << 10


@each_engine
def test_four_writers_near_the_quota_leave_the_worker_small(engine: str) -> None:
    with mounted(engine, "--max-size", str(QUOTA), "--min-free", "1MiB") as mount, ExitStack() as running:
        worker, seen = mount.daemon()[1], list[int]()
        writers = [
            running.enter_context(Child(partial(write_entries, mount.mountpoint, number))) for number in range(4)
        ]
        for writer in writers:
            while not writer.is_ready(0.2):
                seen.append(private_bytes(worker))
            assert writer.result() == ENTRIES
        assert worker == mount.daemon()[1]
        # Where a busy machine keeps several large writes waiting, their bytes are in memory meanwhile.
        assert sorted(seen)[len(seen) // 2] < PRIVATE_MAX
        assert max(seen) < PRIVATE_MAX * 1.5
        until(lambda: private_bytes(worker) < PRIVATE_MAX, "the worker to give memory back")


def test_memory_that_was_allocated_and_freed_is_given_back() -> None:
    """In a process of its own: what this one has freed before could be used again."""
    subprocess.run([sys.executable, "-c", _ALLOCATE_AND_FREE], cwd=Path(__file__).parents[2], check=True)


def test_memory_that_is_freed_after_a_peak_is_given_back() -> None:
    """Whatever the process held when free memory was given back for the last time."""
    subprocess.run([sys.executable, "-c", _FREE_AFTER_A_PEAK], cwd=Path(__file__).parents[2], check=True)


_FREE_AFTER_A_PEAK = """
from kcachefs.daemon import memory
heap, before = memory.Heap(), memory.resident_private_bytes()
blocks = [b"x" * (32 << 10) for _ in range(2000)]
heap.trim()
assert memory.resident_private_bytes() - before > 40 << 20
kept = blocks[::100]
del blocks
assert any(heap.trim() for _ in range(memory.LOOK_EVERY))
assert memory.resident_private_bytes() - before < 20 << 20
assert not any(heap.trim() for _ in range(memory.LOOK_EVERY))
assert len(kept) == 20
"""


_ALLOCATE_AND_FREE = """
from kcachefs.daemon import memory
heap, before = memory.Heap(), memory.resident_private_bytes()
blocks = [b"x" * (32 << 10) for _ in range(2000)]
grown = memory.resident_private_bytes()
assert grown - before > 40 << 20
kept = blocks[::100]
del blocks
assert heap.trim()
assert memory.resident_private_bytes() < grown - (40 << 20)
assert not heap.trim()
assert len(kept) == 20
"""
