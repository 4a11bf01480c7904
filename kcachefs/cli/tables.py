"""Tables that never lose a number: whole in a pipe, folded in a terminal, stacked on a narrow screen."""

from __future__ import annotations

import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kcachefs import config

_GAP = "  "
_LEAST_TEXT = 14
"""If a text column would get less width than this, rows are shown as stacked lines instead."""
_LEAST_WIDTH = 20


@dataclass(slots=True)
class Table:
    """Rows under titles. Texts are aligned left and may be folded; numbers are aligned right and never folded."""

    texts: Sequence[str]
    numbers: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    """In each row, texts come before numbers."""

    def add(self, *cells: str) -> None:
        self.rows.append(cells)

    def lines(self, width: int | None = None) -> Iterable[str]:
        """The table for a screen of that width; without a width each row is one line, however long."""
        titles = (*self.texts, *self.numbers)
        widths = [len(title) for title in titles]
        for row in self.rows:
            widths = [max(pair) for pair in zip(widths, map(cells_of, row), strict=True)]
        if width is None or sum(widths) + len(_GAP) * (len(widths) - 1) <= width:
            return self._plain(titles, widths)
        count = len(self.texts)
        left = width - sum(widths[count:]) - len(_GAP) * (len(widths) - 1)
        narrowed = _share(left, widths[:count])
        if any(given < min(_LEAST_TEXT, wanted) for given, wanted in zip(narrowed, widths[:count], strict=True)):
            return self._stacked(max(width, _LEAST_WIDTH))
        return self._folded(titles, [*narrowed, *widths[count:]])

    def _plain(self, titles: Sequence[str], widths: Sequence[int]) -> Iterable[str]:
        for row in (titles, *self.rows):
            yield self._line(row, widths)

    def _folded(self, titles: Sequence[str], widths: Sequence[int]) -> Iterable[str]:
        count = len(self.texts)
        for row in (titles, *self.rows):
            pieces = [fold(cell, width) for cell, width in zip(row[:count], widths, strict=False)]
            for number in range(max(map(len, pieces))):
                texts = [piece[number] if number < len(piece) else "" for piece in pieces]
                yield self._line((*texts, *(row[count:] if number == 0 else [""] * len(self.numbers))), widths)

    def _stacked(self, width: int) -> Iterable[str]:
        count = len(self.texts)
        for row in self.rows:
            for number, text in enumerate(filter(None, row[:count])):
                indent = _GAP if number else ""
                yield from (indent + piece for piece in fold(text, width - len(indent)))
            pairs = [f"{title} {cell}" for title, cell in zip(self.numbers, row[count:], strict=True) if cell]
            yield from _wrapped(pairs, width)

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        count = len(self.texts)
        cells = [
            cell + " " * (width - cells_of(cell)) if number < count else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return _GAP.join(cells).rstrip()


def show(table: Table, below: Sequence[str] = ()) -> None:
    """Print a table, and lines below it, in the form that suits standard output."""
    if not sys.stdout.isatty():
        print("\n".join((*table.lines(), *below)))
        return
    width = screen_width()
    first, *rest = table.lines(width)
    if config.wants_colour():
        first = f"\x1b[1m{first}\x1b[0m"
    print("\n".join((first, *rest, *(piece for line in below for piece in textwrap.wrap(line, width) or [""]))))


def screen_width() -> int:
    return max(_LEAST_WIDTH, shutil.get_terminal_size().columns)


def bar(share: float, width: int) -> str:
    """A bar that is filled to that share."""
    full = round(min(1.0, max(0.0, share)) * width)
    filled, empty = ("█", "░") if shows_unicode() else ("#", ".")
    return filled * full + empty * (width - full)


def shows_unicode() -> bool:
    """Whether the output can show more than ASCII."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    return encoding.startswith("utf") and not config.wants_ascii()


def cells_of(text: str) -> int:
    """How many columns a text takes: some characters take two, and combining ones none.

    >>> cells_of("kernel"), cells_of("日本")
    (6, 4)
    """
    if text.isascii():
        return len(text)
    return sum(_cells_of(one) for one in text)


def _cells_of(one: str) -> int:
    return 0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1


def fold(text: str, width: int) -> list[str]:
    """The text in pieces that fit, split at blanks where possible.

    >>> fold("softmax sm_90, 4 warps", 14)
    ['softmax sm_90,', '4 warps']
    """
    if cells_of(text) <= width:
        return [text]
    if text.isascii():
        return textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    pieces, piece, used = [], "", 0
    for one in text:
        taken = _cells_of(one)
        if used + taken > width:
            pieces.append(piece)
            piece, used = "", 0
        piece, used = piece + one, used + taken
    return [*pieces, piece]


def _wrapped(pairs: Sequence[str], width: int) -> Iterable[str]:
    """The pairs side by side, as many per line as fit; no pair is split."""
    line = ""
    for pair in pairs:
        if line and len(line) + len(_GAP) + len(pair) > width:
            yield line
            line = ""
        line = f"{line}{_GAP}{pair}"
    if line:
        yield line


def _share(left: int, wanted: Sequence[int]) -> list[int]:
    """Divide the remaining columns among the texts: a text that wants less than an equal share gets what it wants."""
    given = [0] * len(wanted)
    for rank, number in enumerate(sorted(range(len(wanted)), key=lambda one: wanted[one])):
        given[number] = min(wanted[number], left // (len(wanted) - rank))
        left -= given[number]
    return given
