"""The user's choices in `kcachefs top`: the panel, a filter, an order. Draws nothing."""

from __future__ import annotations

from typing import TypeVar

from kcachefs.live import top_rows as rows_of
from kcachefs.live.top_asking import Known
from kcachefs.live.top_rows import PANELS, Filter, Panel, Row
from kcachefs.live.view import Glance, Headline
from kcachefs.printable import printable

WIDE = 110
"""From this many columns on, every column is shown."""
_NOTHING = Glance(now=0.0, revision=0, headline=Headline(mountpoint="", state="silent"))
T = TypeVar("T")


class Choices:
    """The choices, and the data that they select."""

    def __init__(self) -> None:
        self.panel_name = PANELS[0]
        self.filter = Filter()
        self._orders: dict[str, tuple[int, bool]] = {}

    def panel(self, known: Known) -> Panel:
        """The panel that is shown, with all rows and columns."""
        glance = known.glance or _NOTHING
        match self.panel_name:
            case "runs":
                return rows_of.runs(glance)
            case "misses":
                return rows_of.misses(known.causes)
            case "kernels":
                return rows_of.kernels(known.kernels, known.pinned)
            case "events":
                return rows_of.events(glance)
            case "mounts":
                return rows_of.mounts(known.mounts)
            case _:
                return rows_of.namespaces(glance)

    def shown(self, panel: Panel, width: int) -> list[int]:
        """The columns for which a screen of that width has room."""
        return [at for at, column in enumerate(panel.columns) if width >= WIDE or not column.wide]

    def order(self, panel: Panel) -> tuple[int, bool]:
        """The column to sort by, and whether the largest comes first."""
        return self._orders.get(self.panel_name) or (panel.order, panel.columns[panel.order].is_number)

    def rows(self, panel: Panel) -> list[Row]:
        return rows_of.chosen(panel, self.filter, *self.order(panel))

    # --- choosing -----------------------------------------------------------------------------------------------------

    def sort(self, known: Known, width: int) -> None:
        """Sort by the next column that is shown."""
        panel = self.panel(known)
        columns = self.shown(panel, width)
        order, _ = self.order(panel)
        following = next((at for at in columns if at > order), columns[0])
        self._orders[self.panel_name] = following, panel.columns[following].is_number

    def turn_around(self, known: Known) -> None:
        order, descending = self.order(self.panel(known))
        self._orders[self.panel_name] = order, not descending

    def next_user(self, known: Known) -> None:
        glance = known.glance or _NOTHING
        users = {row.uid for row in glance.runs} | {row.uid for row in glance.headline.week.users}
        self.filter = self.filter._replace(uid=following([None, *sorted(users)], self.filter.uid))

    def next_namespace(self, known: Known) -> None:
        names = sorted((known.glance or _NOTHING).namespaces)
        self.filter = self.filter._replace(namespace=following([None, *names], self.filter.namespace))

    # --- words --------------------------------------------------------------------------------------------------------

    def about(self, known: Known, panel: Panel, count: int) -> str:
        """One line above the table that describes its rows."""
        words = f"{count:,} of {len(panel.rows):,}" if count != len(panel.rows) else ""
        if self.filter.words():
            words = f"{words or 'all'} for {self.filter.words()}"
        return " · ".join(filter(None, (words, self._told(known))))

    def _told(self, known: Known) -> str:
        kernels, causes = known.kernels, known.causes
        if self.panel_name == "misses" and causes is not None:
            run = causes.run
            who = "no run compiled" if run is None else f"run {run.run}: {run.argv or f'process {run.pid}'}"
            return "; ".join(map(printable, [*causes.advice, who]))
        if self.panel_name == "kernels" and kernels is not None and len(kernels.rows) < kernels.total:
            return f"{len(kernels.rows):,} of {kernels.total:,}: those used last, costliest, largest, most hit"
        if self.panel_name == "namespaces" and self.filter.uid is not None:
            return "namespaces add up all users"
        return ""

    def empty(self, known: Known, panel: Panel) -> str:
        """What to say where there is no row."""
        if known.glance is None:
            return "Asking the daemon …"
        if panel.rows:
            return f"Nothing here for {self.filter.words()}. Esc shows everything."
        waits_for = {"misses": known.causes, "kernels": known.kernels}
        if self.panel_name in waits_for and waits_for[self.panel_name] is None:
            return printable(known.problem) if known.problem else "Reading what the compilers left …"
        return panel.empty


def following(choices: list[T], now: T) -> T:
    """The choice after the present one, wrapping around to the first."""
    return choices[(choices.index(now) + 1) % len(choices)] if now in choices else choices[0]
