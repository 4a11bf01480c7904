"""Reports what changed between two results beyond noise: benchmarks/compare BEFORE.json AFTER.json.

A figure has changed if its range in one result (tenth to ninetieth percentile of the rounds) does not overlap its range
in the other, the medians differ by more than NOTICED, and the ratio to its peer, if it has one, has moved in the same
direction. The figure alone could mean a different machine, the ratio alone a different peer. A figure from a single
round has no range, so it must differ by more than ALONE.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.results import Figure, Results, load

NOTICED = 1.10
ALONE = 1.5
OURS = ("direct", "pyfuse3")


class Change(NamedTuple):
    """A figure in both results, and the factor between them."""

    before: Figure
    after: Figure
    factor: float

    @property
    def is_better(self) -> bool:
        return (self.factor < 1) == (self.after.better == "less")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/compare", description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    chosen = parser.parse_args()
    before, after = load(chosen.before), load(chosen.after)
    console = Console(width=150) if not sys.stdout.isatty() else Console()
    for warning in warnings(before, after):
        console.print(warning, highlight=False)
    found = changes(before, after)
    for title, some in (
        ("better", [c for c in found if c.is_better]),
        ("worse", [c for c in found if not c.is_better]),
    ):
        if some:
            console.print(_table(title, some))
    same = sum(1 for one in before.figures if after.find(*one.key) is not None) - len(found)
    console.print(f"{len(found)} changed, {same} did not change beyond noise", highlight=False)
    for name, one, other in (("only before", before, after), ("only after", after, before)):
        missing = Counter(figure.part for figure in one.figures if other.find(*figure.key) is None)
        if missing:
            listed = ", ".join(f"{count} of {part}" for part, count in missing.items())
            console.print(f"{name}: {listed}", highlight=False)
    return 1 if any(not one.is_better and one.after.subject in OURS for one in found) else 0


def changes(before: Results, after: Results) -> list[Change]:
    """The changes beyond noise, the largest first."""
    found = []
    for one in before.figures:
        other = after.find(*one.key)
        if other is not None and has_changed(one, other):
            found.append(Change(one, other, other.median / one.median))
    return sorted(found, key=lambda change: max(change.factor, 1 / change.factor), reverse=True)


def has_changed(before: Figure, after: Figure) -> bool:
    alone = len(before.values) < 2 or len(after.values) < 2
    moved = _moved(_Range(before.median, before.low, before.high), _Range(after.median, after.low, after.high), alone)
    if moved == 0 or before.against != after.against or before.ratio is None or after.ratio is None:
        return moved != 0
    return moved == _moved(_ratio(before), _ratio(after), alone)


class _Range(NamedTuple):
    median: float
    low: float
    high: float


def _ratio(figure: Figure) -> _Range:
    assert figure.ratio is not None
    return _Range(figure.ratio, figure.ratio_low or figure.ratio, figure.ratio_high or figure.ratio)


def _moved(before: _Range, after: _Range, alone: bool) -> int:
    """1 for up, -1 for down, 0 for within noise."""
    if before.median <= 0 or after.median <= 0:
        return 0
    factor = after.median / before.median
    if max(factor, 1 / factor) < (ALONE if alone else NOTICED):
        return 0
    if after.low > before.high:
        return 1
    return -1 if after.high < before.low else 0


def warnings(before: Results, after: Results) -> list[str]:
    """Reasons why the two may not be comparable."""
    reasons = []
    if before.quick or after.quick:
        reasons.append("a quick run has few rounds, so its spread means little")
    for what in sorted(before.machine.keys() | after.machine.keys()):
        if before.machine.get(what) != after.machine.get(what):
            reasons.append(
                f"{what}: {before.machine.get(what)} before, {after.machine.get(what)} after; trust the ratios"
            )
    for what in sorted(before.versions.keys() & after.versions.keys()):
        if before.versions[what] != after.versions[what]:
            reasons.append(f"{what}: {before.versions[what]} before, {after.versions[what]} after")
    return reasons


def _table(title: str, found: list[Change]) -> Table:
    table = Table(
        "part", "what", "of", "before", "after", "factor", "against", "ratio before", "ratio after", title=title
    )
    for before, after, factor in found:
        table.add_row(
            before.part,
            before.what,
            before.subject,
            f"{before.median:,.4g} {before.unit}",
            f"{after.median:,.4g} {after.unit}",
            f"{factor:.2f}",
            after.against,
            "" if before.ratio is None else f"{before.ratio:.2f}",
            "" if after.ratio is None else f"{after.ratio:.2f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
