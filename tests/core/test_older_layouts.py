"""A store whose entries were made when the layouts had coarser ones: they stay what they are, and are counted once."""

from __future__ import annotations

import os
from pathlib import Path

from kcachefs.core import Filesystem
from kcachefs.core.administration import Administration
from kcachefs.core.limits import Limits
from tests.core.older_layouts import KERNELS, older_layouts
from tests.core.trees import exists, opened, rename, shrink, write

SIZE = 100_000
NO_GRACE = Limits(max_size=1 << 40, grace=0.0)


def sizes(fs: Filesystem) -> dict[str, int]:
    fs.settle()
    return {info.path: info.plain_bytes for info in Administration(fs).ls(names=False)}


def add(fs: Filesystem, *names: str) -> None:
    for path in KERNELS.values():
        for name in names:
            write(fs, path.format(name), os.urandom(SIZE))
    fs.settle()


def test_older_entries_stay_whole_and_take_in_what_is_added_to_them(tmp_path: Path) -> None:
    with older_layouts(), opened(tmp_path / "store") as fs:
        add(fs, "a", "b")
        assert sizes(fs) == dict.fromkeys(KERNELS, 2 * SIZE)
    with opened(tmp_path / "store") as fs:
        assert sizes(fs) == dict.fromkeys(KERNELS, 2 * SIZE)
        add(fs, "c")
        leaf = "sglang/jit/sm90a/d/build-1f2e"
        write(fs, f"{leaf}/.staging-1f/kernel.so", os.urandom(SIZE))
        rename(fs, f"{leaf}/.staging-1f", f"{leaf}/deps-3d4c")
        write(fs, "sglang/jit/sm100/a/build-1f2e/deps-3d4c/kernel.so", os.urandom(SIZE))
        assert sizes(fs) == {
            **dict.fromkeys(KERNELS, 3 * SIZE),
            "sglang/jit/sm90a": 4 * SIZE,
            "sglang/jit/sm100/a/build-1f2e/deps-3d4c": SIZE,
        }
    with opened(tmp_path / "store") as fs:
        assert sum(sizes(fs).values()) == 11 * SIZE


def test_an_older_entry_is_evicted_whole_and_made_again_in_parts(tmp_path: Path) -> None:
    with older_layouts(), opened(tmp_path / "store", NO_GRACE) as fs:
        add(fs, "a", "b")
    with opened(tmp_path / "store", NO_GRACE) as fs:
        shrink(fs, 0.01)
        assert sizes(fs) == {}
        assert not any(exists(fs, path) for path in KERNELS)
    with opened(tmp_path / "store") as fs:
        add(fs, "a", "b")
        made = {path.rpartition("/kernel.")[0] or path.removesuffix(".o") for path in KERNELS.values()}
        assert sizes(fs) == {path.format(name): SIZE for path in made for name in "ab"}


def test_an_older_version_reads_the_finer_entries(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        add(fs, "a", "b")
        before = sizes(fs)
    with older_layouts(), opened(tmp_path / "store", NO_GRACE) as fs:
        assert sizes(fs) == before
        shrink(fs, 0.01)
        assert sizes(fs) == {}
