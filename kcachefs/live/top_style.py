"""How `kcachefs top` looks. Every state has words of its own, so nothing is lost without colours."""

from __future__ import annotations

STYLE = """
Screen { layout: vertical; }
#heading { height: auto; }
#headline { height: 1; padding: 0 1; background: $primary-background; }
#status { height: 1; padding: 0 1; }
#sparks { height: 2; padding: 0 1; }
.spark { width: 1fr; padding-right: 2; }
.spark Static { height: 1; }
.spark Sparkline { height: 1; }
.-tall #sparks { height: 4; }
.-tall .spark Sparkline { height: 3; }
#hits-line { color: $success; }
#panels { height: 2; }
#about { height: 1; padding: 0 1; }
#table { height: 1fr; padding: 0 0; scrollbar-size-vertical: 1; }
#empty { height: 1fr; content-align: center middle; padding: 1 4; color: $text-muted; }
#newest { height: 8; display: none; }
.-tall #newest { display: block; }
#newest Static { width: 1fr; height: 100%; border: round $primary; padding: 0 1; }
#search { height: 1; border: none; }
EntryScreen #title { height: 1; background: $primary-background; }
EntryScreen #facts { height: auto; max-height: 4; padding: 0 1; color: $text-muted; }
EntryScreen #listings { height: 1fr; }
EntryScreen .listing { width: 1fr; border: round $primary; }
EntryScreen .listing:focus-within { border: round $accent; }
EntryScreen.-narrow #code-pane { display: none; }
EntryScreen.-narrow.-code #code-pane { display: block; }
EntryScreen.-narrow.-code #source-pane { display: none; }
TextScreen, Question { align: center middle; }
.window {
    width: 90%; max-width: 100; height: auto; max-height: 80%;
    border: round $accent; padding: 1 2; background: $surface;
}
.question { width: auto; max-width: 90%; height: auto; }
.question Static { width: auto; max-width: 100%; }
"""
