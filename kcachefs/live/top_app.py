"""The screen of `kcachefs top`: its keys, and redrawing whenever something new is known."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.message import Message
from textual.widgets import DataTable, Footer, Input, Tab, Tabs

from kcachefs.live import top_rows as rows_of
from kcachefs.live.top_asking import Asking
from kcachefs.live.top_choices import Choices, following
from kcachefs.live.top_parts import Heading, Newest, PanelTable, Words
from kcachefs.live.top_rows import PANELS, SPANS, Filter
from kcachefs.live.top_screens import EntryScreen, Question, TextScreen, explanation_lines
from kcachefs.live.top_style import STYLE
from kcachefs.live.view import EntryPage
from kcachefs.printable import printable

_TALL = 34
"""From this many lines on, the sparklines are taller, and the newest runs and events appear below the panel."""
_OF_PANELS = ("panel", "search", "choose", "clear", "explain", "change", "quit")
_HELP = [
    "1 … 6    choose a panel; the arrow keys move in it",
    "/        search in it; esc ends that and every filter",
    "s, S     sort by the next column; the other way round",
    "u, n     only one user's; only one namespace's; again for the next, and for all",
    "enter    a kernel: its source and PTX; a run: why it compiled;",
    "         a namespace: its kernels; a mount: watch that one",
    "e        why a kernel was compiled",
    "p, x     pin or unpin, or evict a kernel; asks first",
    "t        how much time the lines above show",
    "q, ^C    quit; ^C also from a search, a text or a question",
]


class Told(Message):
    """A result from another thread, with the function that takes it over."""

    def __init__(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self.function, self.arguments = function, arguments


class TopApp(App[None]):
    """Watches one mount at a time."""

    CSS = STYLE
    TITLE = "kcachefs top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"panel('{name}')", name, show=False) for number, name in enumerate(PANELS, 1)),
        Binding("slash", "search", "search", key_display="/"),
        Binding("s", "choose('sort')", "sort"),
        Binding("S", "choose('turn')", "turn around", show=False),
        Binding("u", "choose('user')", "user"),
        Binding("n", "choose('namespace')", "namespace"),
        Binding("e", "explain", "why"),
        Binding("p", "change('pin')", "pin"),
        Binding("x", "change('evict')", "evict"),
        Binding("t", "choose('time')", "time", show=False),
        Binding("question_mark", "choose('help')", "help", key_display="?"),
        Binding("escape", "clear", "clear", show=False),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "app.interrupt", "quit", show=False, priority=True),
    ]

    def __init__(self, mount: Path) -> None:
        super().__init__()
        self.asking = Asking(mount, self._tell, self.draw)
        self.choices = Choices()

    def compose(self) -> ComposeResult:
        yield Heading(id="heading")
        yield Tabs(*(Tab(f"{number} {name}", id=name) for number, name in enumerate(PANELS, 1)), id="panels")
        yield Words(id="about", markup=False)
        yield PanelTable(id="table")
        yield Words(id="empty", markup=False)
        yield Newest(id="newest")
        yield Input(placeholder="search in this panel", id="search", compact=True)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self._part(Input).display = False
        self._part(Tabs).can_focus = False  # the number keys choose a panel, and the arrow keys belong to the table
        self.draw()
        self.asking.start()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    # An exception in the middle of drawing would be shown as a failure.
                    asyncio.get_running_loop().add_signal_handler(number, self.exit, None, 128 + number)

    def action_interrupt(self) -> None:
        """Quit, even if something is open or being typed."""
        self.exit()

    def on_unmount(self) -> None:
        self.asking.stop()

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.height >= _TALL, "-tall")
        self.call_later(self.draw)  # by then `size` has the new value

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys for the panels are neither shown nor obeyed while something is open above the panels."""
        is_open = len(self.screen_stack) > 1
        of_entries = action == "change" and isinstance(self.screen, EntryScreen)
        return not is_open or action not in _OF_PANELS or of_entries

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have a function called in this app's own thread. Callable from any thread, even after the screen is gone."""
        self.post_message(Told(function, arguments))

    def on_told(self, message: Told) -> None:
        message.function(*message.arguments)

    def _part(self, which: type[Any] | str) -> Any:
        """A part of the lowest screen, whatever is open above it."""
        return self.screen_stack[0].query_one(which)

    def draw(self) -> None:
        """Redraw everything from what is known, and request what is missing."""
        if not self.is_running or not self.screen_stack or not self.screen_stack[0].query("#empty"):
            return
        known, choices = self.asking.known, self.choices
        heading = self._part(Heading)
        heading.show(known.watch.place, known.glance, self.size.width)
        if known.series is not None:
            heading.show_series(known.series, self.asking.span)
        panel = choices.panel(known)
        rows = choices.rows(panel)
        table = self._part(PanelTable)
        table.show(choices.panel_name, panel, choices.shown(panel, self.size.width), rows, choices.order(panel))
        table.display = bool(rows)
        if rows and self.focused is None and len(self.screen_stack) == 1:
            table.focus()
        if known.glance is not None:
            self._part(Newest).show(known.glance, choices.panel_name)
        empty = self._part("#empty")
        empty.display = not rows
        empty.show(choices.empty(known, panel))
        about = self._part("#about")
        words = choices.about(known, panel, len(rows))
        about.display = bool(words)
        about.show(rows_of.cut(words, self.size.width - 2))
        self.asking.look(choices.panel_name)

    # --- choosing -----------------------------------------------------------------------------------------------------

    def action_panel(self, name: str) -> None:
        self._part(Tabs).active = name

    def on_tabs_tab_activated(self, event: Tabs.TabActivated) -> None:
        self.choices.panel_name = event.tab.id or PANELS[0]
        self._part(PanelTable).focus()
        self.draw()

    def action_choose(self, what: str) -> None:
        known, choices = self.asking.known, self.choices
        match what:
            case "sort":
                choices.sort(known, self.size.width)
            case "turn":
                choices.turn_around(known)
            case "user":
                choices.next_user(known)
            case "namespace":
                choices.next_namespace(known)
            case "help":
                self.push_screen(TextScreen("kcachefs top", _HELP))
            case "time":
                self.asking.span = following(list(SPANS), self.asking.span)
        self.draw()

    def action_search(self) -> None:
        search = self._part(Input)
        search.display = True
        search.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.choices.filter = self.choices.filter._replace(search=event.value)
        self.draw()

    def on_input_submitted(self) -> None:
        self._part(Input).display = False
        self._part(PanelTable).focus()

    def action_clear(self) -> None:
        search = self._part(Input)
        search.value, search.display = "", False
        self.choices.filter = Filter()
        self.asking.known.explain_run(None)
        self._part(PanelTable).focus()
        self.draw()

    # --- opening ------------------------------------------------------------------------------------------------------

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "table":
            self.action_open()

    def action_open(self) -> None:
        key, known = self._part(PanelTable).chosen_key, self.asking.known
        if not key or len(self.screen_stack) > 1:
            return
        match self.choices.panel_name:
            case "namespaces":
                self.choices.filter = self.choices.filter._replace(namespace=key)
                self.action_panel("kernels")
            case "runs":
                known.explain_run(int(key))
                self.action_panel("misses")
            case "misses" if known.causes is not None:
                cause = known.causes.rows[int(key)]
                lines = [cause.words, "", cause.counts, cause.names, "", *cause.paths]
                self.push_screen(TextScreen(cause.kind, list(map(printable, lines))))
            case "kernels":
                self.asking.open(key, lambda page: self.push_screen(EntryScreen(page)), self._complain)
            case "events" if known.glance is not None:
                event = next(one for one in known.glance.events if str(one.number) == key)
                lines = [event.kind, event.path, event.detail, rows_of.clock(event.when)]
                self.push_screen(TextScreen("event", list(map(printable, filter(None, lines)))))
            case "mounts":
                self.asking.turn_to(Path(key))
                self.action_panel(PANELS[0])

    def action_explain(self) -> None:
        def explained(page: EntryPage) -> None:
            self.push_screen(TextScreen(printable(page.name), explanation_lines(page.why)))

        if (entry := self._entry_at_hand()) is not None:
            self.asking.open(entry[0], explained, self._complain)

    def _complain(self, words: str) -> None:
        self.notify(printable(words), severity="error", markup=False)

    # --- changing -----------------------------------------------------------------------------------------------------

    def _entry_at_hand(self) -> tuple[str, str] | None:
        """Path and name of the kernel that is open, or under the cursor."""
        if isinstance(self.screen, EntryScreen):
            return self.screen.page.path, self.screen.page.name
        key, kernels = self._part(PanelTable).chosen_key, self.asking.known.kernels
        name = next((row.name for row in (kernels.rows if kernels is not None else ()) if row.path == key), "")
        if self.choices.panel_name == "kernels" and name:
            return key, name
        self.notify("Choose a kernel first, in panel 4.", severity="warning")
        return None

    def action_change(self, what: str) -> None:
        """Pin, unpin or evict an entry."""
        if (entry := self._entry_at_hand()) is not None:
            if what == "evict":
                self._change(what, *entry, "It is compiled again when it is next needed.")
            elif entry[0] in self.asking.known.pinned:
                self._change("unpin", *entry, "It can be evicted again.")
            else:
                self._change(what, *entry, "It will not be evicted, however full the store is.")

    def _change(self, verb: str, path: str, name: str, happens: str) -> None:
        """Ask for confirmation, and make the change if the answer is yes."""
        if not self.asking.known.watch.own:
            self.notify("Only the mount's owner may change it.", severity="warning")
            return

        def done(words: str) -> None:
            self.notify(f"{printable(name)}: {words}", markup=False)
            if verb == "evict" and isinstance(self.screen, EntryScreen):
                self.pop_screen()

        def answered(yes: bool | None) -> None:
            if yes:
                self.asking.change(verb, path, done, lambda words: self._complain(f"{name}: {words}"))

        self.push_screen(Question(f"{verb.capitalize()} {printable(name)}?", f"{printable(path)}\n{happens}"), answered)
