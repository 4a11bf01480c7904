"""`kcachefs top`: watches mounts in a terminal, or prints one frame for a log."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs import config
from kcachefs.cli import target
from kcachefs.cli.tables import Table, bar, screen_width, shows_unicode
from kcachefs.config import format_size
from kcachefs.errors import MountError, UsageError
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.live.top_rows import Panel
    from kcachefs.live.view import Causes, Glance, Kernels, Series
    from kcachefs.live.watching import Watch

_BAR = 30
_SPARK = 24
_ROWS = 10
"""Rows of each panel in a single frame."""
_IN_ASCII = str.maketrans({"·": "-", "…": "...", "→": "->", "×": "x"})


def top(
    mount: target.FirstShown = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end: for logs; needs no terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what one frame shows as JSON.")] = False,
) -> None:
    """Watch mounts in a terminal: what fills them, who uses them, why something was compiled, what they saved."""
    place = _place(mount)
    if once or as_json:
        _print_frame(place, as_json)
        return
    if importlib.util.find_spec("textual") is None:
        raise UsageError("top: needs the package textual: pip install 'kcachefs[live]', or use: kcachefs top --once")
    if not (sys.stdin.isatty() and sys.stdout.isatty() and config.is_screen()):
        raise UsageError("top: needs a terminal; for a log or a pipe: kcachefs top --once")
    from kcachefs.live.top_app import TopApp

    threading.Thread(target=_end_with_terminal, name="kcachefs-terminal", daemon=True).start()
    app = TopApp(place)
    app.run()
    raise typer.Exit(app.return_code or 0)


def _end_with_terminal() -> None:
    """Exit as soon as the terminal is gone. No signal reports that under nohup, or outside the terminal's session."""
    terminal = select.poll()
    terminal.register(sys.stdin.fileno(), 0)
    while not any(what & (select.POLLHUP | select.POLLERR) for _, what in terminal.poll()):
        pass
    os._exit(128 + signal.SIGHUP)  # the terminal cannot be restored, and trying to would block for ever


def _place(mount: Path | None) -> Path:
    """The mount to begin with: the one that is named, else this user's first, else the only one on the host."""
    from kcachefs.daemon import registry
    from kcachefs.live.host import list_mounts
    from kcachefs.mounts.finding import nothing_at

    named = mount or config.configured_mount()
    if named is not None:
        wanted = named.resolve()
        if any(one.mountpoint == str(wanted) for one in list_mounts()):
            return wanted
        raise nothing_at(named, configured=mount is None)
    own = [*registry.all_mounts(), *registry.dead_mounts()]
    found = [one.mountpoint for one in own] or [one.mountpoint for one in list_mounts()]
    if not found:
        raise MountError("there are no mounts; make one with: kcachefs mount")
    return Path(found[0])


# --- one frame --------------------------------------------------------------------------------------------------------


def _print_frame(place: Path, as_json: bool) -> None:
    import msgspec

    from kcachefs.live.watching import Watch

    watch = Watch.of(place)
    glance = watch.glance()
    causes, kernels, problem = _contents(watch, glance)
    if as_json:
        shown = {"glance": glance, "causes": causes, "kernels": kernels, "problem": problem}
        print(json.dumps(msgspec.to_builtins(shown), indent=2, ensure_ascii=True))
    else:
        text = "\n".join(_frame(watch, glance, causes, kernels, problem))
        print(text if shows_unicode() else text.translate(_IN_ASCII).encode("ascii", "replace").decode())
    if glance.headline.state in ("silent", "dead"):
        raise typer.Exit(4)


def _contents(watch: Watch, glance: Glance) -> tuple[Causes | None, Kernels | None, str]:
    """Why the last run missed, and the kernels; None, with the reason, if that cannot be found out."""
    from kcachefs.errors import KcachefsError
    from kcachefs.live.looking import Look, contents_of

    if glance.headline.total is None or glance.headline.why:
        return None, None, ""
    try:
        with Look(watch, contents_of(watch)) as look:
            return look.causes(), look.kernels(), ""
    except (KcachefsError, OSError) as error:
        return None, None, str(error)


def _frame(watch: Watch, glance: Glance, causes: Causes | None, kernels: Kernels | None, problem: str) -> Iterator[str]:
    from kcachefs.live import top_rows as rows_of

    yield from (*_headline(glance), *_sparks(watch))
    yield from (*_panel("namespaces", rows_of.namespaces(glance)), *_panel("runs", rows_of.runs(glance)))
    if problem:
        yield from ("", printable(problem))
    if causes is not None and kernels is not None:
        whose = f" of run {causes.run.run}" if causes.run is not None else ""
        yield from (*_panel(f"misses{whose}", rows_of.misses(causes)), *map(printable, causes.advice))
        yield from _panel("kernels", rows_of.kernels(kernels))
    yield from _panel("events", rows_of.events(glance))


def _headline(glance: Glance) -> list[str]:
    from kcachefs.live import top_rows as rows_of

    headline = glance.headline
    lines = [f"{printable(headline.mountpoint)}  {rows_of.state_words(headline, glance.now)}"]
    if headline.total is not None:
        share = headline.used_bytes / headline.max_bytes if headline.max_bytes else 0.0
        used, quota = format_size(headline.used_bytes), format_size(headline.max_bytes)
        lines += [f"on disk   {bar(share, _BAR)} {used} of {quota}", f"holds     {rows_of.total_words(headline)}"]
        lines += [f"saved     {rows_of.saved_words(headline)}"]
    return lines + [f"!         {printable(one.words)}" for one in headline.concerns]


def _sparks(watch: Watch) -> list[str]:
    from kcachefs.errors import KcachefsError
    from kcachefs.live import top_rows as rows_of

    span = "6 h"
    try:
        series: Series = watch.series(rows_of.SPANS[span][0])
    except (KcachefsError, OSError):
        return []
    parts = [
        f"{spark.name} {rows_of.sparkline(spark.points, _SPARK, ascii_only=not shows_unicode())} {spark.sum}"
        for spark in rows_of.sparks(series, span)
    ]
    return [f"last {span}  " + "   ".join(parts)]


def _panel(name: str, panel: Panel) -> list[str]:
    from kcachefs.live import top_rows as rows_of

    columns = panel.columns
    texts = [at for at, column in enumerate(columns) if not column.is_number]
    numbers = [at for at, column in enumerate(columns) if column.is_number]
    rows = rows_of.chosen(panel, rows_of.Filter(), panel.order, columns[panel.order].is_number)[:_ROWS]
    if not rows:
        return ["", f"{name}: {panel.empty}"]
    table = Table([columns[at].title for at in texts], [columns[at].title for at in numbers])
    for row in rows:
        table.add(*(row.cells[at] for at in (*texts, *numbers)))
    left = len(panel.rows) - len(rows)
    more = [f"… and {left:,} more"] if left else []
    width = screen_width() if sys.stdout.isatty() else None
    return ["", f"{name}", *(f"  {line}" for line in table.lines(width)), *more]
