"""How long tests took when they were last measured: it tells which `scripts/test --fast` leaves out, and which begin.

tests/durations.txt holds a line for every test function above `LISTED_SECONDS`, on average over its cases. A test that
is not in it counts as quick. `scripts/test --measure` writes the file anew.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_name("durations.txt")
SLOW_SECONDS = 0.3
"""From here on a test is marked `slow`."""
LISTED_SECONDS = SLOW_SECONDS
LONG_SECONDS = 6.0
"""From here on a test begins before others."""
SHARED_SECONDS = 3.0
"""From here on what a module's tests share counts for each of them: whichever runs first has to make it."""


def read() -> dict[str, float]:
    """Seconds by test function, as `path::name`."""
    lines = (line.split() for line in FILE.read_text().splitlines())
    return {name: float(seconds) for seconds, name in lines}


def of(item: pytest.Item, known: Mapping[str, float]) -> float:
    return known.get(_function(item.nodeid), 0.0)


def order(items: list[pytest.Item]) -> None:
    """The modules with the longest tests first. The others stay in their order, and so do the tests of a module, which
    share what was made for them."""
    known, longest = read(), defaultdict[Path, float](float)
    for item in items:
        longest[item.path] = max(longest[item.path], of(item, known))
    items.sort(key=lambda item: -round(math.log2(max(longest[item.path], LONG_SECONDS))))


def write(reports: Mapping[str, Sequence[Any]], path: Path) -> None:
    """From the reports of a whole run. Setting up and tearing down count: a mount made for one test is part of it."""
    cases: defaultdict[str, float] = defaultdict(float)
    shared: defaultdict[str, float] = defaultdict(float)
    for report in (one for outcome in reports.values() for one in outcome if isinstance(one, pytest.TestReport)):
        cases[report.nodeid] += report.duration
        if report.when == "setup" and report.duration >= SHARED_SECONDS:
            shared[_module(report.nodeid)] = max(shared[_module(report.nodeid)], report.duration)
    functions: defaultdict[str, list[float]] = defaultdict(list)
    for name, seconds in cases.items():
        functions[_function(name)].append(max(seconds, shared[_module(name)]))
    means = sorted((name, statistics.mean(many)) for name, many in functions.items())
    listed = [(name, seconds) for name, seconds in means if seconds >= LISTED_SECONDS]
    path.write_text("".join(f"{seconds:.1f} {name}\n" for name, seconds in listed))


def _module(node: str) -> str:
    return node.partition("::")[0]


def _function(node: str) -> str:
    return node.partition("[")[0]
