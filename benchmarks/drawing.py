"""The look of the charts: one theme, and SVG from matplotlib that reads well on a light and on a dark page.

The same figures always give the same bytes, so that a chart in the repository changes only when its numbers do.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

TEXT, DIM, GRID, AXIS, PAPER = "#24292f", "#656d76", "#d0d7de", "#8c959e", "#ffffff"
ON_DARK = {TEXT: "#e6edf3", DIM: "#9198a1", GRID: "#30363d", AXIS: "#6e7681", PAPER: "#0d1117"}
"""What these colours become on a dark page; nothing that must keep its colour may use them."""

THEME: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and a page's own font renders it
    "svg.hashsalt": "kcachefs",
    "font.size": 12,
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that the layout is the same on every machine
    "text.color": TEXT,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "axes.edgecolor": AXIS,
    "axes.labelcolor": DIM,
    "axes.labelsize": 11,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titlepad": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": GRID,
    "grid.linewidth": 1,
    "xtick.labelcolor": DIM,
    "ytick.labelcolor": DIM,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 6,
    "ytick.major.pad": 8,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "lines.solid_capstyle": "round",
    "lines.linewidth": 2,
}


@contextmanager
def figure(width: float, height: float, title: str, footer: str) -> Iterator[Figure]:
    """A figure of that many pixels in the theme of the charts."""
    with mpl.rc_context(THEME):
        layout = ConstrainedLayoutEngine(w_pad=16 / 72, h_pad=10 / 72, wspace=0, hspace=0)
        made = Figure(figsize=(width / 72, height / 72), layout=layout)
        made.suptitle(title, x=16 / width, ha="left", size=15, weight="bold")
        made.supxlabel(footer, x=16 / width, ha="left", size=11, color=DIM)
        yield made


def add_legend(drawn: Figure, handles: Sequence[Any], *, left: float = 0, **style: Any) -> None:
    """Put a legend of one line below the title, which must end with a newline to make room for it."""
    place = (left / 72 / drawn.get_figwidth(), 1 - 30 / 72 / drawn.get_figheight())
    drawn.legend(handles=handles, loc="upper left", bbox_to_anchor=place, ncols=len(handles), **style)


def svg(drawn: Figure) -> str:
    """The figure as SVG, with a style sheet that changes the colours of text, lines and paper on a dark page."""
    raw = io.StringIO()
    drawn.savefig(raw, format="svg", metadata={"Date": None, "Creator": None})
    rules = "".join(
        f'\n[style*="{what}: {light}"] {{ {what}: {dark} !important }}'
        for light, dark in ON_DARK.items()
        for what in ("fill", "stroke")
    )
    text = re.sub(r'(width|height)="([\d.]+)pt"', r'\1="\2"', raw.getvalue())
    text = text.replace("<defs>", f"<style>@media (prefers-color-scheme: dark) {{{rules}\n}}</style>\n <defs>", 1)
    text = text.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'")
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def make_logarithmic(axes: Axes, axis: str, values: list[float], unit: str = "") -> None:
    """Give an axis a logarithmic scale around the values, with at least two ticks."""
    low, high = around(values)
    axes.set(**{f"{axis}scale": "log", f"{axis}lim": (low, high)})
    ticks = axes.xaxis if axis == "x" else axes.yaxis
    ticks.set_major_locator(FixedLocator(log_ticks(low, high)))
    ticks.set_minor_locator(NullLocator())
    ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{short(value)} {unit}".strip()))


def around(values: list[float], room: float = 1.4) -> tuple[float, float]:
    """The ends of a logarithmic axis that shows all the values, at least a factor of ten apart."""
    low, high = min(values) / room, max(values) * room
    if high / low < 10:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(10), middle * math.sqrt(10)
    return low, high


def log_ticks(low: float, high: float) -> list[float]:
    """The powers of ten in a range; if there is only one, also two and five times the powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for steps in ((1,), (1, 2, 5)):
        ticks = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(ticks) > 1:
            break
    return ticks


def short(value: float) -> str:
    """For an axis: 10, 1k, 1M."""
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{letter}"
    return f"{value:g}"
