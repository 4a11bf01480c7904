"""Measuring on a noisy machine: what is compared takes turns, and medians are shown with their spread."""

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
    """The files of the corpus by path."""
    files: dict[str, bytes] = {}
    with tarfile.open(CORPUS) as archive:
        for member in archive:
            if member.isfile():
                file = archive.extractfile(member)
                assert file is not None
                files[member.name] = file.read()
    return files


def pieces(count: int, size: int) -> list[bytes]:
    """`count` different pieces of the corpus, each of `size` bytes."""
    whole = b"".join(data for _, data in sorted(corpus().items()))
    step = max(1, (len(whole) - size) // count)
    return [number.to_bytes(8, "little") + whole[number * step : number * step + size - 8] for number in range(count)]


def stretch(content: bytes, size: int) -> bytes:
    """`size` bytes of the content, from a place that depends only on the size."""
    begin = size * 7919 % (len(content) - size)
    return content[begin : begin + size]


def work_for(seconds: float) -> float:
    """Keep the processor busy, as a compiler does between its calls; returns how long it took."""
    begin = time.perf_counter()
    while (taken := time.perf_counter() - begin) < seconds:
        pass
    return taken


def take_turns(rounds: int, **works: Callable[[], float]) -> dict[str, list[float]]:
    """Run each of these once per round, in turn; returns their results by name."""
    results: dict[str, list[float]] = {name: [] for name in works}
    for name, work in in_turn(works, range(rounds)):
        gc.collect()
        results[name].append(work())
    return results


def in_turn(things: Mapping[str, T], rounds: Iterable[int]) -> Iterator[tuple[str, T]]:
    """Each thing once per round, in alternating order."""
    for round_ in rounds:
        for name in list(things) if round_ % 2 == 0 else list(things)[::-1]:
            yield name, things[name]


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Appends the seconds that the block took to the list that it yields."""
    taken: list[float] = []
    started = time.perf_counter()
    yield taken
    taken.append(time.perf_counter() - started)


def spread(values: list[float], unit: str = "", digits: int = 1) -> str:
    """The median and the range of the middle half, as text."""
    low, middle, high = quartiles(values)
    return f"{middle:,.{digits}f}{unit} ({low:,.{digits}f} to {high:,.{digits}f})"


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratios(above: list[float], below: list[float]) -> list[float]:
    """The ratios of what was measured in the same round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def tenths(values: list[float]) -> tuple[float, float, float]:
    """The median, and the tenth and the ninetieth percentile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return statistics.median(values), cuts[0], cuts[-1]
