"""How commands print: JSON, counted nouns, and text for a terminal, a pipe or an ASCII-only locale."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from kcachefs.printable import printable_json

if TYPE_CHECKING:
    from rich.console import Console

Tell = Callable[[str, int, int], None]
"""Reports progress: the name of the work, the amount done, and the total."""
INTERRUPTED = 130
"""The exit status of a command that was interrupted and can be run again to continue."""


def complain(text: str) -> None:
    """Print a line to standard error. Where nothing can be written, the exit code has to suffice."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Discard unprinted output: at exit the interpreter would try again, and fail with its own message and code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_json(value: Any, *, on_one_line: bool = False) -> None:
    """Print one JSON document, as every `--json` does. Any text that could control a terminal is escaped."""
    import msgspec

    raw = msgspec.json.encode(value)
    print(printable_json((raw if on_one_line else msgspec.json.format(raw)).decode()))


def counted(number: int, singular: str, plural: str = "") -> str:
    """A number with its noun.

    >>> counted(1, "entry", "entries"), counted(2, "entry", "entries"), counted(12345, "problem")
    ('1 entry', '2 entries', '12,345 problems')
    """
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def console(**options: Any) -> Console:
    """A rich console that does not fail when its reader stops reading."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Quiet(**options)


def brought_in(count: int, done: str, size: str, present: int, gone: int = 0, *, interrupted: bool) -> str:
    """The closing line of a command that adds entries and leaves existing ones alone.

    >>> brought_in(2, "adopted", "3.0 KiB", 1, interrupted=False)
    '2 entries adopted (3.0 KiB), 1 was there already'
    >>> brought_in(20, "unpacked", "3.0 GiB", 0, 8, interrupted=False)
    '20 entries unpacked (3.0 GiB); 8 were evicted again: the cache has no room for all, see kcachefs stats'
    """
    prefix = "interrupted; run it again to continue: " if interrupted else ""
    were = "was" if present == 1 else "were"
    rest = f", {present:,} {were} there already" if present else ""
    line = f"{prefix}{counted(count, 'entry', 'entries')} {done} ({size}){rest}"
    if gone:
        were = "was" if gone == 1 else "were"
        line += f"; {gone:,} {were} evicted again: the cache has no room for all, see kcachefs stats"
    return line


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal, and nothing elsewhere.

    Yields the function that advances it by a number of bytes, and can show what is being done now.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as progress:
        task = progress.add_task(what, total=total)

        def advance(count: int, now: str | None = None) -> None:
            progress.update(task, advance=count, description=now)

        yield advance


@contextmanager
def bars(*, quiet: bool = False) -> Iterator[Tell]:
    """Progress bars on a terminal while they are needed, and nothing elsewhere. Yields the function that moves them."""
    screen = None if quiet or not sys.stderr.isatty() else console(stderr=True)
    if screen is None or screen.is_dumb_terminal:
        yield lambda name, done, total: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        tasks = {}

        def tell(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name)
            progress.update(tasks[name], completed=done, total=total)

        yield tell


def format_seconds(seconds: float) -> str:
    """A duration in everyday units.

    >>> format_seconds(0.25), format_seconds(75.0), format_seconds(2460.0), format_seconds(90000.0)
    ('0.2 s', '75 s', '41 min', '25 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, length, upto in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 48 * 3600)):
        if seconds < upto:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
