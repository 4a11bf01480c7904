"""Looks into the entries of a watched mount: what fills it, why something was compiled, kernels, one entry in full.

All of this is expensive: it lists every entry, or reads artefacts. It is done on demand, in a thread that may wait, and
within `PATIENCE_SECONDS`. Everything read by then is in the index, so the next look gets further. Looking does not
count as a hit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from kcachefs.core.insight_info import Artifact, MadeEntry, RunInfo, Tombstone
from kcachefs.errors import ArtefactGarbled, UsageError
from kcachefs.insight.artefacts import kind_of
from kcachefs.insight.explaining import Explainer, Explanation
from kcachefs.insight.index import Index
from kcachefs.insight.listing import list_kernels
from kcachefs.insight.mounted import MountedCache
from kcachefs.insight.reading import began
from kcachefs.insight.telling import advice, grouped
from kcachefs.live import entry_page
from kcachefs.live.contents import Contents, Grouped
from kcachefs.live.view import (
    CauseRow,
    Causes,
    EntryPage,
    EntryRow,
    Filling,
    Group,
    Kernels,
    NamespacePart,
)
from kcachefs.live.watching import Watch

PATIENCE_SECONDS = 4.0
GROUPS_SHOWN = 24
ENTRIES_SHOWN = 60
LISTED = 15
"""Entries among the biggest and the costliest."""
KERNELS_SHOWN = 200
EXPLAINED_MAX = 200
"""How many entries are explained at once, newest first."""
_PATHS_SHOWN = 8
_EXPLAINED_KINDS = ("model", "driver", "library", "graph", "kernel")


class Look:
    """One look, by one thread."""

    def __init__(self, watch: Watch, contents: Contents | None = None, patience: float = PATIENCE_SECONDS) -> None:
        self._watch, self._patience = watch, patience
        self._contents = contents or contents_of(watch)
        self._index = Index(watch.place)
        self._grouped: Grouped | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._index.close()

    # --- what fills it ------------------------------------------------------------------------------------------------

    def filling(self) -> Filling:
        entries = self._contents.entries()
        found = self._groups()
        parts = []
        for name, groups in found.groups.items():
            rows = [_group(what, group, ones) for (what, group), ones in groups.items()]
            rows.sort(key=lambda row: -row.bytes)
            if len(rows) > GROUPS_SHOWN:
                rest = rows[GROUPS_SHOWN - 1 :]
                rows = [*rows[: GROUPS_SHOWN - 1], _sum(f"{len(rest):,} more", rest)]
            whole = _sum(name, rows)
            parts.append(
                NamespacePart(
                    name=name,
                    entries=whole.entries,
                    bytes=whole.bytes,
                    hits=whole.hits,
                    cost=whole.cost,
                    groups=rows,
                )
            )
        costly = [one for one in entries if one.cost]
        return Filling(
            when=time.time(),
            complete=found.complete,
            namespaces=sorted(parts, key=lambda part: -part.bytes),
            biggest=self._rows(sorted(entries, key=lambda one: -one.stored_bytes)[:LISTED]),
            costliest=self._rows(sorted(costly, key=lambda one: -(one.cost or 0.0))[:LISTED]),
        )

    def entries_of(self, namespace: str, group: str, limit: int = ENTRIES_SHOWN) -> list[EntryRow]:
        """The entries of a group of `filling`, the largest first."""
        groups = self._groups().groups.get(namespace, {})
        ones = [one for (_, name), members in groups.items() if name == group for one in members]
        return self._rows(sorted(ones, key=lambda one: -one.stored_bytes)[:limit])

    def _rows(self, entries: Sequence[MadeEntry]) -> list[EntryRow]:
        found, wanted = self._groups(), {one.path for one in entries}
        where = {
            one.path: group
            for groups in found.groups.values()
            for (_, group), ones in groups.items()
            for one in ones
            if one.path in wanted
        }
        return [
            EntryRow(
                path=one.path,
                name=found.names.get(one.path) or one.path.partition("/")[2] or one.path,
                namespace=one.namespace,
                group=where.get(one.path, ""),
                kind="helper" if one.path in found.helpers else kind_of(one.path),
                bytes=one.stored_bytes,
                files=one.files,
                hits=one.hits,
                used=one.used,
                made=began(one),
                cost=one.cost,
                pinned=one.pinned,
                uid=one.uid,
                run=one.run,
            )
            for one in entries
        ]

    # --- why something was compiled -----------------------------------------------------------------------------------

    def causes(self, run: int | None = None, since: float | None = None) -> Causes:
        """The causes of a run's misses by its number, since a moment, or of the last run that compiled something."""
        explainer = self._explainer(self._contents.entries())
        chosen: RunInfo | None = None
        if since is not None:
            made = explainer.made_since(since)
        else:
            runs = self._watch.insight.runs()
            chosen = explainer.last_run() if run is None else next((one for one in runs if one.run == run), None)
            if run is not None and chosen is None:
                raise UsageError(f"run {run}: no such run")
            made = explainer.made_by(chosen) if chosen is not None else []
        made = [one for one in made if kind_of(one.path) in _EXPLAINED_KINDS]
        newest = sorted(made, key=began)[-EXPLAINED_MAX:]
        explained = explainer.explain(newest)
        groups = grouped(explained)
        rows = [
            CauseRow(
                kind=group.cause.kind,
                words=group.cause.words,
                certain=group.cause.certain,
                counts=group.counts,
                entries=len(group.members),
                seconds=_seconds(group.members),
                names=group.names,
                paths=[one.path for one in group.members[:_PATHS_SHOWN]],
            )
            for group in groups
        ]
        return Causes(
            run=chosen, since=since, rows=rows, advice=advice(groups), explained=len(explained), total=len(made)
        )

    # --- kernels ------------------------------------------------------------------------------------------------------

    def kernels(self, search: str = "") -> Kernels:
        """The kernels with this text in their name; without a text, the top kernels of every possible order."""
        entries = self._contents.entries()
        groups = self._groups()
        every = [one for one in entries if kind_of(one.path) == "kernel" and one.path not in groups.helpers]
        names = groups.names
        wanted = search.casefold()
        found = [one for one in every if wanted in names.get(one.path, one.path).casefold() or wanted in one.path]
        chosen: dict[str, MadeEntry] = {}
        share = KERNELS_SHOWN // 4 if len(found) > KERNELS_SHOWN else KERNELS_SHOWN
        for order in (_used, _cost, _size, _hits):
            chosen |= {one.path: one for one in sorted(found, key=order, reverse=True)[:share]}
        graphs = [one for one in entries if kind_of(one.path) == "graph"]
        explainer = self._explainer([*chosen.values(), *graphs])
        rows = sorted(list_kernels(explainer), key=lambda row: -row.used)
        return Kernels(rows=rows, total=len(found), complete=not explainer.reader.ran_out_of_time)

    def entry(self, path: str) -> EntryPage:
        """One entry in full."""
        explainer = self._explainer(self._contents.entries())
        entry = next((one for one in explainer.entries if one.path == path), None)
        if entry is None:
            raise UsageError(f"{path}: is not here any more")
        try:
            return entry_page.describe_entry(explainer, entry, self._watch.place)
        except ArtefactGarbled as error:
            return EntryPage(path=path, name=entry.name, kind=kind_of(path), facts={}, problem=str(error))

    def _groups(self) -> Grouped:
        if self._grouped is None:
            self._grouped = self._contents.grouped(self._explainer(self._contents.entries()))
        return self._grouped

    def _explainer(self, entries: list[MadeEntry]) -> Explainer:
        return Explainer(_Shown(self._watch, entries), self._index, self._patience)


def contents_of(watch: Watch) -> Contents:
    """The data that a series of looks at one mount shares."""
    return Contents(lambda: watch.insight.entries(settle=watch.at_rest), watch.change)


class _Shown:
    """Some entries of a mount in the form that can be explained, without listing the mount again."""

    def __init__(self, watch: Watch, entries: list[MadeEntry]) -> None:
        self._cache = MountedCache(watch.insight, watch.place)
        self._entries = entries

    @property
    def place(self) -> str:
        return self._cache.place

    def entries(self, run: int | None = None, since: float | None = None) -> list[MadeEntry]:
        return self._entries

    def artefacts(
        self, entries: Sequence[MadeEntry], files: Sequence[str], head: int | None = None
    ) -> Iterator[Artifact]:
        return self._cache.artefacts(entries, files, head)

    def runs(self, *, settle: bool = False) -> list[RunInfo]:
        return self._cache.runs(settle=settle)

    def tombstones(self) -> list[Tombstone]:
        return self._cache.tombstones()

    def note_costs(self, seconds: Mapping[int, float], parts: Mapping[int, float]) -> None:
        self._cache.note_costs(seconds, parts)


def _group(what: str, name: str, ones: Sequence[MadeEntry]) -> Group:
    return Group(
        name=name,
        what=what,
        entries=len(ones),
        bytes=sum(one.stored_bytes for one in ones),
        hits=sum(one.hits for one in ones),
        cost=round(sum(one.cost or 0.0 for one in ones), 3),
    )


def _sum(name: str, rows: Sequence[Group]) -> Group:
    return Group(
        name=name,
        what="rest",
        entries=sum(row.entries for row in rows),
        bytes=sum(row.bytes for row in rows),
        hits=sum(row.hits for row in rows),
        cost=round(sum(row.cost for row in rows), 3),
    )


def _seconds(members: Sequence[Explanation]) -> float | None:
    known = [one.seconds for one in members if one.seconds is not None]
    return round(sum(known), 3) if known else None


def _used(entry: MadeEntry) -> float:
    return entry.used


def _cost(entry: MadeEntry) -> float:
    return entry.cost or 0.0


def _size(entry: MadeEntry) -> float:
    return entry.stored_bytes


def _hits(entry: MadeEntry) -> float:
    return entry.hits
