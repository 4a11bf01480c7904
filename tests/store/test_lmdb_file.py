"""The care of LMDB's file: a catalog is read ahead when it is opened."""

from __future__ import annotations

import mmap
import os
import subprocess
from pathlib import Path

import pytest

from kcachefs.store.lmdb_file import make_lmdb, open_lmdb
from tests.waiting import until

RECORDS = 20_000


def resident_pages(path: Path) -> int:
    """How many pages of a file the kernel has in memory."""
    done = subprocess.run(["fincore", "-n", "-o", "PAGES", str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_a_catalog_is_read_ahead_when_it_is_opened(disk_path: Path) -> None:
    make_lmdb(disk_path / "catalog", ((b"n%08d" % number, os.urandom(64)) for number in range(RECORDS)))
    data = disk_path / "catalog" / "data.mdb"
    with data.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    all_pages, before = data.stat().st_size // mmap.PAGESIZE, resident_pages(data)
    if before > all_pages // 10:
        pytest.skip("this filesystem keeps everything in memory")

    def pages_after_opening() -> int:
        with open_lmdb(disk_path / "catalog", 1 << 30):
            return resident_pages(data)

    # Opened again and again: other tests have the kernel drop everything that it caches. Opening alone reads few pages.
    until(lambda: pages_after_opening() > all_pages * 9 // 10, "the disk was asked for the whole catalog")
