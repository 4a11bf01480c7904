"""What is wrong with a mount, in words."""

from __future__ import annotations

from pathlib import Path

from kcachefs.core.limits import Limits
from kcachefs.live.health import is_full
from tests.core.trees import free_pages, kernel, opened


def test_a_store_with_room_is_not_called_full_however_large_its_catalog_once_was(tmp_path: Path) -> None:
    with opened(tmp_path / "store", Limits(max_size=1 << 40, min_free=0)) as fs:
        free_pages(fs)
        fs.set_limits(Limits(max_size=fs.store.catalog.statistics()["bytes"], min_free=0))
        told = fs.statistics().store
        assert told.used_bytes > told.max_bytes
        assert not is_full(told)
        kernel(fs, "A", 200_000)
        fs.set_limits(Limits(max_size=1 << 20, min_free=0))
        assert is_full(fs.statistics().store)
