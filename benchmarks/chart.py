"""Charts of what benchmarks/run found, and of `scripts/gpu_check --json FILE`: python -m benchmarks.chart FILE."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from benchmarks.drawing import DIM, PAPER, TEXT, add_legend, figure, make_logarithmic, short, svg
from benchmarks.gpu_check import seconds
from benchmarks.results import Figure, Results

OURS = "#1f9d55"


class Look(NamedTuple):
    """How a filesystem is drawn."""

    label: str
    colour: str
    hollow: bool = False
    size: float = 9

    def marker(self) -> dict[str, Any]:
        return {
            "marker": "o",
            "markersize": self.size,
            "markerfacecolor": PAPER if self.hollow else self.colour,
            "markeredgecolor": self.colour,
            "markeredgewidth": 2 if self.hollow else 0,
            "linestyle": "none",
        }


LOOKS = {
    "ext4": Look("ext4", "#8b949e"),
    "tmpfs": Look("tmpfs", "#8b949e", hollow=True),
    "bindfs": Look("bindfs", "#3b82f6"),
    "mergerfs": Look("mergerfs", "#a855f7"),
    "rclone": Look("rclone mount", "#ef4444"),
    "gocryptfs": Look("gocryptfs", "#f59e0b"),
    "memory": Look("in memory, Python", "#14b8a6", hollow=True),
    "pyfuse3": Look("kcachefs, pyfuse3", OURS, hollow=True),
    "direct": Look("kcachefs", OURS, size=12),
}
ROWS = {
    "put": "create, write, close, replace",
    "stat": "stat",
    "miss": "a name that does not exist",
    "miss again": "the same name again",
    "get": "open, read 16 KiB, close",
    "listdir": "list 1,000 names",
    "mkdir+rmdir": "mkdir, rmdir",
}


def _footer(results: Results) -> str:
    machine = results.machine
    text = f"{machine['cores']} cores, {machine['memory']}, {machine['kernel']}, {machine['disk']}; {results.date}"
    return text + (", a quick run" if results.quick else "")


# --- per operation ----------------------------------------------------------------------------------------------------


def operations(results: Results) -> str:
    """A row for each operation, a dot for each filesystem, on a logarithmic scale; the thin line is the spread."""
    found = results.of("operations")
    panels = [
        (title, [(label, found[f"{name}, {state}"]) for name, label in ROWS.items() if f"{name}, {state}" in found])
        for state, title in (("1 client, warm", "warm"), ("1 client, cold", "after a remount, nothing cached"))
    ]
    panels = [(title, rows) for title, rows in panels if rows]
    values = [one.median for _, rows in panels for _, row in rows for one in row.values()]
    present = [name for name in LOOKS if any(name in row for _, rows in panels for _, row in rows)]
    counts = [len(rows) for _, rows in panels]
    with figure(
        860, 90 + 29 * sum(counts) + 50 * len(counts), "Microseconds per operation, one client\n", _footer(results)
    ) as made:
        legend = [Line2D([], [], label=LOOKS[name].label, **LOOKS[name].marker()) for name in present]
        add_legend(made, legend, handletextpad=0, columnspacing=1.2)
        many = made.subplots(len(panels), squeeze=False, height_ratios=counts)[:, 0]
        for axes, (title, rows) in zip(many, panels, strict=True):
            axes.set_title(title, size=11, color=DIM, x=-0.267)
            make_logarithmic(axes, "x", values, "µs")
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.set_yticks(range(len(rows)), [label for label, _ in rows], color=TEXT, size=12)
            axes.spines["bottom"].set_visible(False)
            for number, (_, row) in enumerate(rows):
                for layer, (name, look) in enumerate(LOOKS.items(), 3):
                    if name in row:
                        _dot(axes, number, row[name], look, layer)
        return svg(made)


def _dot(axes: Axes, y: float, measured: Figure, look: Look, layer: int) -> None:
    axes.plot([measured.low, measured.high], [y, y], color=look.colour, linewidth=1.5, zorder=layer)
    axes.plot([measured.median], [y], zorder=layer + 0.5, **look.marker())


# --- scale ------------------------------------------------------------------------------------------------------------

PANELS = {
    "lookup": "lookup of an unknown name",
    "put": "create, write, replace",
    "evict": "eviction",
    "mount": "mount",
    "recovery": "recovery after kill -9",
    "memory": "memory of the daemon",
}
ACROSS = 3


def scale(results: Results) -> str:
    """A small chart for each cost over the number of files, starting at zero: flat is good."""
    rows = {what: results.of("scale")[what] for what in PANELS if what in results.of("scale")}
    lines = -(-len(rows) // ACROSS)
    with figure(860, 80 + lines * 170, "What operations cost as the store holds more files", _footer(results)) as made:
        many = made.subplots(lines, ACROSS, squeeze=False).flat
        for axes, (what, row) in zip(many, rows.items(), strict=False):
            axes.set_title(PANELS[what])
            axes.set_title(next(iter(row.values())).unit, loc="right", size=11, color=DIM)
            _curve(axes, row)
        for axes in many:
            axes.set_visible(False)
        return svg(made)


def _curve(axes: Axes, row: dict[str, Figure]) -> None:
    counts = [int(subject.replace(",", "")) for subject in row]
    high = [one.high for one in row.values()]
    axes.grid(visible=False)
    axes.set(xscale="log", xlim=(counts[0] / 2, max(counts[-1], counts[0] * 10) * 2), ylim=(0, max(high) * 1.35))
    axes.yaxis.set_major_locator(NullLocator())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(counts, [short(count) for count in counts])
    axes.plot(counts, [one.median for one in row.values()], color=OURS, marker="o", markersize=9, markeredgewidth=0)
    axes.vlines(counts, [one.low for one in row.values()], high, OURS, linewidth=1.5)
    for count, one in zip(counts, row.values(), strict=True):
        label = _three_digits(one.median)
        axes.annotate(label, (count, one.high), (0, 7), textcoords="offset points", ha="center", size=11)


def _three_digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


# --- load -------------------------------------------------------------------------------------------------------------


class Series(NamedTuple):
    """A line: which figures it shows, and how."""

    label: str
    subject: str
    when: str
    column: str
    colour: str
    style: str = "-"


def load(results: Results) -> str:
    """Throughput and latency compared with bindfs, and what others notice during eviction, sealing and a failover."""
    sealing = next((what for what in results.of("load") if "during sealing" in what), "")
    sealed = sealing.partition("process")[2].partition(":")[0].removeprefix("es")
    bindfs = LOOKS["bindfs"].colour
    panels = [
        (
            "operations per second",
            [Series("kcachefs", "direct", "", "rate", OURS), Series("bindfs", "bindfs", "", "rate", bindfs)],
        ),
        (
            "latency, µs",
            [
                Series("kcachefs p99", "direct", "", "p99", OURS, "--"),
                Series("bindfs p99", "bindfs", "", "p99", bindfs, "--"),
                Series("kcachefs p50", "direct", "", "p50", OURS),
                Series("bindfs p50", "bindfs", "", "p50", bindfs),
            ],
        ),
        (
            "p99 of kcachefs while …, µs",
            [
                Series("undisturbed", "direct", "", "p99", OURS),
                Series("entries are evicted", "direct", ", during eviction", "p99", "#a855f7"),
                Series("a large file is sealed", "direct", sealed, "p99", "#f59e0b"),
                Series("the worker is killed", "direct", ", worker restart", "p99", "#ef4444"),
            ],
        ),
    ]
    with figure(950, 380, "Many processes at once", _footer(results)) as made:
        for axes, (title, series) in zip(made.subplots(1, len(panels)), panels, strict=True):
            axes.set_title(title, x=-0.1)
            points = {one: found for one in series if (found := _points(results, one))}
            if points:
                _lines(axes, points)
        return svg(made)


def _lines(axes: Axes, points: dict[Series, list[tuple[int, float]]]) -> None:
    counts = sorted({count for found in points.values() for count, _ in found})
    axes.set(xscale="log", xlim=(counts[0] / 1.2, max(counts[-1], 2 * counts[0]) * 1.2), xlabel="processes")
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels(map(str, counts))
    axes.grid(visible=False, axis="x")
    make_logarithmic(axes, "y", [value for found in points.values() for _, value in found])
    for series, found in points.items():
        axes.plot(*zip(*found, strict=True), series.style, color=series.colour, label=series.label)
        axes.plot(*zip(*found, strict=True), "o", color=series.colour, markersize=6, markeredgewidth=0)
    axes.legend(loc="upper left", bbox_to_anchor=(-0.05, -0.2), handlelength=2.2, labelspacing=0.25)


def _points(results: Results, series: Series) -> list[tuple[int, float]]:
    found = []
    for what, row in results.of("load").items():
        title, _, column = what.partition(": ")
        count, _, when = title.partition(" process")
        if column == series.column and when.removeprefix("es") == series.when and series.subject in row:
            found.append((int(count), row[series.subject].median))
    return sorted(found)


# --- on a GPU ---------------------------------------------------------------------------------------------------------

KINDS = {"plain cold": "#b8bcc4", "mount cold": "#6f7a8c", "plain warm": "#9fd3b0", "mount warm": "#1f8a4c"}


def starts(machine: str, rounds: dict[str, list[dict[str, Any]]]) -> str:
    """Bars of the seconds until the first result, four for each program."""
    medians = {name: {kind: statistics.median(seconds(many, kind)) for kind in KINDS} for name, many in rounds.items()}
    block = len(KINDS) + 1.3
    with figure(720, 90 + 14 * block * len(medians), "Seconds until the first result\n", machine) as made:
        axes = made.subplots()
        for number, (kind, colour) in enumerate(KINDS.items()):
            times = [medians[name][kind] for name in medians]
            places = [row * block + number for row in range(len(medians))]
            bars = axes.barh(places, times, height=0.86, color=colour, linewidth=0.5, edgecolor=colour, label=kind)
            axes.bar_label(bars, fmt="%.2f", padding=5, size=11)
        axes.set_yticks([row * block + 1.5 for row in range(len(medians))], list(medians), color=TEXT, size=12)
        axes.set_ylim(len(medians) * block - 1.5, -0.8)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.grid(visible=False)
        add_legend(made, axes.containers, left=7, handlelength=0.8, handleheight=0.8)
        return svg(made)


if __name__ == "__main__":
    measured = json.loads(Path(sys.argv[1]).read_text())
    sys.stdout.write(starts(measured["machine"], measured["rounds"]))
