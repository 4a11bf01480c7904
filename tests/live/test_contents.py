"""What is known of the entries of a watched mount does not outlive them."""

from __future__ import annotations

import shutil
from pathlib import Path

from kcachefs.insight.artefacts import FolderCache
from kcachefs.insight.explaining import Explainer
from kcachefs.insight.index import Index
from kcachefs.live.contents import Contents


def test_kernels_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    contents = Contents(lambda: FolderCache(cache).entries(), object)

    def group_those(*names: str) -> set[str]:
        shutil.rmtree(cache, ignore_errors=True)
        for name in names:
            (cache / name).mkdir(parents=True)
            (cache / name / f"__grp__{name}.json").write_text('{"child_paths": {}}')
        contents.forget()
        contents.entries()
        grouped = contents.grouped(Explainer(FolderCache(cache), Index("cache", tmp_path)))
        assert sum(len(ones) for groups in grouped.groups.values() for ones in groups.values()) == len(names)
        return contents._tried

    assert group_those("A", "B") == {"triton/A", "triton/B"}
    assert group_those("C") == {"triton/C"}
