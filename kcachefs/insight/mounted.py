"""The entries of a mount, or of a store at rest, in the form that can be explained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from kcachefs.core.insight_info import Artifact, MadeEntry, RunInfo, Tombstone
from kcachefs.errors import KcachefsError
from kcachefs.insight.artefacts import FILE_MAX
from kcachefs.mounts.insight_reports import InsightReports


class MountedCache:
    """Asks a mount. Recent writes are counted before it answers."""

    def __init__(self, reports: InsightReports, place: str) -> None:
        self._reports, self._place = reports, place

    @property
    def place(self) -> str:
        return self._place

    def entries(self, run: int | None = None, since: float | None = None) -> list[MadeEntry]:
        return self._reports.entries(settle=True, run=run, since=since)

    def artefacts(
        self, entries: Sequence[MadeEntry], files: Sequence[str], head: int | None = None
    ) -> Iterator[Artifact]:
        return self._reports.artifacts([one.entry for one in entries], files, max_file=FILE_MAX, head=head)

    def runs(self, *, settle: bool = False) -> list[RunInfo]:
        return self._reports.runs(settle=settle)

    def tombstones(self) -> list[Tombstone]:
        return list(self._reports.tombstones().values())

    def note_costs(self, seconds: Mapping[int, float], parts: Mapping[int, float]) -> None:
        with contextlib.suppress(KcachefsError):  # a user without the right to do this can still explain
            self._reports.note_costs(seconds, parts)
