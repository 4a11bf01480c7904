"""The last lines of `kcachefs run`: why something had to be compiled, if the answer can be found in a moment."""

from __future__ import annotations

import os
from pathlib import Path

from kcachefs.insight.explaining import Explainer, Explanation
from kcachefs.insight.index import Index
from kcachefs.insight.mounted import MountedCache
from kcachefs.mounts.insight_reports import InsightReports

PATIENCE_SECONDS = 3.0
"""How long reading may take. Everything read by then is in the index, so the next attempt gets further."""
SHOWN = 3


def explain_since(mount: Path, when: float) -> list[Explanation]:
    """Why this process's command compiled what it did since then; empty if unknown."""
    try:
        cache = MountedCache(InsightReports.of(mount), str(mount))
        explainer = Explainer(cache, Index(cache.place), patience=PATIENCE_SECONDS)
        chosen = explainer.made_since(when)
        ours = {one.run for one in cache.runs() if one.pid == os.getpid() or one.started >= when - 1.0}
        mine = [one for one in chosen if not ours or {one.run, one.rewriter} & ours or not one.run]
        return explainer.explain(mine, boundary=when)
    except Exception:
        return []  # the command ran and was counted regardless
