"""What `kcachefs top` opens above its panels: a kernel with its source and PTX, a text, a question before a change."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Static

from kcachefs.insight.explaining import Explanation
from kcachefs.live.view import EntryPage, Listing
from kcachefs.printable import printable

_ABOVE = 3
"""Lines that are shown above the first marked line."""
_WIDE = 110
"""From this many columns on, source and PTX are shown side by side."""


class EntryScreen(Screen[None]):
    """One entry: facts, source and PTX. The lines that belong to the line under the cursor are marked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "app.pop_screen", "back", key_display="esc"),
        Binding("tab", "turn", "source / PTX", priority=True),
        Binding("e", "explain", "why"),
    ]

    def __init__(self, page: EntryPage) -> None:
        super().__init__()
        self.page = page
        self._marked: list[int] = []

    def compose(self) -> ComposeResult:
        page = self.page
        pinned = "  pinned" if page.pinned else ""
        yield Static(Text(f" {printable(page.name)}{pinned}", style="bold"), id="title")
        facts = {name: value for name, value in page.facts.items() if value and name not in ("kernel", "graph")}
        line = " · ".join(f"{name} {printable(value)}" for name, value in facts.items())
        yield Static(Text(page.problem or line or page.path), id="facts")
        with Horizontal(id="listings"):
            yield self._listing("source", page.source, "source")
            yield self._listing("code", page.code, "PTX")
        yield Footer(compact=True)

    def _listing(self, name: str, listing: Listing | None, what: str) -> Vertical:
        table: DataTable[Text] = DataTable(id=name, cursor_type="row", show_header=False, cell_padding=0)
        pane = Vertical(table, id=f"{name}-pane", classes="listing")
        pane.border_title = printable(listing.title) if listing is not None else f"no {what} here"
        if listing is not None and listing.note:
            pane.border_subtitle = printable(listing.note)
        return pane

    def on_mount(self) -> None:
        for name, listing in (("source", self.page.source), ("code", self.page.code)):
            table = self.query_one(f"#{name}", DataTable)
            table.add_columns("line", "text")
            for number, line in enumerate(listing.lines if listing is not None else ()):
                place = listing.places[number] if listing is not None else 0
                table.add_row(Text(f"{place or '':>5} ", style="dim"), Text(printable(line.replace("\t", "    "))))
        first = "source" if self.page.source is not None else "code"
        self.query_one(f"#{first}", DataTable).focus()
        self.set_class(first == "code", "-code")

    def on_resize(self) -> None:
        self.set_class(self.size.width < _WIDE, "-narrow")

    def action_turn(self) -> None:
        """Switch to the other text; on a narrow screen it replaces this one."""
        to_code = self.focused is None or self.focused.id != "code"
        self.set_class(to_code, "-code")
        self.query_one("#code" if to_code else "#source", DataTable).focus()

    def action_explain(self) -> None:
        self.app.push_screen(TextScreen(printable(self.page.name), explanation_lines(self.page.why)))

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Mark the lines that belong to the source line under the cursor, and scroll to the first of them."""
        page = self.page
        if event.data_table.id != "source" or page.source is None or page.code is None:
            return
        place = page.source.places[event.cursor_row] if page.source.places else 0
        code = self.query_one("#code", DataTable)
        matching = [number for number, other in enumerate(page.code.places) if place and other == place]
        for number in {*self._marked, *matching}:
            style = "bold reverse" if number in matching else ""
            code.update_cell_at((number, 1), Text(printable(page.code.lines[number]), style=style))  # type: ignore[arg-type]
        self._marked = matching
        if matching:
            code.move_cursor(row=matching[0], scroll=False)
            code.scroll_to(y=max(0, matching[0] - _ABOVE), animate=False)


class TextScreen(ModalScreen[None]):
    """A text to read."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,e,enter,question_mark", "app.pop_screen", "close")]

    def __init__(self, title: str, lines: list[str]) -> None:
        super().__init__()
        self._title, self._lines = title, lines

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="window") as window:
            window.border_title = self._title
            window.border_subtitle = "esc closes"
            yield Static(Text("\n".join(self._lines)))


class Question(ModalScreen[bool]):
    """Asks before something is changed; anything but a clear yes means no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q", "answer(False)", "no"),
    ]

    def __init__(self, words: str, what_happens: str) -> None:
        super().__init__()
        self._words, self._what_happens = words, what_happens

    def compose(self) -> ComposeResult:
        with Vertical(classes="window question") as window:
            window.border_subtitle = "y yes · n no"
            yield Static(Text(self._words, style="bold"))
            yield Static(Text(self._what_happens))

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


def explanation_lines(why: Explanation | None) -> list[str]:
    """Why an entry was compiled, in words."""
    if why is None:
        return ["Unknown: it was here before anything was recorded, or it cannot be read."]
    lines = [f"{'' if one.certain else 'likely: '}{printable(one.words)}" for one in why.causes]
    if why.nearest:
        lines += ["", f"compared with {printable(why.nearest)}"]
    if why.graph:
        lines += ["", f"it belongs to the graph {printable(why.graph)}"]
    return lines or ["No difference is known."]
