"""The parts of the screen of `kcachefs top`: the lines above, and the table below them."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, Sparkline, Static

from kcachefs.config import format_size
from kcachefs.live import top_rows as rows_of
from kcachefs.live.top_rows import Panel, Row
from kcachefs.live.view import Glance, Series
from kcachefs.printable import printable

_BAR, _NAME = 16, 20
"""The longest bar, and how much of a long path is shown before the bar gets shorter."""
_MARGIN = 2
_SCROLLBAR = 1
_NEWEST = 6


class Words(Static):
    """Text in a place whose size does not depend on it, so that a new text needs no new layout."""

    def show(self, words: Text | str) -> None:
        if words != self.content:
            self.update(words, layout=False)


class Heading(Vertical):
    """Mount, size against quota and the week's savings; the mount's state; hits, misses and bytes served over time."""

    def compose(self) -> ComposeResult:
        yield Words(id="headline")
        yield Words(id="status")
        with Horizontal(id="sparks"):
            for name in ("hits", "misses", "served"):
                with Vertical(classes="spark"):
                    yield Words(id=f"{name}-words")
                    yield Sparkline([0.0], id=f"{name}-line")

    def show(self, place: str, glance: Glance | None, width: int) -> None:
        line = self.query_one("#headline", Words)
        if glance is None:
            line.show(Text(f"{printable(place)}  asking …", style="bold"))
            return
        headline = glance.headline
        room, name, saved, size = width - _MARGIN, printable(headline.mountpoint), rows_of.saved_words(headline), ""
        if headline.total is not None:
            size = f"{format_size(headline.used_bytes)} of {format_size(headline.max_bytes)}"
        left = room - len(saved) - len(size) - 5
        length = max(4, min(_BAR, left - min(cell_len(name), _NAME)))
        name = rows_of.cut_front(name, max(0, left - length))
        share = headline.used_bytes / headline.max_bytes if headline.max_bytes else 0.0
        full = round(min(1.0, share) * length)
        middle = f"  {'█' * full}{'░' * (length - full)} {size}" if size else ""
        gap = " " * max(2, room - cell_len(name) - len(middle) - len(saved))
        line.show(Text.assemble((name, "bold"), middle, gap, (saved, "bold")))
        state = rows_of.state_words(headline, time.time())
        concern = f"! {printable(headline.concerns[0].words)}" if headline.concerns else ""
        rest = concern or rows_of.total_words(headline, room - cell_len(state) - 3)
        status = Text.assemble(
            (state, "" if headline.state == "served" else "bold red"), "   ", (rest, "yellow" if concern else "")
        )
        status.truncate(room, overflow="ellipsis")
        self.query_one("#status", Words).show(status)

    def show_series(self, series: Series, span: str) -> None:
        for spark in rows_of.sparks(series, span):
            words = Text.assemble(
                (f"{spark.name} ", "bold"), spark.sum, (f"  in {span}{'  (t)' if spark.name == 'hits' else ''}", "dim")
            )
            self.query_one(f"#{spark.name}-words", Words).show(words)
            line = self.query_one(f"#{spark.name}-line", Sparkline)
            if line.data != spark.points:
                line.data = spark.points


class Newest(Horizontal):
    """The newest runs and events, below the panel where the screen is tall enough."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._lines: dict[str, list[tuple[str, str]]] = {}

    def compose(self) -> ComposeResult:
        for name in ("runs", "events"):
            box = Words(id=f"newest-{name}", markup=False)
            box.border_title = f"newest {name}"
            yield box

    def show(self, glance: Glance, panel_name: str) -> None:
        """Show both, except the one that is shown in full above."""
        counted = rows_of.counted
        runs = [
            (
                row.cells[1],
                f"{counted(run.hits, 'hit', 'hits')}, {counted(run.misses, 'miss', 'misses')}, {row.cells[8]}",
            )
            for run, row in zip(glance.runs[:_NEWEST], rows_of.runs(glance).rows, strict=False)
        ]
        events = [
            (" ".join(filter(None, (row.cells[1], row.cells[2]))), f"{row.cells[3]}, {row.cells[0]}".lstrip(", "))
            for row in rows_of.events(glance).rows[:_NEWEST]
        ]
        self._lines = {"runs": runs, "events": events}
        for name in self._lines:
            self.query_one(f"#newest-{name}", Words).display = name != panel_name
        self._fill()

    def on_resize(self) -> None:
        self.call_after_refresh(self._fill)  # the boxes are laid out after their container

    def _fill(self) -> None:
        for name, lines in self._lines.items():
            box = self.query_one(f"#newest-{name}", Words)
            width = box.content_size.width
            shown = [(rows_of.cut(left, max(0, width - len(right) - 2)), right) for left, right in lines]
            spread = [left + " " * (width - cell_len(left) - len(right)) + right for left, right in shown]
            box.show("\n".join(spread) or "none yet")


class PanelTable(DataTable[Text]):
    """The rows of a panel. Only changed cells are redrawn, and the cursor stays on its row."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "open", key_display="⏎")]

    def __init__(self, **arguments: Any) -> None:
        super().__init__(cursor_type="row", **arguments)
        self._keys: list[str] = []
        self._look: tuple[object, ...] = ()

    @property
    def chosen_key(self) -> str:
        """The key of the row under the cursor; empty if there is none."""
        return self._keys[self.cursor_row] if 0 <= self.cursor_row < len(self._keys) else ""

    def show(self, name: str, panel: Panel, columns: list[int], rows: list[Row], order: tuple[int, bool]) -> None:
        sizes = rows_of.widths(panel, columns, rows, self.app.size.width - _SCROLLBAR)
        look = (name, tuple(columns), tuple(sizes), order)
        keys = [row.key for row in rows]
        cells = [
            [_cell(row.cells[at], size, panel.columns[at].is_number) for at, size in zip(columns, sizes, strict=True)]
            for row in rows
        ]
        if look == self._look and keys == self._keys:
            self._update(cells)
            return
        before = self.chosen_key if self._look[:1] == (name,) else ""
        self.clear(columns=True)
        for at, size in zip(columns, sizes, strict=True):
            column = panel.columns[at]
            mark = ("↓" if order[1] else "↑") if at == order[0] else ""
            self.add_column(_cell(f"{column.title}{mark}", size, column.is_number), width=size)
        for key, line in zip(keys, cells, strict=True):
            self.add_row(*line, key=key)
        self._keys, self._look = keys, look
        if before in keys:
            self.move_cursor(row=keys.index(before), animate=False)

    def _update(self, cells: list[list[Text]]) -> None:
        for number, line in enumerate(cells):
            for place, cell in enumerate(line):
                if self.get_cell_at((number, place)) != cell:  # type: ignore[arg-type]
                    self.update_cell_at((number, place), cell)  # type: ignore[arg-type]


def _cell(text: str, width: int, is_number: bool) -> Text:
    return Text(rows_of.cut(text, width).rjust(width) if is_number else rows_of.cut(text, width))
