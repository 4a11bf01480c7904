"""The page as one file: all of its data is gathered once and embedded."""

from __future__ import annotations

import time

import msgspec

from kcachefs import __version__
from kcachefs.errors import DaemonError, KcachefsError, StoreError
from kcachefs.live.looking import Look
from kcachefs.live.view import RANGES, EntryPage, EntryRow, Filling, Glance
from kcachefs.live.watching import Watch
from kcachefs.live.web import assets

PATIENCE_SECONDS = 30.0
"""How long reading artefacts may take."""
_PAGES = 24
"""How many kernels and graphs the report holds in full."""
_PAGES_BYTES = 1 << 20
_GROUPS_OPENED = 12


def make_report(watch: Watch, since: float, words: str, *, title: str = "", run: int | None = None) -> bytes:
    """The activity since then, as HTML. `words` say how long that is: "in the last 7 d"."""
    glance = watch.glance()
    if glance.headline.why:
        raise (StoreError if watch.at_rest else DaemonError)(glance.headline.why)
    glance = _since(glance, since)
    with Look(watch, patience=PATIENCE_SECONDS) as look:
        filling = look.filling()
        causes = look.causes(run) if run is not None else look.causes(since=since)
        kernels = look.kernels()
        wanted = [path for row in causes.rows for path in row.paths]
        wanted += [row.path for row in filling.costliest] + [row.path for row in kernels.rows]
        data = {
            "title": title,
            "words": words,
            "range": _range_for(glance.now - since),
            "foot": f"Made by kcachefs {__version__} on {_moment(glance.now)} from {glance.headline.mountpoint}. "
            "This file holds all it shows and loads nothing from elsewhere.",
            "glance": glance,
            "series": {name: watch.series(name) for name in RANGES},
            "filling": filling,
            "entries": _opened(look, filling),
            "causes": causes,
            "kernels": kernels,
            "pages": _pages(look, wanted),
        }
    return assets.report(msgspec.json.encode(data), f"kcachefs report {_moment(glance.now)}")


def _since(glance: Glance, since: float) -> Glance:
    return msgspec.structs.replace(
        glance,
        runs=[one for one in glance.runs if one.last_used >= since],
        events=[one for one in glance.events if one.when >= since],
    )


def _opened(look: Look, filling: Filling) -> dict[str, list[EntryRow]]:
    """The entries of the largest groups."""
    groups = [(part.name, one) for part in filling.namespaces for one in part.groups if one.what != "rest"]
    groups.sort(key=lambda item: -item[1].bytes)
    return {f"{name}/{one.name}": look.entries_of(name, one.name, 30) for name, one in groups[:_GROUPS_OPENED]}


def _pages(look: Look, wanted: list[str]) -> dict[str, EntryPage]:
    """As many pages as there is room for, the first ones first."""
    found: dict[str, EntryPage] = {}
    size = 0
    for path in dict.fromkeys(wanted):
        if len(found) >= _PAGES:
            break
        try:
            page = look.entry(path)
        except KcachefsError:
            continue
        size += len(msgspec.json.encode(page))
        if size > _PAGES_BYTES:
            break
        found[path] = page
    return found


def _range_for(span: float) -> str:
    return next((name for name, seconds in RANGES.items() if span <= seconds), "2y")


def _moment(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
