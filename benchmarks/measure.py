"""Measuring on a noisy machine: the things compared take turns, and medians are shown with their spread."""

from __future__ import annotations

import gc
import statistics
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CORPUS = Path(__file__).parent / "data" / "h200_caches.tar.xz"


def corpus() -> dict[str, bytes]:
    """The files of the corpus, by path."""
    files: dict[str, bytes] = {}
    with tarfile.open(CORPUS) as archive:
        for member in archive:
            if member.isfile():
                file = archive.extractfile(member)
                assert file is not None
                files[member.name] = file.read()
    return files


def pieces(count: int, size: int) -> list[bytes]:
    """That many different stretches of the corpus, each of that size."""
    whole = b"".join(data for _, data in sorted(corpus().items()))
    step = max(1, (len(whole) - size) // count)
    return [number.to_bytes(8, "little") + whole[number * step : number * step + size - 8] for number in range(count)]


def take_turns(rounds: int, **works: Callable[[], float]) -> dict[str, list[float]]:
    """Run each of these once per round, in turn; what they return, by name."""
    results: dict[str, list[float]] = {name: [] for name in works}
    for round_ in range(rounds):
        for name in list(works) if round_ % 2 == 0 else list(reversed(works)):
            gc.collect()
            results[name].append(works[name]())
    return results


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Seconds that the block took, appended to what it gives."""
    taken: list[float] = []
    started = time.perf_counter()
    yield taken
    taken.append(time.perf_counter() - started)


def spread(values: list[float], unit: str = "", digits: int = 1) -> str:
    """Median, and the range in which the middle half lies."""
    low, middle, high = quartiles(values)
    return f"{middle:,.{digits}f}{unit} ({low:,.{digits}f} to {high:,.{digits}f})"


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratios(above: list[float], below: list[float]) -> list[float]:
    """Of what was measured in the same round."""
    return [a / b for a, b in zip(above, below, strict=True)]
