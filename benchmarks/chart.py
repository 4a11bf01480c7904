"""Charts of what benchmarks/run found; and of `scripts/gpu_check --json FILE`: python -m benchmarks.chart FILE."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.drawing import Drawing, Log, around, short
from benchmarks.gpu_check import seconds
from benchmarks.results import Figure, Results

OURS = "#1f9d55"


class Look(NamedTuple):
    """How a filesystem is drawn."""

    label: str
    colour: str
    hollow: bool = False
    radius: float = 4.5


LOOKS = {
    "ext4": Look("ext4", "#8c959f"),
    "tmpfs": Look("tmpfs", "#8c959f", hollow=True),
    "bindfs": Look("bindfs", "#3b82f6"),
    "mergerfs": Look("mergerfs", "#a855f7"),
    "rclone": Look("rclone mount", "#ef4444"),
    "gocryptfs": Look("gocryptfs", "#f59e0b"),
    "pyfuse3": Look("kcachefs, pyfuse3", OURS, hollow=True),
    "direct": Look("kcachefs", OURS, radius=6),
}
ROWS = {
    "put": "create, write, close, replace",
    "stat": "stat",
    "miss": "a name that is not there",
    "miss again": "the same again",
    "get": "open, read 16 KiB, close",
    "listdir": "list 1,000 names",
    "mkdir+rmdir": "mkdir, rmdir",
}


# --- per operation ----------------------------------------------------------------------------------------------------


def operations(results: Results) -> str:
    """A row for each operation, a dot for each filesystem, on a logarithmic scale; the thin line is the spread."""
    found = results.of("operations")
    panels = [
        (title, [(label, found[f"{name}, {state}"]) for name, label in ROWS.items() if f"{name}, {state}" in found])
        for state, title in (("1 client, warm", "warm"), ("1 client, cold", "after a remount, nothing cached"))
    ]
    panels = [(title, rows) for title, rows in panels if rows]
    values = [figure.median for _, rows in panels for _, row in rows for figure in row.values()]
    width, left, top, step = 860, 210, 66, 30
    height = top + sum(len(rows) * step + 44 for _, rows in panels) + 30
    drawing = Drawing(width, height)
    drawing.text(16, 24, "Microseconds per operation, one client", "title")
    _legend(drawing, [name for name in LOOKS if any(name in row for _, rows in panels for _, row in rows)], 16, 46)
    axis = Log(*around(values), left, width - 24)
    for title, rows in panels:
        drawing.text(16, top + 16, title, "small dim")
        bottom = top + 24 + len(rows) * step
        for tick in axis.ticks():
            drawing.line(axis(tick), top + 22, axis(tick), bottom)
            drawing.text(axis(tick), bottom + 14, f"{short(tick)} µs", "small dim", "middle")
        for number, (label, row) in enumerate(rows):
            y = top + 24 + (number + 0.5) * step
            drawing.text(left - 14, y + 4, label, anchor="end")
            drawing.line(left, y, width - 24, y)
            for name, look in LOOKS.items():
                if name in row:
                    _dot(drawing, axis, y, row[name], look)
        top = bottom + 20
    _footer(drawing, results)
    return drawing.svg()


def _dot(drawing: Drawing, axis: Log, y: float, figure: Figure, look: Look) -> None:
    drawing.stroke([(axis(figure.low), y), (axis(figure.high), y)], look.colour, 1.5)
    drawing.dot(axis(figure.median), y, look.radius, look.colour, look.hollow)


def _legend(drawing: Drawing, names: list[str], x: float, y: float) -> None:
    for name in names:
        look = LOOKS[name]
        drawing.dot(x + 5, y - 4, min(look.radius, 5), look.colour, look.hollow)
        drawing.text(x + 15, y, look.label, "small")
        x += 30 + 6.4 * len(look.label)


def _footer(drawing: Drawing, results: Results) -> None:
    machine = results.machine
    told = f"{machine['cores']} cores, {machine['memory']}, {machine['kernel']}, {machine['disk']}; {results.date}"
    drawing.text(16, drawing.height - 10, told + (", a quick run" if results.quick else ""), "small dim")


# --- scale ------------------------------------------------------------------------------------------------------------

PANELS = {
    "lookup": "lookup of an unknown name",
    "put": "create, write, replace",
    "evict": "eviction",
    "mount": "mount",
    "recovery": "recovery after kill -9",
    "memory": "memory of the daemon",
}


def scale(results: Results) -> str:
    """A small chart for each cost, from zero, over the number of files: flat is good."""
    rows = {what: row for what, row in results.of("scale").items() if what in PANELS}
    across, width, height = 3, 280, 170
    lines = -(-len(rows) // across)
    drawing = Drawing(20 + across * width, 50 + lines * height + 28)
    drawing.text(16, 24, "What it costs when there are more files in the store", "title")
    for number, what in enumerate(name for name in PANELS if name in rows):
        _curve(drawing, 16 + number % across * width, 44 + number // across * height, what, rows[what])
    _footer(drawing, results)
    return drawing.svg()


def _curve(drawing: Drawing, x: float, y: float, what: str, row: dict[str, Figure]) -> None:
    figures = [(int(subject.replace(",", "")), figure) for subject, figure in row.items()]
    unit = figures[0][1].unit
    left, right, top, bottom = x + 30, x + 234, y + 34, y + 128
    drawing.text(x, y + 14, PANELS[what])
    drawing.text(x + 248, y + 14, unit, "small dim", "end")
    highest = max(figure.high for _, figure in figures) * 1.25
    across = Log(figures[0][0], max(figures[-1][0], figures[0][0] * 10), left, right)
    drawing.line(x, bottom, x + 250, bottom, "axis")

    def up(value: float) -> float:
        return bottom - value / highest * (bottom - top)

    drawing.stroke([(across(count), up(figure.median)) for count, figure in figures], OURS)
    for count, figure in figures:
        drawing.stroke([(across(count), up(figure.low)), (across(count), up(figure.high))], OURS, 1.5)
        drawing.dot(across(count), up(figure.median), 4.5, OURS)
        drawing.text(across(count), up(figure.high) - 9, _three(figure.median), "small", "middle")
        drawing.text(across(count), bottom + 15, short(count), "small dim", "middle")


def _three(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


# --- load -------------------------------------------------------------------------------------------------------------


class Series(NamedTuple):
    """A line: which figures, and how it is drawn."""

    label: str
    subject: str
    when: str
    column: str
    colour: str
    dash: str = ""


def load(results: Results) -> str:
    """Throughput, latency beside bindfs, and what others notice when something goes on."""
    sealing = next((what for what in results.of("load") if "during sealing" in what), "")
    sealed = sealing.partition("process")[2].partition(":")[0].removeprefix("es")
    panels = [
        (
            "operations a second",
            [
                Series("kcachefs", "direct", "", "rate", OURS),
                Series("bindfs", "bindfs", "", "rate", LOOKS["bindfs"].colour),
            ],
        ),
        (
            "latency, µs",
            [
                Series("kcachefs p99", "direct", "", "p99", OURS, "5 4"),
                Series("bindfs p99", "bindfs", "", "p99", LOOKS["bindfs"].colour, "5 4"),
                Series("kcachefs p50", "direct", "", "p50", OURS),
                Series("bindfs p50", "bindfs", "", "p50", LOOKS["bindfs"].colour),
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
    width = 310
    drawing = Drawing(20 + len(panels) * width, 366)
    drawing.text(16, 24, "Many processes at once", "title")
    for number, (title, many) in enumerate(panels):
        _lines(drawing, 16 + number * width, 44, title, many, results)
    _footer(drawing, results)
    return drawing.svg()


def _lines(drawing: Drawing, x: float, y: float, title: str, many: list[Series], results: Results) -> None:
    drawing.text(x, y + 14, title)
    points = {one: found for one in many if (found := _points(results, one))}
    if not points:
        return
    counts = sorted({count for found in points.values() for count, _ in found})
    left, right, top, bottom = x + 34, x + 276, y + 30, y + 200
    across = Log(counts[0], max(counts[-1], 2 * counts[0]), left + 8, right - 8)
    up = Log(*around([value for found in points.values() for _, value in found]), bottom, top)
    for tick in up.ticks():
        drawing.line(left, up(tick), right, up(tick))
        drawing.text(left - 5, up(tick) + 4, short(tick), "small dim", "end")
    drawing.line(left, bottom, right, bottom, "axis")
    for count in counts:
        drawing.text(across(count), bottom + 15, str(count), "small dim", "middle")
    drawing.text((left + right) / 2, bottom + 30, "processes", "small dim", "middle")
    for number, (one, found) in enumerate(points.items()):
        drawing.stroke([(across(count), up(value)) for count, value in found], one.colour, 2, one.dash)
        for count, value in found:
            drawing.dot(across(count), up(value), 3, one.colour)
        line = bottom + 50 + number * 15
        drawing.stroke([(left, line - 4), (left + 22, line - 4)], one.colour, 2, one.dash)
        drawing.text(left + 30, line, one.label, "small")


def _points(results: Results, series: Series) -> list[tuple[int, float]]:
    found = []
    for what, row in results.of("load").items():
        title, _, column = what.partition(": ")
        count, _, when = title.partition(" process")
        if column == series.column and when.removeprefix("es") == series.when and series.subject in row:
            found.append((int(count), row[series.subject].median))
    return sorted(found)


# --- on a GPU ---------------------------------------------------------------------------------------------------------

KINDS = (("plain cold", "#b8bcc4"), ("mount cold", "#6f7a8c"), ("plain warm", "#9fd3b0"), ("mount warm", "#1f8a4c"))
WIDTH, LEFT, BAR, GAP, TOP = 720, 110, 14, 18, 44


def starts(machine: str, rounds: dict[str, list[dict[str, Any]]]) -> str:
    """Bars of the seconds until the first result, four for each program."""
    medians = {
        name: {kind: statistics.median(seconds(many, kind)) for kind, _ in KINDS} for name, many in rounds.items()
    }
    factor = (WIDTH - LEFT - 70) / max(max(times.values()) for times in medians.values())
    block = len(KINDS) * BAR + GAP
    drawing = Drawing(WIDTH, TOP + block * len(medians) + 28)
    drawing.text(10, 18, "Seconds until the first result", "title")
    for index, (kind, colour) in enumerate(KINDS):
        drawing.bar(LEFT + 120 * index, 26, 10, 10, colour)
        drawing.text(LEFT + 120 * index + 14, 35, kind)
    for row, (name, times) in enumerate(medians.items()):
        top = TOP + row * block + 6
        drawing.text(LEFT - 8, top + 2 * BAR + 4, name, anchor="end")
        for index, (kind, colour) in enumerate(KINDS):
            y, width = top + index * BAR, max(1.0, times[kind] * factor)
            drawing.bar(LEFT, y, width, BAR - 2, colour)
            drawing.text(LEFT + width + 5, y + BAR - 4, f"{times[kind]:.2f}", "small")
    drawing.text(10, drawing.height - 8, machine, "small dim")
    return drawing.svg()


if __name__ == "__main__":
    measured = json.loads(Path(sys.argv[1]).read_text())
    sys.stdout.write(starts(measured["machine"], measured["rounds"]))
