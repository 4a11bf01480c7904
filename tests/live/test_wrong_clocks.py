"""What people see of a mount whose host's clock is set back while they watch."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kcachefs.core.administration import Administration
from kcachefs.core.insight import Insight
from kcachefs.live.watching import Watch
from kcachefs.mounts.insight_reports import InsightReports
from tests.core.clocks import Clock, clock
from tests.core.trees import opened, write

__all__ = ["clock"]

DAY = 86400.0


def test_events_go_on_when_the_clock_is_set_back(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path / "store") as fs:
        insight = Insight(fs)
        reports = InsightReports(lambda verb, arguments: msgspec.json.encode(getattr(insight, verb)(**arguments)))
        watch = Watch(str(tmp_path / "mount"), reports, fs.statistics)
        for name in "ABC":
            write(fs, f"triton/{name}/kernel.ptx", name.encode() * 1000)
        fs.settle()

        def evict(name: str) -> list[str]:
            Administration(fs).evict([f"triton/{name}"])
            return [event.path for event in watch.glance().events]

        clock.ahead = DAY
        assert evict("A") == ["triton/A"]
        clock.ahead = 0.0
        assert evict("B") == ["triton/B", "triton/A"]
        clock.ahead = -DAY
        assert evict("C") == ["triton/C", "triton/B", "triton/A"]
        for name in ("6h", "14d"):
            series = watch.series(name)
            end = series.start + series.step * len(series.hits)
            assert all(series.start <= mark.when < end for mark in series.marks), "none lies in the future"
