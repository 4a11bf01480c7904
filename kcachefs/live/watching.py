"""Watches one mount: the quick part of the live views, requested about once a second, at little cost to the daemon.

Statistics are requested each time. The daemon reads runs, events and history from files, so we ask for them only after
the statistics changed, and not more often than `_PAUSES` allows. One thread at a time may use a watch.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kcachefs import reports
from kcachefs.core.insight_info import Event, RunInfo
from kcachefs.core.report import Numbers, Statistics
from kcachefs.daemon import control, registry
from kcachefs.daemon.registry import MountState
from kcachefs.errors import KcachefsError
from kcachefs.live.health import concerns, is_full
from kcachefs.live.series import KeptSamples, Sum
from kcachefs.live.view import RANGES, Glance, Headline, Series, UserRow, Week
from kcachefs.mounts.insight_reports import InsightReports, asking_daemon, asking_folder

WEEK_SECONDS = 7 * 86400.0
RUNS_SHOWN, EVENTS_SHOWN = 50, 100
_USERS_SHOWN = 20
_EVENTS_KEPT = 10_000
"""As many events as a mount keeps."""
_ANSWER_SECONDS = 3.0
"""A daemon that takes longer for its statistics is called silent."""
_PATIENT_SECONDS = 120.0
"""The same limit for slow requests."""
_PAUSES = {"runs": 2.0, "events": 3.0, "history": 10.0}
"""Seconds between two requests of a kind, after something changed."""
_IDLE_PAUSE = 60.0
"""The same pause where nothing seems to have changed."""
_SLOWER_THROUGH_MOUNT = 5
"""Pauses are this many times longer through somebody else's mount, where every answer is a whole file."""

AskStatistics = Callable[[], Statistics]


class Watch:
    """What one mount, or one store at rest, reports."""

    def __init__(
        self,
        place: str,
        insight: InsightReports,
        statistics: AskStatistics,
        *,
        own: bool = True,
        at_rest: bool = False,
        since: float | None = None,
    ) -> None:
        """With `since`, the headline covers the time since then instead of the last week."""
        self.place = place
        """The mountpoint, or the folder of a store that is not mounted."""
        self.insight = insight
        self.own = own
        """Whether the mount is this user's, so that its daemon may be asked and given orders."""
        self.at_rest = at_rest
        """Whether this is a store that is not mounted."""
        self._statistics = statistics
        self._since = since
        span = WEEK_SECONDS if since is None else time.time() - since
        self._week_range = "14d" if span < RANGES["14d"] else "2y"
        self._kept = {name: KeptSamples(name, insight.history) for name in RANGES}
        self._asked: dict[str, tuple[float, object]] = {}
        self._numbers: Statistics | None = None
        self._heard = 0.0
        self._runs: list[RunInfo] = []
        self._offset = 0.0
        """How far the clock was ahead of the monotonic one when events were last asked for."""
        self.events: list[Event] = []
        """Events, the newest last."""
        self._glance: Glance | None = None

    @classmethod
    def of(cls, mount: Path) -> Watch:
        """The watch of a mount: through its daemon if the mount is this user's. Otherwise through the mount, which
        shows users who do not own it only their own data."""
        own = registry.read(str(mount)) is not None
        if not own:
            folder = asking_folder(mount)
            return cls(str(mount), InsightReports(folder), lambda: _read_statistics(mount), own=False)
        return cls(str(mount), InsightReports(asking_daemon(mount, _PATIENT_SECONDS)), lambda: _ask_statistics(mount))

    def glance(self) -> Glance:
        """The present state. Never fails: if the daemon does not answer, the glance says so."""
        try:
            self._refresh()
        except (KcachefsError, OSError, msgspec.DecodeError) as error:
            return self.last_known(str(error))
        return self.last_known()

    def last_known(self, why: str = "") -> Glance:
        """The state when the daemon last answered; `why` says what is wrong now. Asks nobody."""
        now = time.time()
        last = self._glance
        made = Glance(
            now=now,
            revision=last.revision if last else 0,
            headline=self._headline(now, why),
            namespaces=self._namespaces(),
            runs=list(reversed(self._runs[-RUNS_SHOWN:])),
            events=list(reversed(self.events[-EVENTS_SHOWN:])),
            fleet=self._numbers.fleet if self._numbers else None,
        )
        if last is None or _without_clock(made) != _without_clock(last):
            made = msgspec.structs.replace(made, revision=made.revision + 1)
        self._glance = made
        return made

    def series(self, name: str) -> Series:
        """Hits, misses and the others over one of `RANGES`."""
        now = time.time()
        if self._is_due(f"history {name}", "history", now):
            self._kept[name].refresh(now)
        return self._kept[name].series(now, self.events)

    def ask(self, verb: str, **arguments: Any) -> bytes:
        """Have the daemon do something that only its owner may request; returns the answer as JSON."""
        return control.ask(registry.socket_path(self.place), verb, arguments, seconds=_PATIENT_SECONDS)

    # --- asking -------------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        self._numbers = self._statistics()
        self._heard = now = time.time()
        if self._is_due("runs", "runs", now):
            self._runs = self.insight.runs()
        if self._is_due("events", "events", now):
            self.events = self._new_events()
        if self._is_due(f"history {self._week_range}", "history", now):
            self._kept[self._week_range].refresh(now)

    def _is_due(self, key: str, kind: str, now: float) -> bool:
        """Whether it is time to ask again; if so, records that it was asked."""
        slower = 1 if self.own else _SLOWER_THROUGH_MOUNT
        when, known = self._asked.get(key, (0.0, None))
        change = self.change()
        pause = _PAUSES[kind] if known != change else _IDLE_PAUSE
        if 0 <= now - when < pause * slower:
            return False
        self._asked[key] = now, change
        return True

    def change(self) -> object:
        """A value that changes whenever something was used, made or evicted, or another worker serves the mount."""
        if self._numbers is None:
            return None
        total = self._numbers.total
        state = self._state()
        counts = total.hits, total.misses, total.evictions, total.entries
        return *counts, self._numbers.since, (state.worker_pid, state.restarts, state.reloads) if state else None

    def _new_events(self) -> list[Event]:
        """Events carry clock times: after the clock was set back, new events look older than known ones."""
        now = time.time()
        offset = now - time.monotonic()
        was_set_back = offset < self._offset - 1.0
        self._offset = offset
        since = self.events[-1].when if self.events and not was_set_back else 0.0
        if since > now + 1.0:
            since = 0.0
        known = {one.number for one in self.events}
        return (self.events + [one for one in self.insight.events(since) if one.number not in known])[-_EVENTS_KEPT:]

    # --- what is known ------------------------------------------------------------------------------------------------

    def _state(self) -> MountState | None:
        if not self.own:
            return None
        with contextlib.suppress(KcachefsError, OSError):
            return registry.read(self.place)
        return None

    def _namespaces(self) -> dict[str, Numbers]:
        found = self._numbers.namespaces if self._numbers else {}
        return dict(sorted(found.items(), key=lambda item: -item[1].stored_bytes))

    def _headline(self, now: float, why: str) -> Headline:
        state, numbers = self._state(), self._numbers
        known = Headline(mountpoint=self.place, state=_state_word(self, state, why), why=why, heard=self._heard)
        if state is not None:
            known = msgspec.structs.replace(
                known,
                store=state.store,
                engine=state.engine,
                policy=state.policy,
                version=state.version,
                started=state.started,
                restarts=state.restarts,
                reloads=state.reloads,
                last_exit=state.last_exit,
            )
        if numbers is not None:
            known = msgspec.structs.replace(
                known,
                whole=self.own or os.geteuid() == 0,
                used_bytes=numbers.store.used_bytes,
                max_bytes=numbers.store.max_bytes,
                is_full=is_full(numbers.store),
                bytes_saved=numbers.store.bytes_saved,
                damaged=numbers.store.damaged,
                trouble=numbers.store.trouble,
                objects=numbers.store.objects,
                dedup_ratio=numbers.store.dedup_ratio,
                total=numbers.total,
                counted_since=numbers.since,
                week=self._week(max(numbers.since, now - WEEK_SECONDS) if self._since is None else self._since),
            )
        fleet = numbers.fleet if numbers else None
        return msgspec.structs.replace(known, concerns=concerns(known, fleet))

    def _week(self, since: float) -> Week:
        total, users = Sum(), dict[int, Sum]()
        for sample in self._kept[self._week_range].since(since):
            for row in sample.rows:
                total.add(row)
                users.setdefault(row.uid, Sum()).add(row)
        rows = [
            UserRow(
                uid=uid,
                name=_user_name(uid),
                hits=one.hits,
                misses=one.misses,
                bytes_served=one.bytes_served,
                seconds_compiled=one.seconds_compiled,
                seconds_saved=one.seconds_saved,
            )
            for uid, one in users.items()
        ]
        rows.sort(key=lambda row: -(row.hits + row.misses))
        return Week(**msgspec.structs.asdict(total), since=since, users=rows[:_USERS_SHOWN])


def _ask_statistics(mount: Path) -> Statistics:
    return control.ask_mount(mount, "stats", Statistics, seconds=_ANSWER_SECONDS)


def _read_statistics(mount: Path) -> Statistics:
    return reports.decoded(reports.read(mount, reports.STATISTICS), Statistics, "stats")


def _state_word(watch: Watch, state: MountState | None, why: str) -> str:
    if watch.at_rest:
        return "at rest"
    if not why:
        return "unsupervised" if state is not None and not state.supervised else "served"
    return "dead" if watch.own and (state is None or not state.alive) else "silent"


def _without_clock(glance: Glance) -> Glance:
    """The part of a glance that stays equal if nothing happened. The week always moves: its totals are compared."""
    week = msgspec.structs.replace(glance.headline.week, since=0.0)
    headline = msgspec.structs.replace(glance.headline, week=week, heard=0.0)
    return msgspec.structs.replace(glance, now=0.0, revision=0, headline=headline)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
