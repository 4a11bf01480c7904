"""Turns a result into Markdown tables, charts, and the marked blocks of two pages.

Every cell is a median, followed by its ratio to what it is measured against.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.results import Figure, Results
from benchmarks.subjects import ROOT

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
NAMES = {
    "memory": "in memory, Python",
    "direct": "kcachefs",
    "direct, with bytecode": "kcachefs, with bytecode",
    "pyfuse3": "kcachefs, pyfuse3",
}
OPERATIONS = {
    "put": "create, write 16 KiB, close, replace",
    "stat": "stat",
    "miss": "look up a name that does not exist",
    "miss again": "the same name again",
    "get": "open, read 16 KiB, close",
    "listdir": "list 1,000 names",
    "mkdir+rmdir": "mkdir, rmdir",
}
STATES = (
    "1 client, warm",
    "1 client, cold",
    "8 clients, warm",
    "8 clients, cold",
    "1 client, warm, beside load",
    "1 client, cold, beside load",
)


def publish(results: Results) -> None:
    """Draw the charts that the pages show, and put the tables into the pages."""
    draw(results, ROOT / "benchmarks" / "results")
    replace_block(ROOT / "docs" / "performance.md", short(results))
    replace_block(ROOT / "benchmarks" / "README.md", markdown(results))


def replace_block(path: Path, text: str) -> None:
    """Replace what is between the two marks."""
    whole = path.read_text()
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has no {BEGIN} … {END}; add the two marks where the table belongs")
    path.write_text(f"{before}{BEGIN}\n{text.strip()}\n{END}{after}")


def draw(results: Results, folder: Path, prefix: str = "") -> list[Path]:
    """Draw the charts for which there are figures."""
    from benchmarks import chart  # needs matplotlib, which the tables do not

    drawn = []
    for name, make in (("operations", chart.operations), ("scale", chart.scale), ("load", chart.load)):
        if results.of(name):
            path = folder / f"{prefix}{name}.svg"
            path.write_text(make(results))
            drawn.append(path)
    return drawn


# --- tables -----------------------------------------------------------------------------------------------------------


def markdown(results: Results) -> str:
    """Everything, with a table for each part."""
    sections = [_machine(results)]
    for state in STATES:
        rows = {
            title: row
            for column, title in OPERATIONS.items()
            if (row := results.of("operations").get(f"{column}, {state}"))
        }
        sections += _section(f"Microseconds per operation, {state}", rows)
    for part, title in _TITLES.items():
        sections += _section(title, results.of(part))
    sections += _scale(results)
    sections += _load(results)
    for name, missing in (("Absent", results.absent), ("Left out", results.left_out)):
        if missing:
            sections.append(f"{name}: " + "; ".join(f"{what} ({why})" for what, why in missing.items()) + ".")
    return "\n\n".join(sections) + "\n"


_TITLES = {
    "files": "Files per second",
    "bursts": "Bursts of small files, milliseconds",
    "replay": "Recorded starts, milliseconds in the filesystem",
    "compilers": "Seconds until the first compiled call returns",
    "phases": "A start of a transformer on the CPU, no bytecode beside the sources, seconds",
    "nvrtc": "NVRTC through cuda.core, microseconds",
    "disk": "Megabytes on disk for real caches",
    "daemon": "What the daemon costs",
}


def _machine(results: Results) -> str:
    machine = results.machine
    took = sum(results.seconds.values())
    return (
        f"{results.date}, commit {results.commit}, kcachefs {results.versions.get('kcachefs', '?')}, "
        f"Python {results.versions.get('python', '?')}, "
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory']}, {machine['kernel']}, "
        f"{machine['disk']}; {took / 60:.0f} minutes{', a quick run' if results.quick else ''}. "
        "Medians, each followed by its ratio to the column that has none."
    )


def _section(title: str, rows: dict[str, dict[str, Figure]]) -> list[str]:
    if not rows:
        return []
    return [f"**{title}**", _table(rows)]


def _table(rows: dict[str, dict[str, Figure]]) -> str:
    subjects = list(dict.fromkeys(subject for row in rows.values() for subject in row))
    lines = [["", *(NAMES.get(subject, subject) for subject in subjects)], ["---"] * (len(subjects) + 1)]
    units = {figure.unit for row in rows.values() for figure in row.values()}
    for what, row in rows.items():
        unit = next(iter(row.values())).unit
        label = what if len(units) == 1 else f"{what}, {unit}"
        lines.append([label, *(cell(row.get(subject)) for subject in subjects)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    return number(figure.median) + (f" ({number(figure.ratio)})" if figure.ratio is not None else "")


def number(value: float) -> str:
    """Three digits, at most two of them after the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _scale(results: Results) -> list[str]:
    """The ratios are to the smallest store, and should stay near 1."""
    return _section("Files in the store", results.of("scale"))


def _load(results: Results) -> list[str]:
    rows: dict[str, dict[str, Figure]] = {}
    for what, row in results.of("load").items():
        title, _, column = what.partition(": ")
        for subject, figure in row.items():
            rows.setdefault(f"{title}, {NAMES.get(subject, subject)}", {})[f"{column}, {figure.unit}"] = figure
    if not rows:
        return []
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    lines += [[what, *(cell(row.get(column)) for column in columns)] for what, row in rows.items()]
    return ["**Many processes at once**", "\n".join("| " + " | ".join(line) + " |" for line in lines)]


# --- for docs/performance.md ------------------------------------------------------------------------------------------


def short(results: Results) -> str:
    """The table that docs/performance.md shows."""
    rows = []
    for column, title in OPERATIONS.items():
        figures = results.of("operations").get(f"{column}, 1 client, warm", {})
        ours = figures.get("direct")
        if ours is not None:
            rows.append([title, f"{number(ours.median)} µs", *(_times(ours, figures.get(peer)) for peer in _PEERS)])
    for part, what, title in _SHORT:
        figures = next((row for name, row in results.of(part).items() if name.startswith(what)), {})
        ours = figures.get("direct")
        if ours is not None:
            absolute = f"{number(ours.median)} {ours.unit}"
            rows.append([title, absolute, *(_times(ours, figures.get(peer)) for peer in _PEERS)])
    lines = [
        ["warm, one client", "kcachefs", *(f"× {peer}" for peer in _PEERS)],
        ["---"] * (len(_PEERS) + 2),
        *rows,
    ]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    machine = results.machine
    software = f"{machine['kernel']}, Python {results.versions.get('python', '?')}"
    where = f"{machine['cores']} cores, {machine['memory']}, {software}, {machine['disk']}; {results.date}"
    pictures = "\n".join(f"![{text}](../benchmarks/results/{name}.svg)" for name, text in _PICTURES.items())
    note = f"({where}. × is the ratio to a peer: less is better, except for files/s. Everything: benchmarks/README.md.)"
    return f"{pictures}\n\n{table}\n\n{note}"


_PEERS = ("ext4", "bindfs", "mergerfs", "rclone", "gocryptfs")
_SHORT = (
    ("files", "unpack", "unpack a cache of 5,000 files"),
    ("files", "read back", "read it back, nothing cached"),
    ("files", "rm -r", "remove it with `rm -r`"),
    ("replay", "triton, cold start", "a recorded cold start of Triton"),
    ("replay", "triton, warm start, nothing cached", "the warm start after it, nothing cached"),
    ("replay", "triton, warm start, again", "the warm start again"),
    ("replay", "inductor, warm start", "a recorded warm start of TorchInductor"),
    ("compilers", "torch.compile of an MLP, CPU, cold", "torch.compile on a CPU, cold"),
    ("compilers", "torch.compile of an MLP, CPU, warm", "the same, warm"),
    ("disk", "one copy", "real caches on disk"),
    ("disk", "eight tenants", "the same for eight tenants"),
    ("daemon", "processor time", "processor time of the daemon for 10,000 operations"),
)
_PICTURES = {
    "operations": "microseconds per operation, compared with other filesystems",
    "scale": "what operations cost in stores of 10 thousand to a million files",
    "load": "throughput and latency with 1 to 32 processes",
}


def _times(ours: Figure, theirs: Figure | None) -> str:
    if theirs is None or not theirs.median:
        return ""
    measured = ours.ratio if ours.against == theirs.subject and ours.ratio is not None else None
    return number(measured if measured is not None else ours.median / theirs.median)
