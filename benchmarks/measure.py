"""Measuring on a noisy machine: the things compared take turns, and medians are shown with their spread."""

from __future__ import annotations

import gc
import statistics
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
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


def stretch(content: bytes, size: int) -> bytes:
    """So many bytes of it: others for each size, the same in each run."""
    begin = size * 7919 % (len(content) - size)
    return content[begin : begin + size]


def work_for(seconds: float) -> float:
    """Keep the processor busy, as a compiler does between its calls; how long that took."""
    begin = time.perf_counter()
    while (taken := time.perf_counter() - begin) < seconds:
        pass
    return taken


def take_turns(rounds: int, **works: Callable[[], float]) -> dict[str, list[float]]:
    """Run each of these once per round, in turn; what they return, by name."""
    results: dict[str, list[float]] = {name: [] for name in works}
    for name, work in in_turn(works, range(rounds)):
        gc.collect()
        results[name].append(work())
    return results


def in_turn(things: Mapping[str, T], rounds: Iterable[int]) -> Iterator[tuple[str, T]]:
    """Each of them once per round, in one order and in the other by turns."""
    for round_ in rounds:
        for name in list(things) if round_ % 2 == 0 else list(things)[::-1]:
            yield name, things[name]


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


def tenths(values: list[float]) -> tuple[float, float, float]:
    """Median, and the tenth and ninetieth percentile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return statistics.median(values), cuts[0], cuts[-1]
