"""What is kept of entries that were read once: as much as there are entries, of as many caches as people use."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from kcachefs.insight import index
from kcachefs.insight.artefacts import FolderCache
from kcachefs.insight.explaining import Explainer
from kcachefs.insight.index import Index
from kcachefs.insight.listing import list_kernels


def add(cache: Path, *names: str) -> None:
    for name in names:
        folder = cache / name
        folder.mkdir(parents=True)
        (folder / f"__grp__{name}.json").write_text('{"child_paths": {}}')
        (folder / f"{name}.json").write_text("{}")


def explained(cache: Path, folder: Path) -> dict[str, int]:
    """Explain all that is in a cache, with an index in that folder; returns how many rows each table has then."""
    kept = Index("cache", folder)
    explainer = Explainer(FolderCache(cache), kept)
    list_kernels(explainer)
    explainer.explain(explainer.made_since(0.0))
    kept.close()
    (file,) = folder.glob("*.sqlite")
    with sqlite3.connect(file) as opened:
        return {
            table: opened.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in ("sketches", "explained")
        }


def test_what_is_gone_is_forgotten(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    add(cache, *(f"OLD{number}" for number in range(20)))
    assert explained(cache, tmp_path / "index") == {"sketches": 20, "explained": 20}
    shutil.rmtree(cache)
    add(cache, "NEW1", "NEW2")
    assert explained(cache, tmp_path / "index") == {"sketches": 2, "explained": 2}


def test_of_many_caches_those_are_kept_that_were_read_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "INDEXES_MAX", 3)
    made: list[Path] = []
    for number in range(5):
        Index(f"cache {number}", tmp_path).close()
        made += {*tmp_path.glob("*.sqlite")} - {*made}
        os.utime(made[-1], (number, number))
    assert {*tmp_path.glob("*.sqlite")} == {*made[-3:]}
