"""Fills stores with many files, through the core and without a mount."""

from __future__ import annotations

from pathlib import Path

from kcachefs.core import Filesystem
from kcachefs.core.caller import Caller
from kcachefs.store import Options, Store
from kcachefs.store.inode_numbers import ROOT_INO

_BATCH = 1000

ROOT = Caller(0, 0)


def fill(place: Path, entries: int, files: int, filled: int) -> None:
    """Make Triton entries K00000000, K00000001, …, each with `files` files f0, f1, …, of which `filled` hold bytes.

    No two contents are equal. The other files are empty, like locks and markers.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with Store(place, Options()) as store:
        fs = Filesystem(store)
        triton = fs.lookup(ROOT, ROOT_INO, b"triton") or ROOT_INO
        waiting = 0
        for number in range(entries):
            folder, _ = fs.make(ROOT, triton, name_of(number).encode(), 0o040755)
            for i in range(files):
                ino, _ = fs.create(ROOT, folder, b"f%d" % i, 0o644)
                if i < filled:
                    fs.write(ino, 0, b"kernel %d of %d" % (i, number))
                fs.forget(ino, 1)
            fs.forget(folder, 1)
            waiting += files
            if waiting >= _BATCH:
                waiting = 0
                while fs.sealer.seal_next(0):
                    pass
        fs.settle()


def name_of(number: int) -> str:
    return f"K{number:08d}"
